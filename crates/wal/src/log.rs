//! Appends to a log.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;

use files::Error;
use files::framing::{self, HEADER_BYTES, RECORD_HEADER_BYTES};

use crate::covered::Covered;
use crate::durability::{self, Durability, Syncer};
use crate::head;
use crate::log_recovery::{self, RecoveredLog};
use crate::medium::Medium;
use crate::segment::{self, Segment};

/// Maximum size of the payload of a record in bytes.
pub const MAX_PAYLOAD_BYTES: usize = 2 << 30;

/// Number of bytes at the end of each segment that are kept free for
/// [`Log::append_spare`].
const SPARE_BYTES: u64 = 64;

/// Settings of a log.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Size that is allocated for a segment, in bytes.
    pub segment_bytes: u64,
}

impl Default for LogOptions {
    fn default() -> Self {
        LogOptions { segment_bytes: 64 << 20 }
    }
}

/// A log that is open for appending. Dropping it does not sync. The appended records then
/// survive the end of the process, but not a crash of the machine.
pub struct Log {
    medium: Arc<dyn Medium>,
    options: LogOptions,
    /// The segment to which records are appended; `None` before it is created.
    current: Option<Segment>,
    /// First sequence of the segment that `HEAD` names; 0 if it names none.
    head: u64,
    /// Sequence of the next record. The first record has the sequence 1.
    next: u64,
    /// The newest record that a later record proves to be durable. An empty record needs
    /// no proof, so it counts as proven.
    proven_durable: u64,
    buffer: Vec<u8>,
    durability: Arc<Durability>,
}

impl Log {
    /// Opens the log on `medium` for appending. Passes the payload of each record after
    /// `covered` to `visit`, in order; `covered` is the last record that the snapshot
    /// covers. Reports an error of `visit` as damage.
    pub fn open(
        medium: impl Medium,
        options: LogOptions,
        covered: impl Into<Covered>,
        mut visit: impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(Log, RecoveredLog), Error> {
        let (mut recovered, end) = log_recovery::recover(&medium, covered.into(), &mut visit)?;
        recovered.failed_before = durability::failed_before(&medium);
        let medium: Arc<dyn Medium> = Arc::new(medium);
        let durability = Arc::new(Durability::new(medium.clone(), end.next - 1));
        if let Some(segment) = &end.tail {
            durability.add_segment(segment.file.clone());
        }
        let mut log = Log {
            medium,
            options,
            current: end.tail,
            head: end.head,
            next: end.next,
            proven_durable: 0,
            buffer: Vec::new(),
            durability,
        };
        log.sync()?;
        Ok((log, recovered))
    }

    /// Reserves space on the disk: appending a payload of up to `bytes` bytes then cannot
    /// fail with [`Error::NoSpace`].
    pub fn reserve(&mut self, bytes: u64) -> Result<(), Error> {
        self.check_not_poisoned()?;
        let needed = bytes + RECORD_HEADER_BYTES as u64 + SPARE_BYTES;
        if self.current.as_ref().is_none_or(|s| s.size - s.position < needed) {
            self.create_segment(needed)?;
        }
        let first = self.current.as_ref().expect("just created").first;
        self.set_head(first)
    }

    /// Creates a segment with space for `needed` bytes, which include a record and the
    /// spare room.
    fn create_segment(&mut self, needed: u64) -> Result<(), Error> {
        let first = self.next;
        let name = segment::file_name(first);
        if self.current.as_ref().is_some_and(|s| s.first == first) {
            // The current segment has no record yet and is too small. The new segment
            // would have the same name, so remove the current one.
            self.set_head(0)?;
            self.current = None;
            self.medium
                .remove(&name)
                .map_err(Error::io("remove", self.medium.path().join(&name)))?;
        }
        let size = self.options.segment_bytes.max(HEADER_BYTES as u64 + needed);
        let file = self.medium.create(&name, size).map_err(|cause| self.create_error(cause))?;
        self.durability.add_segment(file.clone());
        let salt = RandomState::new().hash_one(first) as u32;
        self.current = Some(Segment { first, salt, file, position: 0, size });
        self.write(&framing::encode_header(segment::MAGIC, first, salt))?;
        // The header must be durable before the first record is written. So recovery can
        // treat a damaged header in front of records as corruption.
        let synced = self.current.as_ref().expect("just created").file.sync();
        synced.map_err(|cause| self.durability.poison("fsync", cause))
    }

    /// Makes `HEAD` name the segment whose first sequence is `first`; 0 means no segment.
    fn set_head(&mut self, first: u64) -> Result<(), Error> {
        if self.head != first {
            head::write(&*self.medium, first).map_err(|cause| self.create_error(cause))?;
            self.head = first;
        }
        Ok(())
    }

    /// Converts the error of creating a file. After this error the log can still be used.
    fn create_error(&self, cause: io::Error) -> Error {
        match is_disk_full(&cause) {
            true => Error::NoSpace { path: self.medium.path().to_owned() },
            false => Error::io("create a file of the log in", self.medium.path())(cause),
        }
    }

    /// Appends one record. After this call the record survives the end of the process;
    /// after a sync it also survives a crash of the machine. If the disk is full
    /// ([`Error::NoSpace`]), nothing is changed, and the caller may try again.
    pub fn append(&mut self, payload: &[u8]) -> Result<(), Error> {
        if payload.len() > MAX_PAYLOAD_BYTES {
            return Err(Error::TooLarge { bytes: payload.len() });
        }
        self.reserve(payload.len() as u64)?;
        self.append_reserved(payload)
    }

    /// Appends a small record to the spare room of the current segment, for use on a full
    /// disk. There is room for one or two records. After that, it also returns
    /// [`Error::NoSpace`].
    pub fn append_spare(&mut self, payload: &[u8]) -> Result<(), Error> {
        self.check_not_poisoned()?;
        let needed = (payload.len() + RECORD_HEADER_BYTES) as u64;
        let fits = |s: &Segment| s.first == self.head && s.size - s.position >= needed;
        match self.current.as_ref().is_some_and(fits) {
            true => self.append_reserved(payload),
            false => Err(Error::NoSpace { path: self.medium.path().to_owned() }),
        }
    }

    /// Appends one record to the current segment, which must have space for it.
    fn append_reserved(&mut self, payload: &[u8]) -> Result<(), Error> {
        let salt = self.current.as_ref().expect("the caller has reserved space").salt;
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let durable = self.durability.durable();
        framing::encode_record(salt, self.next, durable, payload, &mut buffer);
        let result = self.write(&buffer);
        // Free the memory of a large record, which is rare.
        buffer.shrink_to(1 << 20);
        self.buffer = buffer;
        result?;
        self.proven_durable = if payload.is_empty() { self.next } else { durable };
        self.durability.set_written(self.next);
        self.next += 1;
        Ok(())
    }

    /// Appends an empty record if the newest record is durable and no record proves it.
    /// Without such a proof, recovery cannot tell damage to the newest payload from an
    /// unfinished write, and truncates it.
    pub fn append_durability_proof(&mut self) -> Result<(), Error> {
        let durable = self.durability.durable();
        if durable == self.last() && self.proven_durable < durable {
            self.append(&[])?;
        }
        Ok(())
    }

    /// Writes at the end of the current segment.
    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let segment = self.current.as_mut().expect("the caller has reserved space");
        assert!(
            segment.position + bytes.len() as u64 <= segment.size,
            "the caller has reserved space"
        );
        if let Err(cause) = segment.file.write_all_at(bytes, segment.position) {
            return Err(self.durability.poison("write to", cause));
        }
        segment.position += bytes.len() as u64;
        Ok(())
    }

