//! Cluster service: this member is the only one, and membership cannot be changed.

use std::sync::Arc;

use etcdpb::rpc::{
    Member, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse,
    MemberPromoteRequest, MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse,
    MemberUpdateRequest, MemberUpdateResponse,
};
use grpc::{Admission, Status};

use super::service::Api;
use super::status;

impl Api {
    pub(super) async fn member_list(
        self: Arc<Self>,
        _: MemberListRequest,
        admission: Admission,
    ) -> Result<MemberListResponse, Status> {
        self.require_client(&admission)?;
        let member = Member {
            id: self.pipeline.identity().member_id,
            name: self.member.name.clone(),
            client_ur_ls: self.member.client_urls.clone(),
            ..Default::default()
        };
        // As in etcd, the member list has no revision.
        Ok(MemberListResponse { header: self.header(0), members: vec![member] })
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

fn not_supported() -> Status {
    status::not_implemented("membership changes are")
}
