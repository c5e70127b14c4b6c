//! Maintenance service: status, alarms, defragmentation, leadership, downgrades.

use std::sync::Arc;

use etcdpb::rpc::alarm_request::AlarmAction;
use etcdpb::rpc::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, DefragmentRequest, DefragmentResponse,
    DowngradeInfo, DowngradeRequest, DowngradeResponse, MoveLeaderRequest, MoveLeaderResponse,
    StatusRequest, StatusResponse,
};
use grpc::{Admission, SlowRead, Status};
use mvcc::{Alarm, AlarmKind, Command, Reply};
use pipeline::{ClusterStatus, PipelineStatus};

use super::service::{Api, SMALL_REQUEST_BYTES};
use super::status;
use crate::config::{ETCD_VERSION, STORAGE_VERSION};
use crate::memory;

impl Api {
    pub(super) async fn status(
        self: Arc<Self>,
        _: StatusRequest,
        admission: Admission,
    ) -> Result<StatusResponse, Status> {
        self.require_client(&admission)?;
        let store = self.pipeline.status();
        let failure = store.failure.as_ref().map(|reason| reason.to_string());
        let alarms = self.alarms(&store).into_iter().map(|alarm| {
            let kind = alarm.alarm().as_str_name();
            format!("memberID:{} alarm:{kind}", alarm.member_id)
        });
        let target = self.downgrade.target();
        let cluster = store.cluster.clone().unwrap_or_else(|| ClusterStatus {
            leader: self.pipeline.identity().member_id,
            // There is no Raft log. The revision is reported as its index.
            commit: store.revision as u64,
            applied: store.revision as u64,
            ..ClusterStatus::default()
        });
        let no_leader = (cluster.leader == 0).then(|| pipeline::Error::NoLeader.to_string());
        Ok(StatusResponse {
            header: self.header(store.revision),
            version: ETCD_VERSION.into(),
            // etcd's file is never empty, and etcdctl divides by its size.
            db_size: store.stats.total_bytes.max(1),
            db_size_in_use: store.stats.live_bytes,
            db_size_quota: self.limits.quota_bytes,
            leader: cluster.leader,
            raft_index: cluster.commit,
            raft_applied_index: cluster.applied,
            raft_term: self.raft_term(),
            errors: failure.into_iter().chain(no_leader).chain(alarms).collect(),
            is_learner: cluster.is_learner,
            storage_version: STORAGE_VERSION.into(),
            downgrade_info: Some(DowngradeInfo {
                enabled: target.is_some(),
                target_version: target.unwrap_or_default(),
            }),
        })
    }

    pub(super) async fn alarm(
        self: Arc<Self>,
        request: AlarmRequest,
        admission: Admission,
    ) -> Result<AlarmResponse, Status> {
        match request.action == AlarmAction::Get as i32 {
            true => self.require_client(&admission)?,
            false => self.require_admin(&admission)?,
        }
        let response = |alarms| AlarmResponse { header: self.header_now(), alarms };
        let kind = AlarmKind::try_from(i64::from(request.alarm));
        let raised = match AlarmAction::try_from(request.action) {
            Ok(AlarmAction::Get) => {
                let mut alarms = self.alarms(&self.pipeline.status());
                if request.alarm != AlarmType::None as i32 {
                    alarms.retain(|alarm| alarm.alarm == request.alarm);
                }
                return Ok(response(alarms));
            }
            Ok(AlarmAction::Activate) => true,
            Ok(AlarmAction::Deactivate) => false,
            Err(_) => return Ok(response(Vec::new())),
        };
        let Ok(kind) = kind else { return Ok(response(Vec::new())) };
        let alarm = Alarm { kind, member_id: request.member_id };
        let command = Command::Alarm { alarm, raised };
        let origin = self.origin(&admission)?;
        match self.propose(origin, command, SMALL_REQUEST_BYTES).await? {
            // As in etcd, activating an active alarm returns the alarm, and deactivating
            // an inactive alarm returns nothing.
            Reply::Alarm { changed, .. } if changed || raised => Ok(response(vec![to_wire(alarm)])),
            Reply::Alarm { .. } => Ok(response(Vec::new())),
            other => unreachable!("not the reply to an alarm: {other:?}"),
        }
    }

    pub(super) async fn defragment(
        self: Arc<Self>,
        _: DefragmentRequest,
        admission: Admission,
    ) -> Result<DefragmentResponse, Status> {
        self.require_admin(&admission)?;
        let pipeline = self.pipeline.clone();
        let work = move |_: &SlowRead| {
            pipeline.shrink_tables();
            memory::return_free_memory();
        };
        admission.run_slow(SMALL_REQUEST_BYTES, work).await?;
        Ok(DefragmentResponse { header: None })
    }

    /// Asks another member to lead. A store without peers is the only possible target.
    pub(super) async fn move_leader(
        self: Arc<Self>,
        request: MoveLeaderRequest,
        admission: Admission,
    ) -> Result<MoveLeaderResponse, Status> {
        self.require_admin(&admission)?;
        let moved = self.pipeline.move_leader(request.target_id).await;
        moved.map_err(status::from_move_leader)?;
        Ok(MoveLeaderResponse { header: None })
    }

    pub(super) async fn downgrade(
        self: Arc<Self>,
        request: DowngradeRequest,
        admission: Admission,
    ) -> Result<DowngradeResponse, Status> {
        self.require_admin(&admission)?;
        let version = self.downgrade.handle_request(&request)?;
        Ok(DowngradeResponse { header: self.header_now(), version })
    }

    /// Returns the raised alarms, and a NOSPACE alarm while the disk is full.
    fn alarms(&self, store: &PipelineStatus) -> Vec<AlarmMember> {
        let member_id = self.pipeline.identity().member_id;
        let disk_full = Alarm { kind: AlarmKind::NoSpace, member_id };
        let disk_full = (store.no_space && !store.alarms.contains(&disk_full)).then_some(disk_full);
        store.alarms.iter().copied().chain(disk_full).map(to_wire).collect()
    }
}

fn to_wire(alarm: Alarm) -> AlarmMember {
    AlarmMember { member_id: alarm.member_id, alarm: alarm.kind as i32 }
}