    /// Makes all appended records durable.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.durability.sync()
    }

    /// Returns the sequence of the newest record; 0 if no record was ever appended.
    pub fn last(&self) -> u64 {
        self.next - 1
    }

    /// Returns the sequence of the newest record that is known to be durable.
    pub fn durable(&self) -> u64 {
        self.durability.durable()
    }

    /// Returns a handle that removes old segments from another thread.
    pub fn trimmer(&self) -> Trimmer {
        Trimmer(self.medium.clone())
    }

    /// Returns a handle that syncs the log from another thread, also while this one
    /// appends.
    pub fn syncer(&self) -> Syncer {
        Syncer(self.durability.clone())
    }

    /// Clears [`RecoveredLog::failed_before`] for the next open. Call it once the log
    /// durably contains what the failure of the previous process implies.
    pub fn clear_failure(&self) -> Result<(), Error> {
        durability::clear_failure(&*self.medium)
    }

    /// Whether a write or an fsync has failed.
    pub fn is_poisoned(&self) -> bool {
        self.durability.is_poisoned()
    }

    fn check_not_poisoned(&self) -> Result<(), Error> {
        match self.is_poisoned() {
            true => Err(Error::Poisoned),
            false => Ok(()),
        }
    }
}

/// Removes old segments of a [`Log`].
pub struct Trimmer(Arc<dyn Medium>);

impl Trimmer {
    /// Removes the segments of which all records are covered, oldest first. `covered` is
    /// the last record that a durable snapshot covers.
    pub fn trim(&self, covered: u64) -> Result<(), Error> {
        let medium = &*self.0;
        let segments = segment::list(medium)?;
        for &first in &segments[..segment::count_covered(&segments, covered)] {
            let name = segment::file_name(first);
            medium.discard(&name).map_err(Error::io("remove", medium.path().join(name)))?;
        }
        Ok(())
    }
}

fn is_disk_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
