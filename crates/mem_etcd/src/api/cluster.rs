//! Cluster: there is one member, and it is this one.

use etcdpb::rpc::cluster_server::Cluster;
use etcdpb::rpc::{
    Member, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse,
    MemberPromoteRequest, MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse,
    MemberUpdateRequest, MemberUpdateResponse,
};
use tonic::{Request, Response, Status};

use super::{Api, status};

const SERVICE: &str = "etcdserverpb.Cluster";

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Cluster for Api {
    async fn member_list(&self, _: Request<MemberListRequest>) -> Answer<MemberListResponse> {
        let member = Member {
            id: self.pipeline.identity().member_id,
            name: self.member.name.clone(),
            client_ur_ls: self.member.client_urls.clone(),
            ..Default::default()
        };
        let response = MemberListResponse { header: self.header_now(), members: vec![member] };
        self.outcome(SERVICE, "MemberList", Ok(response))
    }

    async fn member_add(&self, _: Request<MemberAddRequest>) -> Answer<MemberAddResponse> {
        self.outcome(SERVICE, "MemberAdd", Err(no_changes()))
    }

    async fn member_remove(&self, _: Request<MemberRemoveRequest>) -> Answer<MemberRemoveResponse> {
        self.outcome(SERVICE, "MemberRemove", Err(no_changes()))
    }

    async fn member_update(&self, _: Request<MemberUpdateRequest>) -> Answer<MemberUpdateResponse> {
        self.outcome(SERVICE, "MemberUpdate", Err(no_changes()))
    }

    async fn member_promote(
        &self,
        _: Request<MemberPromoteRequest>,
    ) -> Answer<MemberPromoteResponse> {
        self.outcome(SERVICE, "MemberPromote", Err(no_changes()))
    }
}

fn no_changes() -> Status {
    status::not_built("changes of membership are")
}
