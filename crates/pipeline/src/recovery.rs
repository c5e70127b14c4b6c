//! From snapshot and log to the state, at the start.

use std::time::{Duration, Instant};

use mvcc::{Effect, Store};
use wal::{DataDir, Log, Medium, OsMedium, Snapshots};

use crate::continuity::{Continuity, Resumption};
use crate::{OpenError, Options};

/// How often a long recovery says how far it is.
const REPORT_INTERVAL: Duration = Duration::from_secs(2);
/// Records between two looks at the clock and the garbage.
const RECORDS_A_STEP: u64 = 4096;

/// What the files of a store held.
pub(crate) struct Recovery {
    /// Ready to go on; the log does not say so yet.
    pub(crate) store: Store,
    pub(crate) resumption: Resumption,
    pub(crate) log: Log,
    pub(crate) snapshots: Snapshots,
}

/// Reads the newest snapshot and the log behind it, and rebuilds the state.
pub(crate) fn recover(
    dir: &DataDir,
    medium: impl Medium,
    options: &Options,
) -> Result<Recovery, OpenError> {
    let mut replay = Replay::new();
    let snapshot_dir = options.snapshot_dir.clone().unwrap_or_else(|| dir.snap());
    let snapshots = Snapshots::open(snapshot_dir)?;
    let covered = snapshots.load(|chunk| replay.record(chunk))?;

    let (log, recovered) =
        Log::open(medium, options.log(), covered, |payload| replay.record(payload))?;
    if let Some(cut) = &recovered.cut {
        tracing::warn!(
            file = %cut.file.display(),
            offset = cut.offset,
            "cut off an unfinished write at the end of the log"
        );
    }
    let (store, resumption) = replay.resume(&options.boot_id);
    tracing::info!(
        snapshot = covered,
        records = recovered.records,
        bytes = recovered.payload_bytes,
        revision = store.revision(),
        keys = store.stats().live_keys,
        "recovered"
    );
    if let Some(revision) = resumption.restart {
        tracing::warn!(
            revision,
            "writes that were not on the disk may be lost: going on behind them, compacted there"
        );
    }
    Ok(Recovery { store, resumption, log, snapshots })
}

/// Where the log of `dir` lies.
pub(crate) fn medium(dir: &DataDir) -> Result<OsMedium, wal::Error> {
    let path = dir.wal();
    OsMedium::new(path.clone()).map_err(|cause| wal::Error::Io { action: "open", path, cause })
}

/// The state on its way out of the files.
pub(crate) struct Replay {
    store: Store,
    continuity: Continuity,
    /// The highest revision that was glanced at.
    highest: i64,
    records: u64,
    bytes: u64,
    reported: Instant,
}

impl Replay {
    pub(crate) fn new() -> Self {
        Replay {
            store: Store::default(),
            continuity: Continuity::default(),
            highest: 0,
            records: 0,
            bytes: 0,
            reported: Instant::now(),
        }
    }

    pub(crate) fn record(&mut self, mut payload: &[u8]) -> Result<(), String> {
        self.records += 1;
        self.bytes += payload.len() as u64;
        while !payload.is_empty() {
            let effect = Effect::decode(&mut payload).map_err(|e| e.to_string())?;
            self.continuity.note(&effect);
            self.store.replay(effect).map_err(|e| e.to_string())?;
        }
        if self.records.is_multiple_of(RECORDS_A_STEP) {
            // What was compacted then need not fill the memory now.
            self.store.collect(i64::MAX, usize::MAX);
            self.report();
        }
        Ok(())
    }

    /// Takes note of the revisions that a record speaks of, and of nothing else.
    pub(crate) fn glance(&mut self, mut payload: &[u8]) {
        while let Ok(effect) = Effect::decode(&mut payload) {
            self.highest = self.highest.max(match &effect {
                Effect::Write(record) => record.mod_revision(),
                Effect::Revision(revision) | Effect::RevisionCeiling(revision) => *revision,
                _ => 0,
            });
        }
    }

    /// A revision that is not before any that was read or glanced at.
    pub(crate) fn behind_all(&self) -> i64 {
        self.highest.max(self.store.revision())
    }

    /// The state, as if compacted at `revision`, with every lease renewed.
    pub(crate) fn restart_at(mut self, revision: i64) -> Store {
        self.restart(&Resumption { restart: Some(revision), renewals_lost: true });
        self.store
    }

    /// The revision of the last change so far.
    pub(crate) fn revision(&self) -> i64 {
        self.store.revision()
    }

    /// The first revision that can be read, so far.
    pub(crate) fn compacted(&self) -> i64 {
        self.store.compacted()
    }

    fn report(&mut self) {
        if self.reported.elapsed() >= REPORT_INTERVAL {
            self.reported = Instant::now();
            let (records, bytes) = (self.records, self.bytes);
            tracing::info!(records, bytes, revision = self.store.revision(), "recovering");
        }
    }

    /// The state from which a process on `boot_id` goes on, and how.
    pub(crate) fn resume(mut self, boot_id: &[u8]) -> (Store, Resumption) {
        let resumption = self.continuity.resume(self.store.revision(), boot_id);
        self.restart(&resumption);
        (self.store, resumption)
    }

    /// The state as it was read.
    pub(crate) fn finish(mut self) -> Store {
        self.restart(&Resumption::default());
        self.store
    }

    fn restart(&mut self, resumption: &Resumption) {
        if let Some(revision) = resumption.restart {
            self.repeat(Effect::Revision(revision));
            self.repeat(Effect::Compacted { revision });
        }
        if resumption.renewals_lost {
            let at_ms = self.store.clock_ms();
            self.repeat(Effect::AllLeasesRenewed { at_ms });
        }
        while self.store.collect(i64::MAX, usize::MAX) {}
    }

    /// One of those that no write is.
    fn repeat(&mut self, effect: Effect) {
        self.store.replay(effect).expect("only writes can be out of order");
    }
}
