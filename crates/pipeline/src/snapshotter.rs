//! The thread that takes snapshots while the store serves requests. After a snapshot it
//! removes the log before the previous one, which limits the size of the log.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded};
use files::Error;
use mvcc::{Effect, Effects, SnapshotCursor};
use snapshot::Snapshots;
use wal::{SpaceClaim, Trimmer};

use crate::WalMode;
use crate::journal::Journal;
use crate::modes::Modes;
use crate::pins::Pin;
use crate::retry::Retry;
use crate::shared_store::SharedStore;
use crate::snapshot_write::write_running;
use crate::store_recovery::RecoveredSizes;

/// A snapshot is due when the log after the older of the two kept snapshots has this many times
/// the size by which it must grow between two snapshots. If no snapshot takes long, that is when
/// it has grown by this size since the newer one.
const KEPT_INTERVALS: u64 = 2;

/// Starts a snapshot when the log has grown enough. The applier owns it.
pub(crate) struct SnapshotTrigger {
    requests: Sender<SnapshotRequest>,
    progress: Arc<SnapshotProgress>,
    /// Minimum growth of the log between two snapshots in bytes.
    min_growth_bytes: u64,
    /// Growth of the log since the last snapshot was started, in bytes. A restart does not
    /// change it.
    grown_bytes: u64,
    /// End of the log: its size in bytes since a fixed record. [`SnapshotProgress`] has offsets
    /// of the same kind.
    end: u64,
    /// Whether the snapshots are on the disk of the log.
    shares_disk: bool,
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
    /// Where the log after the newest snapshot begins.
    newest_end: AtomicU64,
    /// Where the log after the snapshot before it begins. The log is kept from here on.
    older_end: AtomicU64,
}

/// A started snapshot of the store after record `covered`.
struct SnapshotRequest {
    covered: u64,
    /// End of the log after the record `covered`.
    end: u64,
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
/// of the recovered files. `log_dir` is the directory of the log.
pub(crate) fn snapshotter(
    shared: Arc<SharedStore>,
    snapshots: Snapshots,
    log_dir: &Path,
    journal: &Journal,
    modes: Modes,
    min_growth_bytes: u64,
    sizes: RecoveredSizes,
) -> (SnapshotTrigger, Snapshotter) {
    let (requests, received) = bounded(1);
    let progress = Arc::<SnapshotProgress>::default();
    progress.bytes.store(sizes.snapshot_bytes, Ordering::Relaxed);
    let (grown_bytes, end) = (sizes.log_bytes, sizes.kept_log_bytes);
    progress.newest_end.store(end.saturating_sub(grown_bytes), Ordering::Relaxed);
    let progress_of_trigger = progress.clone();
    let trigger = SnapshotTrigger {
        requests,
        progress: progress_of_trigger,
        min_growth_bytes,
        grown_bytes,
        end,
        shares_disk: share_disk(log_dir, snapshots.directory()),
    };
    let (requests, trimmer, space_claim) = (received, journal.trimmer(), journal.space_claim());
    let snapshotter =
        Snapshotter { requests, progress, snapshots, trimmer, space_claim, modes, shared };
    (trigger, snapshotter)
}

/// Whether two directories are on the same file system. If that is unknown, they may be. Wrong
/// for file systems that share their space but not their number, such as btrfs subvolumes.
fn share_disk(a: &Path, b: &Path) -> bool {
    let device = |path: &Path| path.metadata().map(|metadata| metadata.dev()).ok();
    device(a).zip(device(b)).is_none_or(|(a, b)| a == b)
}

impl SnapshotTrigger {
    /// Starts a snapshot if one is due. Call it after a round or a record of the idle store has
    /// been logged, and before the next round is applied: the store then contains exactly the
    /// changes of the log. Fails only if the log has failed.
    pub(crate) fn start_if_due(
        &mut self,
        shared: &Arc<SharedStore>,
        journal: &mut Journal,
    ) -> Result<(), Error> {
        self.count_growth(journal);
        if self.progress.busy.load(Ordering::Acquire) || !self.is_due() {
            return Ok(());
        }
        match self.separate(journal).and_then(|()| journal.sync_for_snapshot()) {
            // The next call tries it again.
            Err(Error::NoSpace { .. }) => return Ok(()),
            // Likewise: the log is undamaged. An example is that no file descriptor is free.
            Err(error) if !journal.has_failed() => {
                tracing::warn!(%error, "could not start a snapshot, trying again");
                return Ok(());
            }
            separated => separated?,
        }
        self.start(shared, journal);
        Ok(())
    }

