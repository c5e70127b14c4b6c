//! Tracks which records are written, which of them are durable, and whether the log has
//! failed. The appending thread and the syncing thread share this state.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use files::Error;

use crate::medium::{LogFile, Medium};

/// Name of a file that exists from a failed write or fsync until the next process has
/// logged what the failure implies.
const FAILED: &str = "FAILED";

/// The shared state of a log: what is written, what is durable, and whether it has failed.
pub(crate) struct Durability {
    medium: Arc<dyn Medium>,
    directory: PathBuf,
    /// Sequence of the newest record that was passed to the operating system.
    written: AtomicU64,
    /// Sequence of the newest record that an fsync has covered.
    durable: AtomicU64,
    /// Whether a write or an fsync has failed.
    poisoned: AtomicBool,
    /// Locked during a sync, so that syncs do not overlap.
    syncing: Mutex<()>,
    /// Segments that the next sync must include, oldest first.
    unsynced: Mutex<Vec<Arc<dyn LogFile>>>,
}

impl Durability {
    /// Returns the state of a log of which the records up to `last` are on disk.
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

    /// Includes the segment `file` in the syncs that follow.
    pub(crate) fn add_segment(&self, file: Arc<dyn LogFile>) {
        self.unsynced.lock().expect("no thread panicked with the lock").push(file);
    }

    /// Sets the newest record that was passed to the operating system.
    pub(crate) fn set_written(&self, sequence: u64) {
        self.written.store(sequence, Ordering::Release);
    }

    /// Returns the sequence of the newest durable record.
    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Whether a write or an fsync has failed.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    /// Marks the log as failed, which stops all further writes. Returns the error of
    /// `action` with its `cause`.
    pub(crate) fn poison(&self, action: &'static str, cause: io::Error) -> Error {
        self.poisoned.store(true, Ordering::Release);
        // Tells the next process that the kernel may have dropped data that was written.
        // If this fails too, the next process uses what it finds on the disk.
        let _ = self.medium.replace(FAILED, b"");
        Error::io(action, &self.directory)(cause)
    }

    /// Makes all written records durable.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        let _one_at_a_time = self.syncing.lock().expect("no thread panicked with the lock");
        if self.is_poisoned() {
            return Err(Error::Poisoned);
        }
        // Load this before the list of files: the fsyncs cover all records up to it, and
        // may cover later ones.
        let written = self.written.load(Ordering::Acquire);
        let files = self.unsynced.lock().expect("no thread panicked with the lock").clone();
        for file in &files {
            file.sync().map_err(|cause| self.poison("fsync", cause))?;
        }
        let mut unsynced = self.unsynced.lock().expect("no thread panicked with the lock");
        // Only the newest segment gets more writes. The older ones need no further sync.
        let older = &files[..files.len().saturating_sub(1)];
        unsynced.retain(|file| !older.iter().any(|synced| Arc::ptr_eq(synced, file)));
        drop(unsynced);
        self.durable.fetch_max(written, Ordering::AcqRel);
        Ok(())
    }
}

/// Returns whether a write or an fsync of the previous process has failed.
pub(crate) fn failed_before(medium: &dyn Medium) -> bool {
    medium.open(FAILED).is_ok()
}

/// Removes the file that states that the previous process has failed.
pub(crate) fn clear_failure(medium: &dyn Medium) -> Result<(), Error> {
    match medium.remove(FAILED) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(Error::io("remove FAILED in", medium.path())),
    }
}

/// Syncs a [`crate::Log`] from another thread.
pub struct Syncer(pub(crate) Arc<Durability>);

impl Syncer {
    /// Makes all records durable that were appended before the call. Does nothing if they
    /// already are.
    pub fn sync(&self) -> Result<(), Error> {
        if self.0.durable() == self.0.written.load(Ordering::Acquire) {
            return Ok(());
        }
        self.0.sync()
    }
}
