//! Maintenance service: the method Snapshot, which `etcdctl snapshot save` calls.

use std::sync::Arc;

use etcdpb::rpc::{SnapshotRequest, SnapshotResponse};
use futures_util::{Stream, TryStreamExt, stream};
use grpc::{Admission, Reservation, SlowRead, Status};
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
        self.require_admin(&admission)?;
        let pipeline = self.pipeline.clone();
        let export =
            move |slow: &SlowRead| pipeline.export_unless(&|held| slow.give_way_holding(held));
        let export = admission.run_slow(SMALL_REQUEST_BYTES, export).await?;
        let export = export.map_err(status::from_pipeline)?;
        let mut memory = admission.reserve();
        if !memory.resize(export.held_bytes()) {
            return Err(status::from_pipeline(pipeline::Error::TooManyRequests));
        }
        tracing::info!(revision = export.revision(), "sending a snapshot");
        let header = self.header(export.revision());
        let respond = move |(blob, remaining_bytes): (Vec<u8>, u64)| {
            let version = STORAGE_VERSION.to_owned();
            SnapshotResponse { header, remaining_bytes, blob: blob.into(), version }
        };
        let next = move |blobs| next_blob(blobs, admission.clone());
        Ok(stream::try_unfold(SnapshotBlobs::new(export, memory), next).map_ok(respond))
    }
}

/// Returns the next blob, and an estimate of the bytes after it. A blob for which much of the
/// store has to be visited is read on a blocking thread.
async fn next_blob(
    mut blobs: SnapshotBlobs,
    admission: Admission,
) -> Result<Option<((Vec<u8>, u64), SnapshotBlobs)>, Status> {
    if !blobs.start().map_err(status::from_pipeline)? {
        let read = move |slow: &SlowRead| {
            blobs.export.finish_chunk_unless(&|| slow.give_way()).map(|()| blobs)
        };
        let read = admission.run_slow(SMALL_REQUEST_BYTES, read).await?;
        blobs = read.map_err(status::from_pipeline)?;
    }
    blobs.release_memory();
    Ok(blobs.next().map(|blob| (blob, blobs)))
}

/// The blobs of a snapshot. Each has an estimate of the bytes after it. Before each call of
/// `next`, the next chunk of the export must be complete.
struct SnapshotBlobs {
    export: Export,
    /// Counts the memory of `export`.
    memory: Reservation,
    /// `None` after the end of the content.
    exporter: Option<Exporter>,
    /// Blobs to return before the next chunk is exported.
    pending: Vec<Vec<u8>>,
}

impl SnapshotBlobs {
    fn new(export: Export, memory: Reservation) -> Self {
        let (exporter, first) = Exporter::new();
        SnapshotBlobs { export, memory, exporter: Some(exporter), pending: vec![first] }
    }

    /// Returns the memory of what has been encoded.
    fn release_memory(&mut self) {
        // If there is no room for the few effects of a step, they are not counted.
        let _ = self.memory.resize(self.export.held_bytes());
    }

    /// Starts to read the next blob. Returns whether it is complete.
    fn start(&mut self) -> Result<bool, pipeline::Error> {
        match self.pending.is_empty() && self.exporter.is_some() {
            true => self.export.start_chunk(),
            false => Ok(true),
        }
    }
}

impl Iterator for SnapshotBlobs {
    type Item = (Vec<u8>, u64);

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(blob) = self.pending.pop() {
            let remaining = if self.exporter.is_some() { self.export.remaining_bytes() } else { 0 };
            return Some((blob, remaining));
        }
        let exporter = self.exporter.as_mut()?;
        match self.export.take_chunk() {
            Some(payload) => {
                let blob = exporter.encode_chunk(&payload);
                Some((blob, self.export.remaining_bytes()))
            }
            None => {
                let (end, hash) = self.exporter.take()?.finish();
                self.pending.push(hash);
                Some((end, 0))
            }
        }
    }
}
