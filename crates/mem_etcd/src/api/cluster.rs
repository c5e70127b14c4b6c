//! Cluster service: the members. They cannot be changed yet.

use std::sync::Arc;

use etcdpb::rpc::{
    Member, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse,
    MemberPromoteRequest, MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse,
    MemberUpdateRequest, MemberUpdateResponse,
};
use grpc::{Admission, Status};
use pipeline::ClusterMember;

use super::service::Api;
use super::status;

impl Api {
    pub(super) async fn member_list(
        self: Arc<Self>,
        request: MemberListRequest,
        admission: Admission,
    ) -> Result<MemberListResponse, Status> {
        self.require_client(&admission)?;
        if request.linearizable {
            self.linearize().await?;
        }
        let members = match self.pipeline.cluster_status() {
            Some(cluster) => cluster.members.into_iter().map(to_wire).collect(),
            None => vec![self.only_member()],
        };
        // As in etcd, the member list has no revision.
        Ok(MemberListResponse { header: self.header(0), members })
    }

    fn only_member(&self) -> Member {
        Member {
            id: self.pipeline.identity().member_id,
            name: self.member.name.clone(),
            client_ur_ls: self.member.client_urls.clone(),
            ..Default::default()
        }
    }

    pub(super) async fn member_add(
        self: Arc<Self>,
        _: MemberAddRequest,
        admission: Admission,
    ) -> Result<MemberAddResponse, Status> {
        self.require_admin(&admission)?;
        Err(not_supported())
    }

    pub(super) async fn member_remove(
        self: Arc<Self>,
        _: MemberRemoveRequest,
        admission: Admission,
    ) -> Result<MemberRemoveResponse, Status> {
        self.require_admin(&admission)?;
        Err(not_supported())
    }

    pub(super) async fn member_update(
        self: Arc<Self>,
        _: MemberUpdateRequest,
        admission: Admission,
    ) -> Result<MemberUpdateResponse, Status> {
        self.require_admin(&admission)?;
        Err(not_supported())
    }

    pub(super) async fn member_promote(
        self: Arc<Self>,
        _: MemberPromoteRequest,
        admission: Admission,
    ) -> Result<MemberPromoteResponse, Status> {
        self.require_admin(&admission)?;
        Err(not_supported())
    }
}

fn to_wire(member: ClusterMember) -> Member {
    Member {
        id: member.id,
        name: member.name,
        peer_ur_ls: member.peer_urls,
        client_ur_ls: member.client_urls,
        is_learner: member.is_learner,
    }
}

fn not_supported() -> Status {
    status::not_implemented("membership changes are")
}
