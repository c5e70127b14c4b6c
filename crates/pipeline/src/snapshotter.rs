//! Takes snapshots beside the work, so that the log can be kept short.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_channel::{Receiver, Sender, bounded};
use mvcc::{Effects, SnapshotCursor, Store};
use wal::{Error, SnapshotWriter, Snapshots, Trimmer};

use crate::WalMode;
use crate::journal::{Journal, encode};
use crate::modes::Modes;
use crate::pace::{STEP, give_way};
use crate::pipeline::Shared;
use crate::read::Pin;

/// Decides, for the worker, when a snapshot is due.
pub(crate) struct Trigger {
    requests: Sender<Request>,
    progress: Arc<Progress>,
    /// The least growth of the log between two snapshots.
    log_bytes: u64,
    grown: u64,
}

/// What the worker and the snapshotter both see.
#[derive(Default)]
struct Progress {
    busy: AtomicBool,
    /// Size of the last snapshot.
    bytes: AtomicU64,
}

/// A snapshot of the state after record `covered`, begun.
struct Request {
    covered: u64,
    cursor: SnapshotCursor,
    /// Its beginning.
    effects: Effects,
    /// Keeps the history that it still has to read.
    pin: Pin,
}

/// Writes the snapshots that the trigger begins, one after the other.
pub(crate) struct Snapshotter {
    requests: Receiver<Request>,
    progress: Arc<Progress>,
    snapshots: Snapshots,
    trimmer: Trimmer,
    /// What is not logged is not in a snapshot either.
    modes: Modes,
    shared: Arc<Shared>,
}

/// The two ends, for a log that `trimmer` shortens.
pub(crate) fn snapshotter(
    shared: Arc<Shared>,
    snapshots: Snapshots,
    trimmer: Trimmer,
    modes: Modes,
    log_bytes: u64,
) -> (Trigger, Snapshotter) {
    let (requests, received) = bounded(1);
    let progress = Arc::<Progress>::default();
    let trigger = Trigger { requests, progress: progress.clone(), log_bytes, grown: 0 };
    (trigger, Snapshotter { requests: received, progress, snapshots, trimmer, modes, shared })
}

impl Trigger {
    /// Notes that the log has grown by `bytes`, and begins a snapshot if one is
    /// due. Called between batches, when the state is that of the last record.
    pub(crate) fn grown(&mut self, shared: &Arc<Shared>, bytes: usize, journal: &Journal) {
        self.grown += bytes as u64;
        let enough = self.log_bytes.max(self.progress.bytes.load(Ordering::Relaxed));
        if self.grown < enough || self.progress.busy.swap(true, Ordering::AcqRel) {
            return;
        }
        self.grown = 0;
        let store = shared.store.read();
        let mut effects = journal.preface();
        let cursor = SnapshotCursor::new(&store, &mut effects);
        let pin = Pin::new(shared, cursor.floor(), None);
        // There is room: the one before is done, as `busy` says.
        let covered = journal.last();
        let _ = self.requests.try_send(Request { covered, cursor, effects, pin });
    }
}

impl Snapshotter {
    /// Works until the trigger is gone.
    pub(crate) fn run(self) {
        while let Ok(request) = self.requests.recv() {
            let covered = request.covered;
            match self.take(request) {
                Ok(Some(bytes)) => {
                    tracing::info!(covered, bytes, "snapshot taken");
                    self.progress.bytes.store(bytes, Ordering::Relaxed);
                }
                Ok(None) => tracing::info!(covered, "snapshot given up: the store is ending"),
                // The log stays whole, so nothing is lost; the next one may do.
                Err(error) => tracing::warn!(covered, %error, "snapshot failed"),
            }
            self.progress.busy.store(false, Ordering::Release);
        }
    }

    /// Writes a snapshot and removes what it makes superfluous; its size, or
    /// `None` if the store ends before it is done.
    fn take(&self, mut request: Request) -> Result<Option<u64>, Error> {
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

/// Writes all of a store that nobody else uses, behind `effects`.
pub(crate) fn write_all(
    store: &Store,
    mut effects: Effects,
    mut writer: SnapshotWriter,
) -> Result<(), Error> {
    /// Keys or events of one chunk.
    const STEP: usize = 1000;
    let mut cursor = SnapshotCursor::new(store, &mut effects);
    let mut payload = Vec::new();
    let mut more = true;
    while more {
        more = cursor.step(store, STEP, &mut effects);
        if !effects.is_empty() {
            encode(&effects, &mut payload);
            writer.chunk(&payload)?;
            effects.clear();
        }
    }
    writer.finish().map(drop)
}
