//! The thread that writes the log of a member. It takes everything that waits, so that writes share
//! an fsync, and reports which writes are as durable as the mode requires.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use consensus::entry::{Entry, HardState, Snapshot};
use consensus::output::{Write, WriteNumber};
use crossbeam_channel::{Receiver, Sender, unbounded};
use files::Error;
use snapshot::Snapshots;
use wal::{Log, Preparer, Trimmer};

use super::records::{put_base, put_entries, put_hard_state, put_restored};
use super::state::StateSnapshot;
use crate::retry::Retry;
use crate::shared_store::SharedStore;
use crate::snapshot_write::write_running;
use crate::waker::Waker;

/// Interval between two attempts to write to a full disk.
const FULL_DISK_RETRY: Duration = Duration::from_millis(500);
/// Maximum number of jobs that share a record. The replica bounds the bytes of uncommitted entries.
const MAX_SHARED: usize = 256;
/// Interval at which the end of a snapshot is awaited.
const SNAPSHOT_POLL: Duration = Duration::from_millis(10);

/// Something to write.
pub(super) enum Job {
    /// What the replica wants to be stored.
    Write(Write),
    /// Begin the log again after a snapshot of this member.
    Rebase(Rebase),
    /// The state of another member, which replaces the log.
    Install(Write, StateSnapshot),
}

/// A snapshot of this member, and what the log must contain after it.
pub(super) struct Rebase {
    pub(super) description: Snapshot,
    /// The entries after the described state.
    pub(super) entries: Vec<Entry>,
    pub(super) state: StateSnapshot,
}

/// What the driver knows about the log.
#[derive(Default)]
pub(super) struct LogProgress {
    /// Size in bytes of the records after the last base.
    grown_bytes: AtomicU64,
    /// Size of the last snapshot in bytes.
    snapshot_bytes: AtomicU64,
    /// Whether a snapshot is being written.
    is_busy: AtomicBool,
    retry: Retry,
}

impl LogProgress {
    /// Notes that a snapshot was requested.
    pub(super) fn begin(&self) {
        self.is_busy.store(true, Ordering::Release);
    }

    /// Whether a snapshot should be taken, so that the log can be shortened: when it has grown by
    /// `min_bytes`, or by the size of the last snapshot if that is larger.
    pub(super) fn wants_snapshot(&self, min_bytes: u64) -> bool {
        let required = min_bytes.max(self.snapshot_bytes.load(Ordering::Relaxed));
        let has_grown = self.grown_bytes.load(Ordering::Relaxed) >= required;
        let is_waiting = self.retry.has_failed() && !self.retry.is_due(Instant::now);
        has_grown && !is_waiting && !self.is_busy.load(Ordering::Acquire)
    }
}

/// What happened to the writes.
pub(super) enum Report {
    /// This write and all earlier ones are durable.
    Persisted(WriteNumber),
    /// The log has failed.
    Failed(Error),
}

/// The side of the driver.
pub(super) struct LogHandle {
    pub(super) jobs: Sender<Job>,
    pub(super) reports: Receiver<Report>,
    pub(super) progress: Arc<LogProgress>,
}

/// The log of a member, and its snapshots.
pub(super) struct EntryLog {
    log: Log,
    snapshots: Arc<Snapshots>,
    trimmer: Arc<Trimmer>,
    preparer: Preparer,
    shared: Arc<SharedStore>,
    jobs: Receiver<Job>,
    reports: Sender<Report>,
    waker: Waker,
    progress: Arc<LogProgress>,
    /// The last hard state, which each base repeats.
    hard_state: HardState,
    record: Vec<u8>,
}