    fn count_growth(&mut self, journal: &mut Journal) {
        let growth = journal.take_growth();
        self.grown_bytes += growth;
        self.end += growth;
    }

    /// Whether the log has grown enough, a failed snapshot is to be tried again, or the log
    /// that is kept is too long.
    ///
    /// The last is the case after a snapshot that took long: the next one covers all that was
    /// written meanwhile, and only the snapshot after that one allows the store to remove it. If
    /// the writes stop, or the disk is full, the log does not grow until that snapshot is due.
    fn is_due(&self) -> bool {
        let progress = &self.progress;
        let required = self.min_growth_bytes.max(progress.bytes.load(Ordering::Relaxed));
        let kept = self.end - progress.older_end.load(Ordering::Relaxed);
        self.grown_bytes >= required
            || kept >= required.saturating_mul(KEPT_INTERVALS) && !progress.retry.has_failed()
            || progress.retry.is_due(Instant::now)
    }

    /// Appends an empty record if there is none after the newest snapshot: the name of a snapshot
    /// is the last record that it covers.
    fn separate(&mut self, journal: &mut Journal) -> Result<(), Error> {
        if self.end == self.progress.newest_end.load(Ordering::Relaxed) {
            journal.append_empty()?;
            self.count_growth(journal);
        }
        Ok(())
    }

    fn start(&mut self, shared: &Arc<SharedStore>, journal: &Journal) {
        self.progress.busy.store(true, Ordering::Release);
        self.grown_bytes = 0;
        update_clock(shared, journal);
        let store = shared.store.read();
        let mut effects = journal.snapshot_header();
        if self.shares_disk {
            // The log leaves this space free. The snapshot is not larger than the store.
            let bytes = store.stats().total_bytes.max(1) as u64;
            journal.space_claim().set(bytes.max(self.progress.bytes.load(Ordering::Relaxed)));
        }
        let cursor = SnapshotCursor::new(&store, &mut effects);
        let pin = Pin::new(&shared.pins, cursor.oldest_needed_revision(), None);
        // The channel has room, because no snapshot is being taken (`busy`).
        let covered = journal.last_sequence();
        let end = self.end;
        let _ = self.requests.try_send(SnapshotRequest { covered, end, cursor, effects, pin });
    }
}

impl SnapshotProgress {
    /// Notes a complete snapshot of `bytes` bytes, after which the log begins at `end`.
    fn succeeded(&self, bytes: u64, end: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
        self.older_end.store(self.newest_end.swap(end, Ordering::Relaxed), Ordering::Relaxed);
        self.retry.succeeded();
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
            self.handle(request);
        }
    }

