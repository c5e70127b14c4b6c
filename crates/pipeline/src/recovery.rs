//! From snapshot and log to the state, at the start.

use std::time::{Duration, Instant};

use mvcc::{Effect, Effects, Store};
use wal::{DataDir, Log, OsMedium, Snapshots};

use crate::{OpenError, Options};

/// How often a long recovery says how far it is.
const REPORT_INTERVAL: Duration = Duration::from_secs(2);
/// Records between two looks at the clock and the garbage.
const RECORDS_A_STEP: u64 = 4096;

/// What the files of a store held.
pub(crate) struct Recovery {
    pub(crate) store: Store,
    pub(crate) log: Log,
    pub(crate) snapshots: Snapshots,
}

/// Reads the newest snapshot and the log behind it, and rebuilds the state.
pub(crate) fn recover(dir: &DataDir, options: &Options) -> Result<Recovery, OpenError> {
    let mut replay = Replay::new();
    let snapshot_dir = options.snapshot_dir.clone().unwrap_or_else(|| dir.snap());
    let snapshots = Snapshots::open(snapshot_dir)?;
    let covered = snapshots.load(|chunk| replay.record(chunk))?;

    let (log, recovered) =
        Log::open(medium(dir)?, options.log(), covered, |payload| replay.record(payload))?;
    if let Some(cut) = &recovered.cut {
        tracing::warn!(
            file = %cut.file.display(),
            offset = cut.offset,
            "cut off an unfinished write at the end of the log"
        );
    }
    let store = replay.finish();
    tracing::info!(
        snapshot = covered,
        records = recovered.records,
        bytes = recovered.payload_bytes,
        revision = store.revision(),
        keys = store.stats().live_keys,
        "recovered"
    );
    Ok(Recovery { store, log, snapshots })
}

/// Where the log of `dir` lies.
pub(crate) fn medium(dir: &DataDir) -> Result<OsMedium, wal::Error> {
    let path = dir.wal();
    OsMedium::new(path.clone()).map_err(|cause| wal::Error::Io { action: "open", path, cause })
}

/// The state on its way out of the files.
pub(crate) struct Replay {
    store: Store,
    records: u64,
    bytes: u64,
    reported: Instant,
}

impl Replay {
    pub(crate) fn new() -> Self {
        Replay { store: Store::default(), records: 0, bytes: 0, reported: Instant::now() }
    }

    pub(crate) fn record(&mut self, mut payload: &[u8]) -> Result<(), String> {
        self.records += 1;
        self.bytes += payload.len() as u64;
        while !payload.is_empty() {
            let effect = Effect::decode(&mut payload).map_err(|e| e.to_string())?;
            self.store.replay(effect).map_err(|e| e.to_string())?;
        }
        if self.records.is_multiple_of(RECORDS_A_STEP) {
            // What was compacted then need not fill the memory now.
            self.store.collect(i64::MAX, usize::MAX);
            self.report();
        }
        Ok(())
    }

    fn report(&mut self) {
        if self.reported.elapsed() >= REPORT_INTERVAL {
            self.reported = Instant::now();
            let (records, bytes) = (self.records, self.bytes);
            tracing::info!(records, bytes, revision = self.store.revision(), "recovering");
        }
    }

    pub(crate) fn finish(mut self) -> Store {
        while self.store.collect(i64::MAX, usize::MAX) {}
        self.store
    }
}

/// The log's form of what a batch did.
pub(crate) fn encode(effects: &Effects, payload: &mut Vec<u8>) {
    payload.clear();
    effects.iter().for_each(|effect| effect.encode(payload));
}
