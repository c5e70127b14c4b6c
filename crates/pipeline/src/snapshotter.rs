//! The thread that takes snapshots while the store serves requests. After a snapshot it
//! removes the log before the previous one, which limits the size of the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use files::Error;
use mvcc::{Effects, SnapshotCursor};
use snapshot::Snapshots;
use wal::{SpaceClaim, Trimmer};

use crate::WalMode;
use crate::journal::{Journal, encode};
use crate::modes::Modes;
use crate::pace::{STEP_ENTRIES, yield_thread};
use crate::pins::Pin;
use crate::retry::Retry;
use crate::shared_store::SharedStore;
use crate::store_recovery::RecoveredSizes;

/// While a snapshot is read back, the thread pauses after this many bytes. Reading and verifying
/// them takes about a millisecond. Without the pauses, it would use a core without interruption.
const READ_BACK_BYTES: u64 = 1 << 20;
const READ_BACK_PAUSE: Duration = Duration::from_millis(1);

/// Starts a snapshot when the log has grown enough. The applier owns it.
pub(crate) struct SnapshotTrigger {
    requests: Sender<SnapshotRequest>,
    progress: Arc<SnapshotProgress>,
    /// Minimum growth of the log between two snapshots in bytes.
    min_growth_bytes: u64,
    /// Growth of the log since the last snapshot was started, in bytes. A restart does not
    /// change it.
    grown_bytes: u64,
}

/// The state that the trigger and the snapshotter share.
#[derive(Default)]
struct SnapshotProgress {
    /// Whether a snapshot is being taken.
    busy: AtomicBool,
    /// Size of the last snapshot in bytes.
    bytes: AtomicU64,
    /// When a snapshot that failed is tried again, however little the log has grown.
    retry: Retry,
}

/// A started snapshot of the store after record `covered`.
struct SnapshotRequest {
    covered: u64,
    cursor: SnapshotCursor,
    /// The first effects of the snapshot.
    effects: Effects,
    /// Keeps the history that the cursor still has to read.
    pin: Pin,
}

/// Writes the snapshots that the trigger starts, one at a time.
pub(crate) struct Snapshotter {
    requests: Receiver<SnapshotRequest>,
    progress: Arc<SnapshotProgress>,
    snapshots: Snapshots,
    trimmer: Trimmer,
    /// The trigger sets it.
    space_claim: SpaceClaim,
    /// Snapshots omit the keys whose writes are not logged.
    modes: Modes,
    shared: Arc<SharedStore>,
}

/// Creates the trigger, and the snapshotter, which trims the log of `journal`. `sizes` are those
/// of the recovered files.
pub(crate) fn snapshotter(
    shared: Arc<SharedStore>,
    snapshots: Snapshots,
    journal: &Journal,
    modes: Modes,
    min_growth_bytes: u64,
    sizes: RecoveredSizes,
) -> (SnapshotTrigger, Snapshotter) {
    let (requests, received) = bounded(1);
    let progress = Arc::<SnapshotProgress>::default();
    progress.bytes.store(sizes.snapshot_bytes, Ordering::Relaxed);
    let (progress_of_trigger, grown_bytes) = (progress.clone(), sizes.log_bytes);
    let trigger =
        SnapshotTrigger { requests, progress: progress_of_trigger, min_growth_bytes, grown_bytes };
    let (requests, trimmer, space_claim) = (received, journal.trimmer(), journal.space_claim());
    let snapshotter =
        Snapshotter { requests, progress, snapshots, trimmer, space_claim, modes, shared };
    (trigger, snapshotter)
}