impl EntryLog {
    /// Creates the writer of `log`, which has grown by `grown_bytes` since its base.
    pub(super) fn new(
        log: Log,
        snapshots: Snapshots,
        shared: Arc<SharedStore>,
        waker: Waker,
        hard_state: HardState,
        grown_bytes: u64,
    ) -> (EntryLog, LogHandle) {
        // The replica bounds what waits: its messages are sent after the writes.
        let (jobs, received) = unbounded();
        let (reports, reported) = unbounded();
        let progress = Arc::new(LogProgress::default());
        progress.grown_bytes.store(grown_bytes, Ordering::Relaxed);
        let handle = LogHandle { jobs, reports: reported, progress: progress.clone() };
        let (trimmer, preparer) = (Arc::new(log.trimmer()), log.preparer());
        let log = EntryLog {
            log,
            snapshots: Arc::new(snapshots),
            trimmer,
            preparer,
            shared,
            jobs: received,
            reports,
            waker,
            progress,
            hard_state,
            record: Vec::new(),
        };
        (log, handle)
    }

    /// Writes until the driver drops its side, and then makes everything durable.
    pub(super) fn run(mut self) {
        while let Ok(first) = self.jobs.recv() {
            if let Err(error) = self.handle(first) {
                // The driver may have ended.
                let _ = self.reports.send(Report::Failed(error));
                self.waker.wake();
                return;
            }
            // If this fails, the log creates the segment when it needs it.
            let _ = self.preparer.prepare();
        }
        if let Err(error) = self.log.sync().and_then(|()| self.log.settle_head()) {
            tracing::warn!(%error, "could not sync the log at the end");
        }
    }

    fn handle(&mut self, first: Job) -> Result<(), Error> {
        let mut next = Some(first);
        let mut shared = 0;
        let (mut last, mut sync) = (None, false);
        while let Some(job) = next.take() {
            match job {
                Job::Write(write) => {
                    last = Some(write.number);
                    sync |= write.sync;
                    self.add(&write);
                    shared += 1;
                }
                other => {
                    self.finish_record(last.take(), std::mem::take(&mut sync))?;
                    self.handle_snapshot(other)?;
                }
            }
            next = (shared < MAX_SHARED).then(|| self.jobs.try_recv().ok()).flatten();
        }
        self.finish_record(last, sync)
    }

    fn handle_snapshot(&mut self, job: Job) -> Result<(), Error> {
        match job {
            Job::Write(_) => unreachable!("it is not a snapshot"),
            Job::Rebase(rebase) => self.rebase(rebase),
            Job::Install(write, state) => self.install(write, state),
        }
    }

    /// Adds a write to the next record.
    fn add(&mut self, write: &Write) {
        if let Some(hard_state) = &write.hard_state {
            self.hard_state = *hard_state;
            put_hard_state(hard_state, &mut self.record);
        }
        put_entries(&write.entries, &mut self.record);
    }

    /// Appends the record, and reports the write with the number `last`.
    fn finish_record(&mut self, last: Option<WriteNumber>, sync: bool) -> Result<(), Error> {
        if !self.record.is_empty() {
            self.append()?;
        }
        if sync {
            self.until_space(Log::sync)?;
        }
        if let Some(number) = last {
            // The driver may have ended.
            let _ = self.reports.send(Report::Persisted(number));
            self.waker.wake();
        }
        Ok(())
    }

    fn append(&mut self) -> Result<(), Error> {
        let record = std::mem::take(&mut self.record);
        self.until_space(|log| log.append(&record))?;
        self.progress.grown_bytes.fetch_add(record.len() as u64, Ordering::Relaxed);
        self.record = record;
        self.record.clear();
        self.record.shrink_to(1 << 20);
        Ok(())
    }

    /// Tries again while the disk is full. Meanwhile, this member acknowledges nothing.
    fn until_space(
        &mut self,
        mut write: impl FnMut(&mut Log) -> Result<(), Error>,
    ) -> Result<(), Error> {
        loop {
            let written = write(&mut self.log);
            let no_space = matches!(written, Err(Error::NoSpace { .. }));
            self.shared.set_no_space(no_space);
            if !no_space || self.shared.stopping.load(Ordering::Relaxed) {
                return written;
            }
            std::thread::sleep(FULL_DISK_RETRY);
        }
    }

