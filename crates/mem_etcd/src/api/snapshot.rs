//! Maintenance service: the method Snapshot, which `etcdctl snapshot save` calls.

use std::sync::Arc;

use etcdpb::rpc::{SnapshotRequest, SnapshotResponse};
use futures_util::{Stream, TryStreamExt, stream};
use grpc::{Admission, Cancelled, Status};
use pipeline::Export;
use snapshot::Exporter;

use super::service::{Api, SMALL_REQUEST_BYTES};
use super::status;
use crate::config::STORAGE_VERSION;

impl Api {
    /// Streams the content of the store, and then the hash of the content. A blob is
    /// encoded only after the client has read enough of the previous blobs.
    pub(super) fn snapshot(
        self: Arc<Self>,
        _: SnapshotRequest,
        admission: Admission,
    ) -> impl Stream<Item = Result<SnapshotResponse, Status>> {
        stream::once(self.snapshot_blobs(admission)).try_flatten()
    }

    async fn snapshot_blobs(
        self: Arc<Self>,
        admission: Admission,
    ) -> Result<impl Stream<Item = Result<SnapshotResponse, Status>>, Status> {
        let pipeline = self.pipeline.clone();
        let export = move |cancelled: &Cancelled| pipeline.export_unless(&|| cancelled.is_set());
        let export = admission.run_slow(SMALL_REQUEST_BYTES, export).await?;
        let export = export.map_err(status::from_pipeline)?;
        tracing::info!(revision = export.revision(), "sending a snapshot");
        let header = self.header(export.revision());
        let responses = SnapshotBlobs::new(export).map(move |blob| {
            let (blob, remaining_bytes) = blob?;
            let version = STORAGE_VERSION.to_owned();
            Ok(SnapshotResponse { header, remaining_bytes, blob: blob.into(), version })
        });
        Ok(stream::iter(responses))
    }
}

/// Iterates over the blobs of a snapshot. Each has an estimate of the bytes after it.
struct SnapshotBlobs {
    export: Export,
    /// `None` after the end of the content, or after an error.
    exporter: Option<Exporter>,
    /// Blobs to return before the next chunk is exported.
    pending: Vec<Vec<u8>>,
}

impl SnapshotBlobs {
    fn new(export: Export) -> Self {
        let (exporter, first) = Exporter::new();
        SnapshotBlobs { export, exporter: Some(exporter), pending: vec![first] }
    }
}

impl Iterator for SnapshotBlobs {
    type Item = Result<(Vec<u8>, u64), Status>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(blob) = self.pending.pop() {
            let remaining = if self.exporter.is_some() { self.export.remaining_bytes() } else { 0 };
            return Some(Ok((blob, remaining)));
        }
        let exporter = self.exporter.as_mut()?;
        match self.export.next() {
            Some(Ok(payload)) => {
                let blob = exporter.encode_chunk(&payload);
                Some(Ok((blob, self.export.remaining_bytes())))
            }
            Some(Err(error)) => {
                self.exporter = None;
                Some(Err(status::from_pipeline(error)))
            }
            None => {
                let (end, hash) = self.exporter.take()?.finish();
                self.pending.push(hash);
                Some(Ok((end, 0)))
            }
        }
    }
}
