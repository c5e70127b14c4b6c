//! Appending.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::Error;
use crate::head;
use crate::medium::{LogFile, Medium};
use crate::recovery::{self, Recovered};
use crate::segment::{self, HEADER_BYTES, RECORD_HEADER_BYTES};

/// The largest payload of a record.
pub const MAX_PAYLOAD_BYTES: usize = 2 << 30;

/// Bytes of a segment that are kept free for [`Log::append_spare`].
const SPARE_BYTES: u64 = 64;

/// A file that is there from the moment when a write or an fsync failed until the
/// next process has drawn its conclusions.
const FAILED: &str = "FAILED";

/// Sizes of a log.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes that are allocated for a segment at a time.
    pub segment_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options { segment_bytes: 64 << 20 }
    }
}

/// A log that is open for appending. Dropping it loses nothing that was
/// appended, unless the machine stops before a sync.
pub struct Log {
    medium: Arc<dyn Medium>,
    options: Options,
    current: Option<Segment>,
    /// The first record of the segment that `HEAD` names.
    head: u64,
    /// Sequence of the next record; the first is 1.
    next: u64,
    /// Up to here records are known, from others in the log, to be durable.
    witnessed: u64,
    buffer: Vec<u8>,
    shared: Arc<Shared>,
}

pub(crate) struct Segment {
    /// Sequence of its first record, be it written yet or not.
    pub(crate) first: u64,
    pub(crate) salt: u32,
    pub(crate) file: Arc<dyn LogFile>,
    /// Where the next record goes, and the allocated size, in bytes.
    pub(crate) position: u64,
    pub(crate) size: u64,
}

/// What the appending and the syncing thread both see.
struct Shared {
    medium: Arc<dyn Medium>,
    directory: PathBuf,
    /// The newest record that a write has handed to the operating system.
    written: AtomicU64,
    /// The newest record that an fsync has covered.
    durable: AtomicU64,
    poisoned: AtomicBool,
    syncing: Mutex<()>,
    /// Segments with writes that no fsync has covered yet, oldest first.
    dirty: Mutex<Vec<Arc<dyn LogFile>>>,
}

