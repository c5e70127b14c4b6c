//! Maintenance: how the store is.

use etcdpb::rpc::alarm_request::AlarmAction;
use etcdpb::rpc::maintenance_server::Maintenance;
use etcdpb::rpc::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, DefragmentRequest, DefragmentResponse,
    DowngradeRequest, DowngradeResponse, HashKvRequest, HashKvResponse, HashRequest, HashResponse,
    MoveLeaderRequest, MoveLeaderResponse, SnapshotRequest, SnapshotResponse, StatusRequest,
    StatusResponse,
};
use tokio_stream::Empty;
use tonic::{Request, Response, Status};

use super::{Api, RAFT_TERM, status};
use crate::config::ETCD_VERSION;

const SERVICE: &str = "etcdserverpb.Maintenance";

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Maintenance for Api {
    type SnapshotStream = Empty<Result<SnapshotResponse, Status>>;

    async fn status(&self, _: Request<StatusRequest>) -> Answer<StatusResponse> {
        let state = self.pipeline.status();
        let member_id = self.pipeline.identity().member_id;
        let failure = state.failure.map(|reason| reason.to_string());
        let full = state.no_space.then(|| format!("memberID:{member_id} alarm:NOSPACE"));
        let response = StatusResponse {
            header: self.header(state.revision),
            version: ETCD_VERSION.into(),
            db_size: state.stats.total_bytes,
            db_size_in_use: state.stats.live_bytes,
            leader: member_id,
            // There is no raft log; the revision moves as its index would.
            raft_index: state.revision as u64,
            raft_applied_index: state.revision as u64,
            raft_term: RAFT_TERM,
            errors: failure.into_iter().chain(full).collect(),
            storage_version: "3.7.0".into(),
            ..Default::default()
        };
        self.outcome(SERVICE, "Status", Ok(response))
    }

    /// Alarms can be looked at. The one that there is comes and goes with the
    /// free space of the disk, so it cannot be set or cleared.
    async fn alarm(&self, request: Request<AlarmRequest>) -> Answer<AlarmResponse> {
        let result = match request.into_inner().action() {
            AlarmAction::Get => Ok(self.alarms()),
            AlarmAction::Activate | AlarmAction::Deactivate => {
                Err(status::not_built("setting and clearing alarms is"))
            }
        };
        self.outcome(SERVICE, "Alarm", result)
    }

    async fn defragment(&self, _: Request<DefragmentRequest>) -> Answer<DefragmentResponse> {
        self.outcome(SERVICE, "Defragment", Err(status::not_built("Defragment is")))
    }

    async fn hash(&self, _: Request<HashRequest>) -> Answer<HashResponse> {
        self.outcome(SERVICE, "Hash", Err(status::not_built("Hash is")))
    }

    async fn hash_kv(&self, _: Request<HashKvRequest>) -> Answer<HashKvResponse> {
        self.outcome(SERVICE, "HashKV", Err(status::not_built("HashKV is")))
    }

    async fn snapshot(&self, _: Request<SnapshotRequest>) -> Answer<Self::SnapshotStream> {
        self.outcome(SERVICE, "Snapshot", Err(status::not_built("Snapshot is")))
    }

    async fn move_leader(&self, _: Request<MoveLeaderRequest>) -> Answer<MoveLeaderResponse> {
        let refused = Status::failed_precondition("etcdserver: bad leader transferee");
        self.outcome(SERVICE, "MoveLeader", Err(refused))
    }

    async fn downgrade(&self, _: Request<DowngradeRequest>) -> Answer<DowngradeResponse> {
        self.outcome(SERVICE, "Downgrade", Err(status::not_built("Downgrade is")))
    }
}

impl Api {
    fn alarms(&self) -> AlarmResponse {
        let no_space = AlarmMember {
            member_id: self.pipeline.identity().member_id,
            alarm: AlarmType::Nospace as i32,
        };
        let full = self.pipeline.status().no_space;
        AlarmResponse {
            header: self.header_now(),
            alarms: full.then_some(no_space).into_iter().collect(),
        }
    }
}
