//! Tracks which records are written, which of them are durable, and whether the log has
//! failed. The appending thread and the syncing thread share this state.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use files::Error;

use crate::head::{Head, HeadFile};
use crate::medium::{LogFile, Medium};
use crate::segment::Segment;

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
    /// The file `HEAD`. Locked during a sync, so that syncs do not overlap.
    head: Mutex<HeadFile>,
    /// Segments that the next sync must include, oldest first.
    unsynced: Mutex<Vec<UnsyncedSegment>>,
    /// Whether a segment got its name after the last sync of the names.
    names_changed: AtomicBool,
    /// The number of the newest segment, and of the newest one that `HEAD` names.
    added: AtomicU64,
    named: AtomicU64,
    /// Whether the disk had no space to name a segment in `HEAD`.
    head_lacks_space: AtomicBool,
}

/// A segment that a sync must include.
#[derive(Clone)]
struct UnsyncedSegment {
    /// Counts the segments of this process.
    number: u64,
    first: u64,
    bytes: u64,
    file: Arc<dyn LogFile>,
}

impl Durability {
    /// Returns the state of a log of which the records up to `last` are on disk.
    pub(crate) fn new(medium: Arc<dyn Medium>, last: u64, head: HeadFile) -> Self {
        Durability {
            directory: medium.path().to_owned(),
            medium,
            written: AtomicU64::new(last),
            durable: AtomicU64::new(last),
            poisoned: AtomicBool::new(false),
            head: Mutex::new(head),
            unsynced: Mutex::default(),
            names_changed: AtomicBool::new(false),
            added: AtomicU64::new(0),
            named: AtomicU64::new(0),
            head_lacks_space: AtomicBool::new(false),
        }
    }

    /// Includes a new segment and its name in the syncs that follow. Its header must be
    /// written.
    pub(crate) fn add_new_segment(&self, segment: &Segment) {
        // In this order: another thread may sync in between. It must not name the segment in
        // `HEAD` before it has synced the names.
        self.names_changed.store(true, Ordering::Release);
        self.add_segment(segment);
    }

    /// Whether `HEAD` names the newest segment, or does not exist.
    pub(crate) fn newest_is_named(&self) -> bool {
        self.named.load(Ordering::Acquire) == self.added.load(Ordering::Acquire)
    }

    /// Whether the disk had no space to name a segment in `HEAD`. Some file systems need it to
    /// overwrite a block. Then no record counts as durable, until a sync succeeds.
    pub(crate) fn head_lacks_space(&self) -> bool {
        self.head_lacks_space.load(Ordering::Acquire)
    }

    /// Includes a segment in the syncs that follow.
    pub(crate) fn add_segment(&self, segment: &Segment) {
        let Segment { first, size: bytes, .. } = *segment;
        let number = self.added.fetch_add(1, Ordering::AcqRel) + 1;
        let file = segment.file.clone();
        self.unsynced().push(UnsyncedSegment { number, first, bytes, file });
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
        mark_failure(&*self.medium);
        Error::io(action, &self.directory)(cause)
    }