impl SnapshotTrigger {
    /// Starts a snapshot if the log has grown enough, or if the last one has failed some time
    /// ago. Call it after a round or a record of the idle store has been logged, and before the
    /// next round is applied: the store then contains exactly the changes of the log. Fails if
    /// the log fails.
    pub(crate) fn start_if_due(
        &mut self,
        shared: &Arc<SharedStore>,
        journal: &mut Journal,
    ) -> Result<(), Error> {
        self.grown_bytes += journal.take_growth();
        let required = self.min_growth_bytes.max(self.progress.bytes.load(Ordering::Relaxed));
        let is_due = self.grown_bytes >= required || self.progress.retry.is_due(Instant::now);
        if !is_due || self.progress.busy.load(Ordering::Acquire) {
            return Ok(());
        }
        match journal.sync_for_snapshot() {
            // The next call tries it again.
            Err(Error::NoSpace { .. }) => return Ok(()),
            synced => synced?,
        }
        self.progress.busy.store(true, Ordering::Release);
        self.grown_bytes = 0;
        update_clock(shared, journal);
        let store = shared.store.read();
        let mut effects = journal.snapshot_header();
        // The log leaves this space free. The snapshot is not larger than the store.
        let bytes = store.stats().total_bytes.max(1) as u64;
        journal.space_claim().set(bytes.max(self.progress.bytes.load(Ordering::Relaxed)));
        let cursor = SnapshotCursor::new(&store, &mut effects);
        let pin = Pin::new(&shared.pins, cursor.oldest_needed_revision(), None);
        // The channel has room, because no snapshot is being taken (`busy`).
        let covered = journal.last_sequence();
        let _ = self.requests.try_send(SnapshotRequest { covered, cursor, effects, pin });
        Ok(())
    }
}

/// Sets the store time, which the snapshot contains. A covered record may contain a later one
/// than the last round.
fn update_clock(shared: &SharedStore, journal: &Journal) {
    let clock_ms = shared.clock.time_ms(Instant::now());
    let mut store = shared.store.write();
    store.tick(clock_ms);
    if let Some(renewed) = journal.unlogged_renewals(clock_ms) {
        store.replay(renewed).expect("replaying a lease renewal never fails");
    }
}

impl Snapshotter {
    /// Runs until the trigger is dropped.
    pub(crate) fn run(self) {
        while let Ok(request) = self.requests.recv() {
            let covered = request.covered;
            match self.take_snapshot(request) {
                Ok(Some(bytes)) => {
                    tracing::info!(covered, bytes, "snapshot taken");
                    self.progress.bytes.store(bytes, Ordering::Relaxed);
                    self.progress.retry.succeeded();
                    if let Err(error) = self.remove_older() {
                        tracing::warn!(%error, "could not remove what the snapshots replace");
                    }
                }
                Ok(None) => tracing::info!(covered, "snapshot abandoned, the store is stopping"),
                // The log is not trimmed, so nothing is lost. The next snapshot may
                // succeed.
                Err(error) => {
                    tracing::warn!(covered, %error, "snapshot failed");
                    self.progress.retry.failed(Instant::now());
                }
            }
            self.space_claim.set(0);
            self.progress.busy.store(false, Ordering::Release);
        }
    }

    /// Writes a snapshot. Returns its size in bytes, or `None` if the store stops before it
    /// is complete. If this fails, no file is left: the log may need its space.
    fn take_snapshot(&self, mut request: SnapshotRequest) -> Result<Option<u64>, Error> {
        let mut writer = self.snapshots.create(request.covered)?;
        let mut payload = Vec::new();
        let mut more = true;
        while more {
            if self.shared.stopping.load(Ordering::Relaxed) {
                writer.abandon()?;
                return Ok(None);
            }
            let store = self.shared.store.read();
            more = request.cursor.step(&store, STEP_ENTRIES, &mut request.effects);
            drop(store);
            yield_thread();
            request.effects.retain(|effect| self.modes.of_effect(effect) != WalMode::None);
            if !request.effects.is_empty() {
                encode(&request.effects, &mut payload);
                writer.write_chunk(&payload)?;
                request.effects.clear();
            }
        }
        drop(request.pin);
        let mut paused_at = 0;
        writer.finish_unless(|read| {
            if read - paused_at >= READ_BACK_BYTES {
                paused_at = read;
                std::thread::sleep(READ_BACK_PAUSE);
            }
            self.shared.stopping.load(Ordering::Relaxed)
        })
    }

    /// Removes older snapshots, and the log that none of the remaining ones needs.
    fn remove_older(&self) -> Result<(), Error> {
        let covered = self.snapshots.remove_older()?;
        self.trimmer.trim(covered)
    }
}
