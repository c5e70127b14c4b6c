//! Maintenance: how the store is, and what is done to it as a whole.

use std::sync::Arc;

use etcdpb::rpc::alarm_request::AlarmAction;
use etcdpb::rpc::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, DefragmentRequest, DefragmentResponse,
    DowngradeInfo, DowngradeRequest, DowngradeResponse, HashKvRequest, HashKvResponse, HashRequest,
    HashResponse, MoveLeaderRequest, MoveLeaderResponse, SnapshotRequest, SnapshotResponse,
    StatusRequest, StatusResponse,
};
use futures_util::{Stream, TryStreamExt, stream};
use grpc::Status;
use mvcc::{Alarm, AlarmKind, Command, Reply};
use pipeline::{Export, HistoryHash};
use snapshot::Exporter;

use super::kv::blocking;
use super::{Api, RAFT_TERM, SMALL_REQUEST_BYTES, status};
use crate::config::{ETCD_VERSION, STORAGE_VERSION};
use crate::memory;

impl Api {
    pub(super) async fn status(
        self: Arc<Self>,
        _: StatusRequest,
    ) -> Result<StatusResponse, Status> {
        let state = self.pipeline.status();
        let failure = state.failure.as_ref().map(|reason| reason.to_string());
        let alarms = self.alarms(&state).into_iter().map(|alarm| {
            let kind = alarm.alarm().as_str_name();
            format!("memberID:{} alarm:{kind}", alarm.member_id)
        });
        let target = self.downgrade.target();
        Ok(StatusResponse {
            header: self.header(state.revision),
            version: ETCD_VERSION.into(),
            db_size: state.stats.total_bytes,
            db_size_in_use: state.stats.live_bytes,
            db_size_quota: self.limits.quota_bytes,
            leader: self.pipeline.identity().member_id,
            // There is no raft log; the revision moves as its index would.
            raft_index: state.revision as u64,
            raft_applied_index: state.revision as u64,
            raft_term: RAFT_TERM,
            errors: failure.into_iter().chain(alarms).collect(),
            is_learner: false,
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
    ) -> Result<AlarmResponse, Status> {
        let answer = |alarms| AlarmResponse { header: self.header_now(), alarms };
        let kind = AlarmKind::try_from(i64::from(request.alarm));
        let raised = match AlarmAction::try_from(request.action) {
            Ok(AlarmAction::Get) => {
                let mut alarms = self.alarms(&self.pipeline.status());
                if request.alarm != AlarmType::None as i32 {
                    alarms.retain(|alarm| alarm.alarm == request.alarm);
                }
                return Ok(answer(alarms));
            }
            Ok(AlarmAction::Activate) => true,
            Ok(AlarmAction::Deactivate) => false,
            Err(_) => return Ok(answer(Vec::new())),
        };
        let Ok(kind) = kind else { return Ok(answer(Vec::new())) };
        let alarm = Alarm { kind, member_id: request.member_id };
        match self.propose(Command::Alarm { alarm, raised }, SMALL_REQUEST_BYTES).await? {
            // As etcd: whoever raises an alarm again is told of it, whoever
            // clears what is not there is told of nothing.
            Reply::Alarm { changed, .. } if changed || raised => Ok(answer(vec![wire(alarm)])),
            Reply::Alarm { .. } => Ok(answer(Vec::new())),
            other => unreachable!("not the reply to an alarm: {other:?}"),
        }
    }

    pub(super) async fn defragment(
        self: Arc<Self>,
        _: DefragmentRequest,
    ) -> Result<DefragmentResponse, Status> {
        let pipeline = self.pipeline.clone();
        let work = move || {
            pipeline.release_reserves();
            memory::give_back();
        };
        blocking(work).await?;
        Ok(DefragmentResponse { header: None })
    }

    /// The hash of everything: of the keys, and then of the rest.
    pub(super) async fn hash(self: Arc<Self>, _: HashRequest) -> Result<HashResponse, Status> {
        let history = self.history_hash(0).await?;
        let mut rest = Vec::new();
        for (id, ttl_seconds) in self.pipeline.lease_ttls() {
            rest.extend(id.to_le_bytes());
            rest.extend(ttl_seconds.to_le_bytes());
        }
        for alarm in self.pipeline.status().alarms {
            rest.push(alarm.kind as u8);
            rest.extend(alarm.member_id.to_le_bytes());
        }
        let hash = crc32c::crc32c_append(history.hash, &rest);
        Ok(HashResponse { header: self.header(history.current), hash })
    }

    pub(super) async fn hash_kv(
        self: Arc<Self>,
        request: HashKvRequest,
    ) -> Result<HashKvResponse, Status> {
        let HistoryHash { hash, compact_revision, revision, current } =
            self.history_hash(request.revision).await?;
        let header = self.header(current);
        Ok(HashKvResponse { header, hash, compact_revision, hash_revision: revision })
    }

    async fn history_hash(&self, revision: i64) -> Result<HistoryHash, Status> {
        let pipeline = self.pipeline.clone();
        blocking(move || pipeline.hash(revision)).await?.map_err(status::from_pipeline)
    }

    /// A snapshot as `etcdctl snapshot save` wants it: the content, then its hash.
    /// Each chunk is made when the client has room for it.
    pub(super) fn snapshot(
        self: Arc<Self>,
        _: SnapshotRequest,
    ) -> impl Stream<Item = Result<SnapshotResponse, Status>> {
        stream::once(self.parts()).try_flatten()
    }

    async fn parts(
        self: Arc<Self>,
    ) -> Result<impl Stream<Item = Result<SnapshotResponse, Status>>, Status> {
        let pipeline = self.pipeline.clone();
        let export = blocking(move || pipeline.export()).await?.map_err(status::from_pipeline)?;
        tracing::info!(revision = export.revision(), "sending a snapshot");
        let header = self.header(export.revision());
        let parts = Parts::new(export).map(move |part| {
            let (blob, remaining_bytes) = part?;
            let version = STORAGE_VERSION.to_owned();
            Ok(SnapshotResponse { header, remaining_bytes, blob: blob.into(), version })
        });
        Ok(stream::iter(parts))
    }

    /// There is one member, and it leads.
    pub(super) async fn move_leader(
        self: Arc<Self>,
        request: MoveLeaderRequest,
    ) -> Result<MoveLeaderResponse, Status> {
        match request.target_id == self.pipeline.identity().member_id {
            true => Ok(MoveLeaderResponse { header: None }),
            false => Err(status::bad_leader_transferee()),
        }
    }

    pub(super) async fn downgrade(
        self: Arc<Self>,
        request: DowngradeRequest,
    ) -> Result<DowngradeResponse, Status> {
        let version = self.downgrade.request(&request)?;
        Ok(DowngradeResponse { header: self.header_now(), version })
    }

    /// The alarms that were raised, and that of a disk which is full right now.
    fn alarms(&self, state: &pipeline::PipelineStatus) -> Vec<AlarmMember> {
        let member_id = self.pipeline.identity().member_id;
        let disk = Alarm { kind: AlarmKind::NoSpace, member_id };
        let disk = (state.no_space && !state.alarms.contains(&disk)).then_some(disk);
        state.alarms.iter().copied().chain(disk).map(wire).collect()
    }
}

fn wire(alarm: Alarm) -> AlarmMember {
    AlarmMember { member_id: alarm.member_id, alarm: alarm.kind as i32 }
}

/// The blobs of a snapshot, each with the bytes still to come, roughly.
struct Parts {
    export: Export,
    /// `None` when the end has been sent.
    exporter: Option<Exporter>,
    /// What comes before the next chunk.
    ready: Vec<Vec<u8>>,
}

impl Parts {
    fn new(export: Export) -> Self {
        let (exporter, begin) = Exporter::new();
        Parts { export, exporter: Some(exporter), ready: vec![begin] }
    }
}

impl Iterator for Parts {
    type Item = Result<(Vec<u8>, u64), Status>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(part) = self.ready.pop() {
            let remaining = if self.exporter.is_some() { self.export.remaining_bytes() } else { 0 };
            return Some(Ok((part, remaining)));
        }
        let exporter = self.exporter.as_mut()?;
        match self.export.next() {
            Some(Ok(payload)) => {
                let part = exporter.chunk(&payload);
                Some(Ok((part, self.export.remaining_bytes())))
            }
            Some(Err(error)) => {
                self.exporter = None;
                Some(Err(status::from_pipeline(error)))
            }
            None => {
                let (end, hash) = self.exporter.take()?.finish();
                self.ready.push(hash);
                Some(Ok((end, 0)))
            }
        }
    }
}