    /// Takes a snapshot, and removes what it replaces.
    fn handle(&self, request: SnapshotRequest) {
        let (covered, end) = (request.covered, request.end);
        match self.take_snapshot(request) {
            Ok(Some(bytes)) => {
                tracing::info!(covered, bytes, "snapshot taken");
                self.progress.succeeded(bytes, end);
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

    /// Writes a snapshot. Returns its size in bytes, or `None` if the store stops before it
    /// is complete. If this fails, no file is left: the log may need its space.
    fn take_snapshot(&self, request: SnapshotRequest) -> Result<Option<u64>, Error> {
        let SnapshotRequest { covered, cursor, effects, pin, .. } = request;
        let writer = self.snapshots.create(covered)?;
        let keep = |effect: &Effect| self.modes.of_effect(effect) != WalMode::None;
        write_running(&self.shared, cursor, effects, pin, writer, keep)
    }

    /// Removes older snapshots, and the log that none of the remaining ones needs.
    fn remove_older(&self) -> Result<(), Error> {
        let covered = self.snapshots.remove_older()?;
        self.trimmer.trim(covered)
    }
}

#[cfg(test)]
mod tests {
    use data_dir::{DataDir, Identity};

    use super::*;
    use crate::PipelineOptions;
    use crate::journal::StorePosition;
    use crate::store_recovery;

    const LIMIT: u64 = 4 << 20;
    const CLOCK: StorePosition = StorePosition { revision: 1, clock_ms: 0, has_leases: false };

    /// A store whose snapshots take as long as the test wants.
    struct Fixture {
        shared: Arc<SharedStore>,
        journal: Journal,
        trigger: SnapshotTrigger,
        snapshotter: Snapshotter,
        dir: DataDir,
    }

    impl Fixture {
        fn open(path: &Path) -> Fixture {
            let options = PipelineOptions {
                data_dir: path.to_owned(),
                snapshot_log_bytes: LIMIT,
                boot_id: b"boot".to_vec(),
                ..PipelineOptions::default()
            };
            let identity = Identity { cluster_id: 1, member_id: 2 };
            let new = |dir: &DataDir| snapshot::create_manifest(&dir.manifest());
            let dir = DataDir::open(path, identity, new).unwrap();
            let medium = store_recovery::medium(&dir).unwrap();
            let recovered = store_recovery::recover(&dir, medium, &options).unwrap();
            let modes = Modes::new(WalMode::Buffered, &[]).unwrap();
            let (store, resumption) = (recovered.store, &recovered.resumption);
            let mut journal =
                Journal::new(recovered.log, modes.clone(), b"boot", &store, resumption);
            journal.log_opening().unwrap();
            let shared = Arc::new(SharedStore::new(store, &options));
            let (snapshots, sizes) = (recovered.snapshots, recovered.sizes);
            let (trigger, snapshotter) = snapshotter(
                shared.clone(),
                snapshots,
                &dir.log_dir(),
                &journal,
                modes,
                LIMIT,
                sizes,
            );
            Fixture { shared, journal, trigger, snapshotter, dir }
        }

        /// Logs about `bytes` bytes that change nothing.
        fn log(&mut self, bytes: u64) {
            let effects = vec![Effect::Clock { ms: 0 }; 10_000];
            let end = self.journal.appended_bytes() + bytes;
            while self.journal.appended_bytes() < end {
                self.journal.prepare(&effects, CLOCK);
                self.journal.write().unwrap();
            }
        }

        /// Appends records until the log needs another segment, which cannot be created.
        fn fill_segment(&mut self) {
            for count in [100_000, 1000, 1] {
                let effects = vec![Effect::Clock { ms: 0 }; count];
                let mut append = || {
                    self.journal.prepare(&effects, CLOCK);
                    self.journal.write()
                };
                while append().is_ok() {}
            }
            while self.journal.append_empty().is_ok() {}
            assert!(!self.journal.has_failed());
        }

        /// Returns the snapshot that is started if one is due.
        fn start(&mut self) -> Option<SnapshotRequest> {
            self.trigger.start_if_due(&self.shared, &mut self.journal).unwrap();
            self.snapshotter.requests.try_recv().ok()
        }

        /// The first snapshot takes so long that the log grows by eight intervals. The second
        /// one covers them.
        fn take_slow_snapshot(&mut self) {
            self.log(LIMIT);
            let slow = self.start().expect("the log has grown");
            self.log(8 * LIMIT);
            assert!(self.start().is_none(), "two snapshots at a time");
            self.snapshotter.handle(slow);
            let next = self.start().expect("the log has grown");
            self.snapshotter.handle(next);
            assert!(self.log_bytes() >= 8 * LIMIT);
        }

        fn log_bytes(&self) -> u64 {
            store_recovery::files_bytes(&self.dir, None)
        }
    }

    #[test]
    fn a_log_that_is_long_after_a_slow_snapshot_is_removed_without_further_writes() {
        let root = tempfile::tempdir().unwrap();
        let mut store = Fixture::open(root.path());
        store.take_slow_snapshot();
        let covered = store.journal.last_sequence();
        let third = store.start().expect("the log is too long");
        assert_eq!(third.covered, covered + 1, "it needs a name of its own");
        store.snapshotter.handle(third);
        assert!(store.log_bytes() <= LIMIT, "{} bytes of log", store.log_bytes());
        assert!(store.start().is_none(), "nothing was written after the last snapshot");
    }

    #[test]
    fn a_log_that_is_long_after_a_slow_snapshot_is_removed_after_a_restart() {
        let root = tempfile::tempdir().unwrap();
        let mut store = Fixture::open(root.path());
        store.take_slow_snapshot();
        drop(store);
        let mut store = Fixture::open(root.path());
        let third = store.start().expect("the log is too long");
        store.snapshotter.handle(third);
        assert!(store.log_bytes() <= LIMIT, "{} bytes of log", store.log_bytes());
        assert!(store.start().is_none(), "nothing was written after the last snapshot");
        drop(store);
        assert!(Fixture::open(root.path()).start().is_none(), "the log is short");
    }

    /// The log cannot create a file for a while, for example because no file descriptor is free.
    #[test]
    fn a_log_that_cannot_grow_does_not_stop_the_store() {
        let root = tempfile::tempdir().unwrap();
        let mut store = Fixture::open(root.path());
        store.log(LIMIT);
        let slow = store.start().expect("the log has grown");
        store.log(8 * LIMIT);
        store.snapshotter.handle(slow);
        let (log, away) = (store.dir.log_dir(), root.path().join("away"));
        std::fs::rename(&log, &away).unwrap();
        store.fill_segment();
        let next = store.start().expect("the log has grown");
        store.snapshotter.handle(next);
        // The third one needs a record before it.
        assert!(store.start().is_none());
        assert!(!store.journal.has_failed());
        std::fs::rename(&away, &log).unwrap();
        let third = store.start().expect("the log is too long");
        store.snapshotter.handle(third);
        store.log(LIMIT);
    }

    #[test]
    fn a_snapshot_on_another_disk_claims_no_space_of_the_log() {
        let root = tempfile::tempdir().unwrap();
        assert!(share_disk(root.path(), &root.path().join("missing")), "may be the same");
        assert!(!share_disk(root.path(), Path::new("/proc")));
        for shares_disk in [true, false] {
            let mut store = Fixture::open(&root.path().join(shares_disk.to_string()));
            assert!(store.trigger.shares_disk);
            store.trigger.shares_disk = shares_disk;
            store.log(LIMIT);
            let request = store.start().expect("the log has grown");
            assert_eq!(store.journal.space_claim().bytes() > 0, shares_disk);
            store.snapshotter.handle(request);
            assert_eq!(store.journal.space_claim().bytes(), 0);
        }
    }

    /// A snapshot that fails is tried again after an interval, however long the log is.
    #[test]
    fn a_long_log_does_not_lead_to_attempts_in_a_row() {
        let root = tempfile::tempdir().unwrap();
        let mut store = Fixture::open(root.path());
        store.take_slow_snapshot();
        let third = store.start().expect("the log is too long");
        // A file with the name of the snapshot makes it fail.
        let name = format!("{:020}.snap", third.covered);
        std::fs::write(store.dir.snapshot_dir().join(name), "").unwrap();
        store.snapshotter.handle(third);
        assert!(store.start().is_none());
    }
}