impl Log {
    /// Opens the log on `medium`, hands each payload in it to `visit`, in order,
    /// and is then ready to append. An error of `visit` is reported as damage.
    /// Records up to `covered`, which a snapshot holds, are passed over.
    pub fn open(
        medium: impl Medium,
        options: Options,
        covered: u64,
        mut visit: impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(Log, Recovered), Error> {
        let (mut recovered, end) = recovery::recover(&medium, covered, &mut visit)?;
        recovered.failed_before = medium.open(FAILED).is_ok();
        let medium: Arc<dyn Medium> = Arc::new(medium);
        let shared = Arc::new(Shared {
            medium: medium.clone(),
            directory: medium.path().to_owned(),
            written: AtomicU64::new(end.next - 1),
            durable: AtomicU64::new(end.next - 1),
            poisoned: AtomicBool::new(false),
            syncing: Mutex::default(),
            dirty: Mutex::default(),
        });
        let (current, head) = (end.tail, end.head);
        if let Some(segment) = &current {
            shared.dirty.lock().expect("not poisoned").push(segment.file.clone());
        }
        let (next, witnessed) = (end.next, 0);
        let buffer = Vec::new();
        let mut log = Log { medium, options, current, head, next, witnessed, buffer, shared };
        log.sync()?;
        Ok((log, recovered))
    }

    /// Makes sure that a payload of up to `bytes` can be appended without
    /// running out of space.
    pub fn reserve(&mut self, bytes: u64) -> Result<(), Error> {
        self.check()?;
        let needed = bytes + RECORD_HEADER_BYTES as u64 + SPARE_BYTES;
        if self.current.as_ref().is_none_or(|s| s.size - s.position < needed) {
            self.begin_segment(needed)?;
        }
        let first = self.current.as_ref().expect("just made").first;
        self.name(first)
    }

    /// Makes a segment with room for a record of `needed` bytes.
    fn begin_segment(&mut self, needed: u64) -> Result<(), Error> {
        let first = self.next;
        let name = segment::file_name(first);
        if self.current.as_ref().is_some_and(|s| s.first == first) {
            // It holds no record yet, and what comes does not fit into it.
            self.name(0)?;
            self.current = None;
            self.medium
                .remove(&name)
                .map_err(Error::io("remove", self.medium.path().join(&name)))?;
        }
        let size = self.options.segment_bytes.max(HEADER_BYTES as u64 + needed);
        let file = self.medium.create(&name, size).map_err(|source| self.refused(source))?;
        self.shared.dirty.lock().expect("not poisoned").push(file.clone());
        let salt = RandomState::new().hash_one(first) as u32;
        self.current = Some(Segment { first, salt, file, position: 0, size });
        self.write(&segment::encode_header(segment::SEGMENT, first, salt))?;
        // Durable before any record is, so that a damaged header in front of
        // records is damage and nothing else.
        let synced = self.current.as_ref().expect("just made").file.sync();
        synced.map_err(|source| self.shared.poison("fsync", source))
    }

    /// Makes `HEAD` name a segment, unless it does.
    fn name(&mut self, first: u64) -> Result<(), Error> {
        if self.head != first {
            head::write(&*self.medium, first).map_err(|source| self.refused(source))?;
            self.head = first;
        }
        Ok(())
    }

    /// What it means that there is no new file.
    fn refused(&self, source: io::Error) -> Error {
        match is_full(&source) {
            true => Error::NoSpace { path: self.medium.path().to_owned() },
            false => Error::io("create a file of the log in", self.medium.path())(source),
        }
    }

    /// Appends one record. When this returns it survives the end of the
    /// process; to survive the end of the machine it needs a sync. A full disk
    /// ([`Error::NoSpace`]) changes nothing, and the call may be repeated.
    pub fn append(&mut self, payload: &[u8]) -> Result<(), Error> {
        if payload.len() > MAX_PAYLOAD_BYTES {
            return Err(Error::TooLarge { bytes: payload.len() });
        }
        self.reserve(payload.len() as u64)?;
        self.append_reserved(payload)
    }

    /// Appends a small record into the room that is kept for it when the disk is
    /// full, once or twice; then that is [`Error::NoSpace`] as well.
    pub fn append_spare(&mut self, payload: &[u8]) -> Result<(), Error> {
        self.check()?;
        let needed = (payload.len() + RECORD_HEADER_BYTES) as u64;
        let fits = |s: &Segment| s.first == self.head && s.size - s.position >= needed;
        match self.current.as_ref().is_some_and(fits) {
            true => self.append_reserved(payload),
            false => Err(Error::NoSpace { path: self.medium.path().to_owned() }),
        }
    }

    fn append_reserved(&mut self, payload: &[u8]) -> Result<(), Error> {
        let salt = self.current.as_ref().expect("space was reserved").salt;
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let durable = self.shared.durable.load(Ordering::Acquire);
        segment::encode_record(salt, self.next, durable, payload, &mut buffer);
        let result = self.write(&buffer);
        // A rare giant must not pin its memory for ever.
        buffer.shrink_to(1 << 20);
        self.buffer = buffer;
        result?;
        self.witnessed = if payload.is_empty() { self.next } else { durable };
        self.shared.written.store(self.next, Ordering::Release);
        self.next += 1;
        Ok(())
    }

    /// If everything is durable and no record says so yet of the last one, adds
    /// an empty one that does. Damage to what was promised last is then told from
    /// an unfinished write, as everywhere else.
    pub fn witness(&mut self) -> Result<(), Error> {
        let durable = self.shared.durable.load(Ordering::Acquire);
        if durable == self.last() && self.witnessed < durable {
            self.append(&[])?;
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let segment = self.current.as_mut().expect("space was reserved");
        assert!(segment.position + bytes.len() as u64 <= segment.size, "space was reserved");
        if let Err(source) = segment.file.write_all_at(bytes, segment.position) {
            return Err(self.shared.poison("write to", source));
        }
        segment.position += bytes.len() as u64;
        Ok(())
    }

    /// Makes everything appended so far durable.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.shared.sync()
    }

    /// Sequence of the last record; 0 if there was none ever.
    pub fn last(&self) -> u64 {
        self.next - 1
    }

    /// Number of the last record that is known to be on the disk.
    pub fn durable(&self) -> u64 {
        self.shared.durable.load(Ordering::Acquire)
    }

    /// A handle that removes old segments from another thread.
    pub fn trimmer(&self) -> Trimmer {
        Trimmer(self.medium.clone())
    }

    /// A handle that syncs from another thread while this one appends.
    pub fn syncer(&self) -> Syncer {
        Syncer(self.shared.clone())
    }

    /// Forgets that the process before this one failed
    /// ([`Recovered::failed_before`]); call it when that has had its consequences.
    pub fn forget_failure(&self) -> Result<(), Error> {
        match self.medium.remove(FAILED) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(Error::io("remove FAILED in", self.medium.path())),
        }
    }