    /// Begins the log again, and writes the snapshot in another thread.
    fn rebase(&mut self, rebase: Rebase) -> Result<(), Error> {
        let Rebase { description, entries, state } = rebase;
        let covered = self.log.last();
        put_base(&description, &mut self.record);
        put_hard_state(&self.hard_state, &mut self.record);
        put_entries(&entries, &mut self.record);
        self.progress.grown_bytes.store(0, Ordering::Relaxed);
        self.append()?;
        // The records before the base must not be removed before the base is durable.
        self.until_space(Log::sync)?;
        let writer = SnapshotJob {
            snapshots: self.snapshots.clone(),
            trimmer: self.trimmer.clone(),
            shared: self.shared.clone(),
            progress: self.progress.clone(),
        };
        let spawned = std::thread::Builder::new()
            .name("snapshot".into())
            .spawn(move || writer.run(covered, state));
        if let Err(error) = spawned {
            tracing::warn!(%error, "could not start a snapshot, trying again");
            self.progress.retry.failed(Instant::now());
            self.progress.is_busy.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Stores the state of another member, and then that it replaces the log.
    fn install(&mut self, write: Write, state: StateSnapshot) -> Result<(), Error> {
        // A snapshot of this member, which is worthless now, notices soon that the store is replaced.
        while self.progress.is_busy.load(Ordering::Acquire) {
            std::thread::sleep(SNAPSHOT_POLL);
        }
        if self.log.last() == 0 {
            // The name of a snapshot is the last record that it covers.
            self.until_space(|log| log.append(&[]))?;
        }
        let covered = self.log.last();
        let Some(bytes) = write_state(&self.snapshots, &self.shared, covered, state)? else {
            // The member is stopping.
            return Ok(());
        };
        let description = write.snapshot.as_ref().expect("it has a snapshot");
        put_restored(description, &mut self.record);
        self.add(&write);
        self.append()?;
        self.until_space(Log::sync)?;
        self.progress.grown_bytes.store(0, Ordering::Relaxed);
        self.progress.snapshot_bytes.store(bytes, Ordering::Relaxed);
        // The driver may have ended.
        let _ = self.reports.send(Report::Persisted(write.number));
        self.waker.wake();
        self.snapshots.remove_older().and_then(|covered| self.trimmer.trim(covered))
    }
}

/// Writes a snapshot file of this member, and removes what it replaces.
struct SnapshotJob {
    snapshots: Arc<Snapshots>,
    trimmer: Arc<Trimmer>,
    shared: Arc<SharedStore>,
    progress: Arc<LogProgress>,
}

impl SnapshotJob {
    fn run(self, covered: u64, state: StateSnapshot) {
        match write_state(&self.snapshots, &self.shared, covered, state) {
            Ok(Some(bytes)) => {
                tracing::info!(covered, bytes, "snapshot taken");
                self.progress.snapshot_bytes.store(bytes, Ordering::Relaxed);
                self.progress.retry.succeeded();
                let removed = self.snapshots.remove_older();
                if let Err(error) = removed.and_then(|covered| self.trimmer.trim(covered)) {
                    tracing::warn!(%error, "could not remove what the snapshots replace");
                }
            }
            Ok(None) => tracing::info!(covered, "snapshot abandoned, the store is stopping"),
            Err(error) => {
                tracing::warn!(covered, %error, "snapshot failed");
                self.progress.retry.failed(Instant::now());
            }
        }
        self.progress.is_busy.store(false, Ordering::Release);
    }
}

/// Writes a snapshot file. Returns its size in bytes; `None` if the store is stopping.
fn write_state(
    snapshots: &Snapshots,
    shared: &SharedStore,
    covered: u64,
    state: StateSnapshot,
) -> Result<Option<u64>, Error> {
    let StateSnapshot { cursor, effects, pin } = state;
    write_running(shared, cursor, effects, pin, snapshots.create(covered)?, |_| true)
}
