//! Maintenance service: hashes of the store.

use std::sync::Arc;

use etcdpb::rpc::{HashKvRequest, HashKvResponse, HashRequest, HashResponse};
use grpc::{Admission, SlowRead, Status};
use pipeline::HistoryHash;

use super::service::{Api, SMALL_REQUEST_BYTES};
use super::status;

impl Api {
    /// Hashes keys, history, leases and alarms.
    pub(super) async fn hash(
        self: Arc<Self>,
        _: HashRequest,
        admission: Admission,
    ) -> Result<HashResponse, Status> {
        let history = self.history_hash(0, admission).await?;
        let mut leases_and_alarms = Vec::new();
        for (id, ttl_seconds) in self.pipeline.lease_ttls() {
            leases_and_alarms.extend(id.to_le_bytes());
            leases_and_alarms.extend(ttl_seconds.to_le_bytes());
        }
        for alarm in self.pipeline.status().alarms {
            leases_and_alarms.push(alarm.kind as u8);
            leases_and_alarms.extend(alarm.member_id.to_le_bytes());
        }
        let hash = crc32c::crc32c_append(history.hash, &leases_and_alarms);
        Ok(HashResponse { header: self.header(history.current), hash })
    }

    pub(super) async fn hash_kv(
        self: Arc<Self>,
        request: HashKvRequest,
        admission: Admission,
    ) -> Result<HashKvResponse, Status> {
        let HistoryHash { hash, compact_revision, revision, current } =
            self.history_hash(request.revision, admission).await?;
        let header = self.header(current);
        Ok(HashKvResponse { header, hash, compact_revision, hash_revision: revision })
    }

    async fn history_hash(
        &self,
        revision: i64,
        admission: Admission,
    ) -> Result<HistoryHash, Status> {
        let pipeline = self.pipeline.clone();
        let hash = move |slow: &SlowRead| pipeline.hash_unless(revision, &|| slow.give_way());
        admission.run_slow(SMALL_REQUEST_BYTES, hash).await?.map_err(status::from_pipeline)
    }
}
