//! Maintenance service: hashes of the store.

use std::sync::Arc;

use etcdpb::rpc::{HashKvRequest, HashKvResponse, HashRequest, HashResponse};
use grpc::{Admission, SlowRead, Status};
use pipeline::HistoryHash;

use super::service::{Api, SMALL_REQUEST_BYTES};
use super::status;

impl Api {
    /// Hashes keys, history, leases, alarms, users and roles.
    pub(super) async fn hash(
        self: Arc<Self>,
        _: HashRequest,
        admission: Admission,
    ) -> Result<HashResponse, Status> {
        self.require_admin(&admission)?;
        let pipeline = self.pipeline.clone();
        let hash = move |slow: &SlowRead| {
            let stops = |held| slow.give_way_holding(held);
            let history = pipeline.hash_unless(0, &stops)?;
            let mut hash = history.hash;
            for (id, ttl_seconds) in pipeline.lease_ttls_unless(&stops)? {
                hash = crc32c::crc32c_append(hash, &id.to_le_bytes());
                hash = crc32c::crc32c_append(hash, &ttl_seconds.to_le_bytes());
            }
            for alarm in pipeline.status().alarms {
                hash = crc32c::crc32c_append(hash, &[alarm.kind as u8]);
                hash = crc32c::crc32c_append(hash, &alarm.member_id.to_le_bytes());
            }
            for change in auth::Export::new(pipeline.auth()) {
                hash = crc32c::crc32c_append(hash, &change.kind.encode_content());
            }
            Ok((hash, history.current))
        };
        let hashed = admission.run_slow(SMALL_REQUEST_BYTES, hash).await?;
        let (hash, current) = hashed.map_err(status::from_pipeline)?;
        Ok(HashResponse { header: self.header(current), hash })
    }

    pub(super) async fn hash_kv(
        self: Arc<Self>,
        request: HashKvRequest,
        admission: Admission,
    ) -> Result<HashKvResponse, Status> {
        self.require_admin(&admission)?;
        let pipeline = self.pipeline.clone();
        let HashKvRequest { revision } = request;
        let hash = move |slow: &SlowRead| {
            pipeline.hash_unless(revision, &|held| slow.give_way_holding(held))
        };
        let hashed = admission.run_slow(SMALL_REQUEST_BYTES, hash).await?;
        let HistoryHash { hash, compact_revision, revision, current } =
            hashed.map_err(status::from_pipeline)?;
        let header = self.header(current);
        Ok(HashKvResponse { header, hash, compact_revision, hash_revision: revision })
    }
}
