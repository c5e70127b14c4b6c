//! Operations for administrators: hash, export, release of unused memory. Hash and export
//! read the store in short steps, so a write waits for at most one step.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_channel::oneshot;

use crate::export::Export;
use crate::history_hash::{HistoryHash, hash};
use crate::pace;
use crate::{Error, Pipeline};

/// Interval at which an export checks whether it may begin.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum number of entries that shrinking a table may move.
const MAX_MOVED_ENTRIES: usize = 1 << 18;

impl Pipeline {
    /// Hashes the history up to `revision`; 0 means the published revision. It reads the
    /// whole store, so call it on a thread that may block.
    pub fn hash(&self, revision: i64) -> Result<HistoryHash, Error> {
        self.hash_unless(revision, &|_| false)
    }

    /// Hashes the history as [`Pipeline::hash`] does. Fails when `stops` returns true; it is called
    /// between the steps with the memory in bytes that is occupied so far.
    pub fn hash_unless(
        &self,
        revision: i64,
        stops: &dyn Fn(usize) -> bool,
    ) -> Result<HistoryHash, Error> {
        hash(self.shared(), revision, stops)
    }

    /// Whether all history that a compaction at `revision` made unreadable has been
    /// freed.
    pub fn is_collected(&self, revision: i64) -> Result<bool, Error> {
        let shared = self.shared();
        if shared.stopping.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        Ok(shared.store.read().is_collected(revision))
    }

    /// Releases the unused capacity of the history. A history with more than
    /// `MAX_MOVED_ENTRIES` entries is left as it is.
    pub fn shrink_tables(&self) {
        self.shared().store.write().shrink_tables(MAX_MOVED_ENTRIES);
    }

    /// Starts an export: chunks of effects with the store at the published revision and
    /// all readable history. It may have to wait for a write to the log. Fails when `stops`
    /// returns true; it is called between the steps with the memory in bytes that is occupied so
    /// far, see [`Export::held_bytes`].
    pub fn export_unless(&self, stops: &dyn Fn(usize) -> bool) -> Result<Export, Error> {
        let mut export = match &self.replication {
            None => self.start_export_unless(stops)?,
            Some(replication) => wait_for(replication.start_export()?, stops)?,
        };
        export.read_leases_unless(stops)?;
        Ok(export)
    }

    /// Starts an export as soon as no compaction is applied that is not published.
    fn start_export_unless(&self, stops: &dyn Fn(usize) -> bool) -> Result<Export, Error> {
        let shared = self.shared();
        loop {
            let store = shared.store.read();
            if store.compacted() <= shared.published.load(Ordering::Acquire) {
                return Ok(Export::start(shared, &store));
            }
            drop(store);
            if let Some(reason) = shared.failure.get() {
                return Err(Error::LogFailed(reason.clone()));
            }
            pace::pause(&|| stops(0))?;
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Waits for what another thread sends, on a thread that may block.
fn wait_for<T>(
    mut receiver: oneshot::Receiver<T>,
    stops: &dyn Fn(usize) -> bool,
) -> Result<T, Error> {
    loop {
        match receiver.try_recv() {
            Ok(Some(sent)) => return Ok(sent),
            Ok(None) => {}
            Err(oneshot::Canceled) => return Err(Error::Stopped),
        }
        pace::pause(&|| stops(0))?;
        std::thread::sleep(POLL_INTERVAL);
    }
}