    /// Whether a write or an fsync has failed.
    pub fn is_poisoned(&self) -> bool {
        self.shared.poisoned.load(Ordering::Acquire)
    }

    fn check(&self) -> Result<(), Error> {
        match self.is_poisoned() {
            true => Err(Error::Poisoned),
            false => Ok(()),
        }
    }
}

/// Removes what a [`Log`] no longer needs.
pub struct Trimmer(Arc<dyn Medium>);

impl Trimmer {
    /// Removes the segments whose records are all covered, oldest first. Call it
    /// when what covers them is durable.
    pub fn trim(&self, covered: u64) -> Result<(), Error> {
        let medium = &*self.0;
        let segments = recovery::list(medium)?;
        for &first in &segments[..recovery::obsolete(&segments, covered)] {
            let name = segment::file_name(first);
            medium.discard(&name).map_err(Error::io("remove", medium.path().join(name)))?;
        }
        Ok(())
    }
}

/// Syncs a [`Log`] in the background.
pub struct Syncer(Arc<Shared>);

impl Syncer {
    /// Makes everything appended before the call durable. Does nothing when
    /// all of it already is.
    pub fn sync(&self) -> Result<(), Error> {
        if self.0.durable.load(Ordering::Acquire) == self.0.written.load(Ordering::Acquire) {
            return Ok(());
        }
        self.0.sync()
    }
}

impl Shared {
    /// Ends writing for good.
    fn poison(&self, action: &'static str, source: io::Error) -> Error {
        self.poisoned.store(true, Ordering::Release);
        // The kernel may have thrown away what it had taken, and the next process
        // should know. If this fails too it finds what the disk has.
        let _ = self.medium.replace(FAILED, b"");
        Error::io(action, &self.directory)(source)
    }

    fn sync(&self) -> Result<(), Error> {
        let _one_at_a_time = self.syncing.lock().expect("not poisoned");
        if self.poisoned.load(Ordering::Acquire) {
            return Err(Error::Poisoned);
        }
        // Read before the list: what is written later may be covered or not.
        let written = self.written.load(Ordering::Acquire);
        let files = self.dirty.lock().expect("not poisoned").clone();
        for file in &files {
            file.sync().map_err(|source| self.poison("fsync", source))?;
        }
        let mut dirty = self.dirty.lock().expect("not poisoned");
        // The newest is still being written to; the ones before it are finished.
        let finished = &files[..files.len().saturating_sub(1)];
        dirty.retain(|file| !finished.iter().any(|done| Arc::ptr_eq(done, file)));
        drop(dirty);
        self.durable.fetch_max(written, Ordering::AcqRel);
        Ok(())
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
