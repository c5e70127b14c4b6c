//! Which records are written, which are durable, and whether the log has failed.
//! The appending thread and the syncing thread share this state.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use files::Error;

use crate::medium::{LogFile, Medium};

/// A file that exists from a failed write or fsync until the next process has taken
/// the failure into account.
const FAILED: &str = "FAILED";

/// Tracks which records of a log are written and which are durable.
pub(crate) struct Durability {
    medium: Arc<dyn Medium>,
    directory: PathBuf,
    /// The newest record that was handed to the operating system.
    written: AtomicU64,
    /// The newest record that an fsync has covered.
    durable: AtomicU64,
    poisoned: AtomicBool,
    /// Held during a sync: syncs do not overlap.
    syncing: Mutex<()>,
    /// Segments with writes that no fsync has covered yet, oldest first.
    unsynced: Mutex<Vec<Arc<dyn LogFile>>>,
}

impl Durability {
    /// The state of a log whose records up to `last` are on disk.
    pub(crate) fn new(medium: Arc<dyn Medium>, last: u64) -> Self {
        Durability {
            directory: medium.path().to_owned(),
            medium,
            written: AtomicU64::new(last),
            durable: AtomicU64::new(last),
            poisoned: AtomicBool::new(false),
            syncing: Mutex::default(),
            unsynced: Mutex::default(),
        }
    }

    /// Includes `file` in the syncs that follow.
    pub(crate) fn add_segment(&self, file: Arc<dyn LogFile>) {
        self.unsynced.lock().expect("not poisoned").push(file);
    }

    /// Notes that records up to `sequence` were handed to the operating system.
    pub(crate) fn set_written(&self, sequence: u64) {
        self.written.store(sequence, Ordering::Release);
    }

    /// The newest durable record.
    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Whether a write or an fsync has failed.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    /// Stops all further writes, and returns the error to report.
    pub(crate) fn poison(&self, action: &'static str, cause: io::Error) -> Error {
        self.poisoned.store(true, Ordering::Release);
        // Records for the next process that the kernel may have dropped data it had
        // accepted. If this write fails too, the next process relies on what is on disk.
        let _ = self.medium.replace(FAILED, b"");
        Error::io(action, &self.directory)(cause)
    }

    /// Makes everything written so far durable.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        let _one_at_a_time = self.syncing.lock().expect("not poisoned");
        if self.is_poisoned() {
            return Err(Error::Poisoned);
        }
        // Read before the list of files: later writes may or may not be covered.
        let written = self.written.load(Ordering::Acquire);
        let files = self.unsynced.lock().expect("not poisoned").clone();
        for file in &files {
            file.sync().map_err(|cause| self.poison("fsync", cause))?;
        }
        let mut unsynced = self.unsynced.lock().expect("not poisoned");
        // Only the newest segment gets more writes; the older ones are complete.
        let complete = &files[..files.len().saturating_sub(1)];
        unsynced.retain(|file| !complete.iter().any(|synced| Arc::ptr_eq(synced, file)));
        drop(unsynced);
        self.durable.fetch_max(written, Ordering::AcqRel);
        Ok(())
    }
}

/// Returns whether the previous process recorded a failure.
pub(crate) fn failed_before(medium: &dyn Medium) -> bool {
    medium.open(FAILED).is_ok()
}

/// Removes the record of a failure of the previous process.
pub(crate) fn clear_failure(medium: &dyn Medium) -> Result<(), Error> {
    match medium.remove(FAILED) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(Error::io("remove FAILED in", medium.path())),
    }
}

/// Syncs a [`crate::Log`] from another thread.
pub struct Syncer(pub(crate) Arc<Durability>);

impl Syncer {
    /// Makes everything appended before the call durable. Does nothing if all of it
    /// already is.
    pub fn sync(&self) -> Result<(), Error> {
        if self.0.durable() == self.0.written.load(Ordering::Acquire) {
            return Ok(());
        }
        self.0.sync()
    }
}