    /// Makes all written records durable. After [`Error::NoSpace`] the log can still be used, and
    /// the records count as durable after the next sync that succeeds.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        let mut head = self.head();
        if self.is_poisoned() {
            return Err(Error::Poisoned);
        }
        // Load this before the list of segments: the fsyncs cover all records up to it, and
        // may cover later ones.
        let written = self.written.load(Ordering::Acquire);
        let segments = self.unsynced().clone();
        for segment in &segments {
            segment.file.sync().map_err(|cause| self.poison("fsync", cause))?;
        }
        if self.names_changed.swap(false, Ordering::AcqRel) {
            self.medium.sync_names().map_err(|cause| self.poison("fsync", cause))?;
        }
        if let Some(newest) = segments.last() {
            self.name_in_head(&mut head, newest, written)?;
        }
        // Only the newest segment gets more writes. The older ones need no further sync.
        let older = &segments[..segments.len().saturating_sub(1)];
        self.unsynced().retain(|s| !older.iter().any(|synced| Arc::ptr_eq(&synced.file, &s.file)));
        self.durable.fetch_max(written, Ordering::AcqRel);
        Ok(())
    }

    /// Makes `HEAD` name the segment `newest`, which is synced with its name, unless it does
    /// already.
    fn name_in_head(
        &self,
        head: &mut HeadFile,
        newest: &UnsyncedSegment,
        durable: u64,
    ) -> Result<(), Error> {
        let UnsyncedSegment { number, first, bytes, .. } = *newest;
        if head.exists() && (head.get().first, head.get().bytes) != (first, bytes) {
            let written = head.write(Head { first, bytes, durable });
            let no_space = written.as_ref().is_err_and(is_disk_full);
            self.head_lacks_space.store(no_space, Ordering::Release);
            if no_space {
                // No harm is done: the other slot is intact, and the next attempt overwrites
                // this one.
                return Err(Error::NoSpace { path: self.directory.clone() });
            }
            written.map_err(|cause| self.poison("write HEAD in", cause))?;
        }
        self.named.store(number, Ordering::Release);
        Ok(())
    }

    /// Makes `HEAD` state the newest durable record.
    pub(crate) fn update_head(&self) -> Result<(), Error> {
        self.write_head(|file| file.write(Head { durable: self.durable(), ..file.get() }))
    }

    /// Makes both slots of `HEAD` state the newest durable record.
    pub(crate) fn settle_head(&self) -> Result<(), Error> {
        self.write_head(|file| file.write_both(Head { durable: self.durable(), ..file.get() }))
    }

    /// Writes `HEAD` with `write`. A full disk is no failure: `HEAD` then stays behind. (Some
    /// file systems need space to overwrite a block.)
    fn write_head(&self, write: impl FnOnce(&mut HeadFile) -> io::Result<()>) -> Result<(), Error> {
        let mut file = self.head();
        if self.is_poisoned() {
            return Err(Error::Poisoned);
        }
        if !file.exists() {
            return Ok(());
        }
        match write(&mut file) {
            Err(cause) if is_disk_full(&cause) => Ok(()),
            written => written.map_err(|cause| self.poison("write HEAD in", cause)),
        }
    }

    /// Creates `HEAD` in the current format if it does not exist, and needs space for that.
    pub(crate) fn create_head(&self) -> io::Result<()> {
        let mut file = self.head();
        let head = file.get();
        if file.exists() { Ok(()) } else { file.write(head) }
    }

    fn head(&self) -> MutexGuard<'_, HeadFile> {
        self.head.lock().expect("no thread panicked with the lock")
    }

    fn unsynced(&self) -> MutexGuard<'_, Vec<UnsyncedSegment>> {
        self.unsynced.lock().expect("no thread panicked with the lock")
    }
}

/// Whether an operation failed only because the disk is full.
pub(crate) fn is_disk_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Tells the next process that a write or an fsync has failed, so that the kernel may have
/// dropped data that was written.
pub(crate) fn mark_failure(medium: &dyn Medium) {
    // This need not survive a crash of the machine, which the next process notices by
    // itself. So it does not wait for the disk, of which fsyncs may fail. If no file can be
    // created, the next process takes what it reads for complete.
    let _ = medium.mark(FAILED);
}

/// Returns whether a write or an fsync of the previous process has failed.
pub(crate) fn failed_before(medium: &dyn Medium) -> Result<bool, Error> {
    match medium.open(FAILED) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::io("open", medium.path().join(FAILED))(error)),
    }
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
    /// already are. Call it again after [`Error::NoSpace`].
    pub fn sync(&self) -> Result<(), Error> {
        if self.0.durable() == self.0.written.load(Ordering::Acquire) {
            return Ok(());
        }
        self.0.sync()
    }

    /// Makes `HEAD` state the newest durable record, so that its loss is detected. Waits for
    /// an fsync if there is a newer one.
    pub fn update_head(&self) -> Result<(), Error> {
        self.0.update_head()
    }
}
