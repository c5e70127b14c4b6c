//! The thread that takes snapshots while the store works, so that the log stays short.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_channel::{Receiver, Sender, bounded};
use files::Error;
use mvcc::{Effects, SnapshotCursor};
use snapshot::Snapshots;
use wal::Trimmer;

use crate::WalMode;
use crate::journal::{Journal, encode};
use crate::modes::Modes;
use crate::pace::{STEP, give_way};
use crate::pins::Pin;
use crate::shared_store::SharedStore;

/// The applier's end: starts a snapshot when the log has grown enough.
pub(crate) struct SnapshotTrigger {
    requests: Sender<SnapshotRequest>,
    progress: Arc<SnapshotProgress>,
    /// Least growth of the log between two snapshots.
    log_bytes: u64,
    /// Growth since the last snapshot.
    grown: u64,
}

/// Shared by the trigger and the snapshotter.
#[derive(Default)]
struct SnapshotProgress {
    /// Whether a snapshot is being taken.
    busy: AtomicBool,
    /// Size of the last snapshot.
    bytes: AtomicU64,
}

/// A started snapshot of the state after record `covered`.
struct SnapshotRequest {
    covered: u64,
    cursor: SnapshotCursor,
    /// The first effects of the snapshot.
    effects: Effects,
    /// Keeps the history that is still to be read.
    pin: Pin,
}

/// Writes the snapshots that the trigger starts, one at a time.
pub(crate) struct Snapshotter {
    requests: Receiver<SnapshotRequest>,
    progress: Arc<SnapshotProgress>,
    snapshots: Snapshots,
    trimmer: Trimmer,
    /// Keys whose writes are not logged are not in snapshots either.
    modes: Modes,
    shared: Arc<SharedStore>,
}

/// Creates the trigger and the snapshotter for the log that `trimmer` trims.
pub(crate) fn snapshotter(
    shared: Arc<SharedStore>,
    snapshots: Snapshots,
    trimmer: Trimmer,
    modes: Modes,
    log_bytes: u64,
) -> (SnapshotTrigger, Snapshotter) {
    let (requests, received) = bounded(1);
    let progress = Arc::<SnapshotProgress>::default();
    let trigger = SnapshotTrigger { requests, progress: progress.clone(), log_bytes, grown: 0 };
    (trigger, Snapshotter { requests: received, progress, snapshots, trimmer, modes, shared })
}

impl SnapshotTrigger {
    /// Adds `bytes` to the growth of the log and starts a snapshot if it is enough.
    /// Called between batches, when the store is in the state of the newest record.
    pub(crate) fn log_grew(&mut self, shared: &Arc<SharedStore>, bytes: usize, journal: &Journal) {
        self.grown += bytes as u64;
        let enough = self.log_bytes.max(self.progress.bytes.load(Ordering::Relaxed));
        if self.grown < enough || self.progress.busy.swap(true, Ordering::AcqRel) {
            return;
        }
        self.grown = 0;
        let store = shared.store.read();
        let mut effects = journal.snapshot_header();
        let cursor = SnapshotCursor::new(&store, &mut effects);
        let pin = Pin::new(&shared.pins, cursor.floor(), None);
        // The channel has room, because no snapshot is being taken (`busy`).
        let covered = journal.last();
        let _ = self.requests.try_send(SnapshotRequest { covered, cursor, effects, pin });
    }
}

impl Snapshotter {
    /// Runs until the trigger is dropped.
    pub(crate) fn run(self) {
        while let Ok(request) = self.requests.recv() {
            let covered = request.covered;
            match self.take(request) {
                Ok(Some(bytes)) => {
                    tracing::info!(covered, bytes, "snapshot taken");
                    self.progress.bytes.store(bytes, Ordering::Relaxed);
                }
                Ok(None) => tracing::info!(covered, "snapshot abandoned, the store is stopping"),
                // Nothing is lost, because the log is not trimmed. The next snapshot may succeed.
                Err(error) => tracing::warn!(covered, %error, "snapshot failed"),
            }
            self.progress.busy.store(false, Ordering::Release);
        }
    }

    /// Writes a snapshot, and removes the log and the snapshots before it. Returns its
    /// size in bytes, or `None` if the store stops before it is complete.
    fn take(&self, mut request: SnapshotRequest) -> Result<Option<u64>, Error> {
        let mut writer = self.snapshots.create(request.covered)?;
        let mut payload = Vec::new();
        let mut more = true;
        while more {
            if self.shared.stopping.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let store = self.shared.store.read();
            more = request.cursor.step(&store, STEP, &mut request.effects);
            drop(store);
            give_way();
            request.effects.retain(|effect| self.modes.of_effect(effect) != WalMode::None);
            if !request.effects.is_empty() {
                encode(&request.effects, &mut payload);
                writer.chunk(&payload)?;
                request.effects.clear();
            }
        }
        drop(request.pin);
        let bytes = writer.finish()?;
        self.trimmer.trim(request.covered)?;
        self.snapshots.trim()?;
        Ok(Some(bytes))
    }
}
