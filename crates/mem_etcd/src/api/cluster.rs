//! Cluster service: the members, and their changes.

use std::sync::Arc;

use etcdpb::rpc::{
    Member, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse,
    MemberPromoteRequest, MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse,
    MemberUpdateRequest, MemberUpdateResponse,
};
use grpc::{Admission, Status};
use peer::PeerUrl;
use pipeline::{ClusterMember, MembersChanged};

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
            Some(cluster) => to_wire_all(cluster.members),
            None => vec![self.only_member()],
        };
        // As in etcd, the member list has no revision.
        Ok(MemberListResponse { header: self.header(0), members })
    }

    fn only_member(&self) -> Member {
        Member {
            id: self.pipeline.identity().member_id,
            name: self.member.name.clone(),
            peer_ur_ls: self.member.peer_urls.clone(),
            client_ur_ls: self.member.client_urls.clone(),
            is_learner: false,
        }
    }

    pub(super) async fn member_add(
        self: Arc<Self>,
        request: MemberAddRequest,
        admission: Admission,
    ) -> Result<MemberAddResponse, Status> {
        let urls = peer_urls(&request.peer_ur_ls)?;
        self.require_admin_now(&admission).await?;
        let changed = self.pipeline.add_member(urls, request.is_learner).await;
        let MembersChanged { added, members } = changed.map_err(status::from_member_error)?;
        let members = to_wire_all(members);
        let member = members.iter().find(|member| Some(member.id) == added).cloned();
        Ok(MemberAddResponse { header: self.header(0), member, members })
    }

    pub(super) async fn member_remove(
        self: Arc<Self>,
        request: MemberRemoveRequest,
        admission: Admission,
    ) -> Result<MemberRemoveResponse, Status> {
        self.require_admin_now(&admission).await?;
        let changed = self.pipeline.remove_member(request.id).await;
        let members = to_wire_all(changed.map_err(status::from_member_error)?.members);
        Ok(MemberRemoveResponse { header: self.header(0), members })
    }

    pub(super) async fn member_update(
        self: Arc<Self>,
        request: MemberUpdateRequest,
        admission: Admission,
    ) -> Result<MemberUpdateResponse, Status> {
        self.require_admin_now(&admission).await?;
        let urls = peer_urls(&request.peer_ur_ls)?;
        let changed = self.pipeline.update_member(request.id, urls).await;
        let members = to_wire_all(changed.map_err(status::from_member_error)?.members);
        Ok(MemberUpdateResponse { header: self.header(0), members })
    }

    pub(super) async fn member_promote(
        self: Arc<Self>,
        request: MemberPromoteRequest,
        admission: Admission,
    ) -> Result<MemberPromoteResponse, Status> {
        self.require_admin_now(&admission).await?;
        let changed = self.pipeline.promote_member(request.id).await;
        let members = to_wire_all(changed.map_err(status::from_member_error)?.members);
        Ok(MemberPromoteResponse { header: self.header(0), members })
    }
}

/// Parses the peer URLs of a request, and sorts them, as etcd does.
fn peer_urls(texts: &[String]) -> Result<Vec<String>, Status> {
    let parse = |text: &String| text.trim().parse::<PeerUrl>().map(|url| url.to_string());
    let urls: Result<Vec<_>, _> = texts.iter().map(parse).collect();
    let mut urls = urls.ok().filter(|urls| !urls.is_empty()).ok_or_else(status::bad_member_urls)?;
    urls.sort_unstable();
    Ok(urls)
}

fn to_wire_all(members: Vec<ClusterMember>) -> Vec<Member> {
    members.into_iter().map(to_wire).collect()
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
