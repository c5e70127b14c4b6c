//! Maintenance: how the store is.

use std::sync::Arc;

use etcdpb::rpc::alarm_request::AlarmAction;
use etcdpb::rpc::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, DefragmentRequest, DefragmentResponse,
    DowngradeRequest, DowngradeResponse, HashKvRequest, HashKvResponse, HashRequest, HashResponse,
    MoveLeaderRequest, MoveLeaderResponse, SnapshotRequest, SnapshotResponse, StatusRequest,
    StatusResponse,
};
use futures_util::stream::{self, Stream};
use grpc::Status;

use super::{Api, RAFT_TERM, status};
use crate::config::ETCD_VERSION;

impl Api {
    pub(super) async fn status(
        self: Arc<Self>,
        _: StatusRequest,
    ) -> Result<StatusResponse, Status> {
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
        Ok(response)
    }

    /// Alarms can be looked at. The one that there is comes and goes with the
    /// free space of the disk, so it cannot be set or cleared.
    pub(super) async fn alarm(
        self: Arc<Self>,
        request: AlarmRequest,
    ) -> Result<AlarmResponse, Status> {
        match request.action() {
            AlarmAction::Get => Ok(self.alarms()),
            AlarmAction::Activate | AlarmAction::Deactivate => {
                Err(status::not_built("setting and clearing alarms is"))
            }
        }
    }

    pub(super) async fn defragment(
        self: Arc<Self>,
        _: DefragmentRequest,
    ) -> Result<DefragmentResponse, Status> {
        Err(status::not_built("Defragment is"))
    }

    pub(super) async fn hash(self: Arc<Self>, _: HashRequest) -> Result<HashResponse, Status> {
        Err(status::not_built("Hash is"))
    }

    pub(super) async fn hash_kv(
        self: Arc<Self>,
        _: HashKvRequest,
    ) -> Result<HashKvResponse, Status> {
        Err(status::not_built("HashKV is"))
    }

    pub(super) fn snapshot(
        self: Arc<Self>,
        _: SnapshotRequest,
    ) -> impl Stream<Item = Result<SnapshotResponse, Status>> {
        stream::iter([Err(status::not_built("Snapshot is"))])
    }

    pub(super) async fn move_leader(
        self: Arc<Self>,
        _: MoveLeaderRequest,
    ) -> Result<MoveLeaderResponse, Status> {
        let refused = Status::failed_precondition("etcdserver: bad leader transferee");
        Err(refused)
    }

    pub(super) async fn downgrade(
        self: Arc<Self>,
        _: DowngradeRequest,
    ) -> Result<DowngradeResponse, Status> {
        Err(status::not_built("Downgrade is"))
    }

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
