//! Appends to a log.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;

use files::framing::{self, FORMAT, HEADER_BYTES, RECORD_HEADER_BYTES};
use files::{Error, PayloadError};

use crate::covered::Covered;
use crate::durability::{self, Durability, Syncer, is_disk_full};
use crate::log_recovery::{self, RecoveredLog};
use crate::medium::{LogFile, Medium};
use crate::prepared::SegmentFiles;
use crate::segment::{self, Segment};
use crate::space::SpaceClaim;

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
    files: Arc<SegmentFiles>,
    /// The newest segment; `None` before the first one is created.
    current: Option<Segment>,
    /// Whether `HEAD` exists in the current format. If the disk was full when the log was
    /// opened, it does not.
    head_exists: bool,
    /// Sequence of the next record. The first record has the sequence 1.
    next: u64,
    /// The newest record that a later record proves to be durable. An empty record needs
    /// no proof, so it counts as proven.
    proven_durable: u64,
    /// Total size of the records that this process has appended, in bytes.
    appended_bytes: u64,
    buffer: Vec<u8>,
    durability: Arc<Durability>,
}

impl Log {
    /// Opens the log on `medium` for appending. Passes the payload of each record after
    /// `covered` to `visit`, in order; `covered` is the last record that the snapshot
    /// covers. An error of `visit` becomes that of the file. All records that were visited
    /// are durable when this returns.
    pub fn open(
        medium: impl Medium,
        options: LogOptions,
        covered: impl Into<Covered>,
        mut visit: impl FnMut(&[u8]) -> Result<(), PayloadError>,
    ) -> Result<(Log, RecoveredLog), Error> {
        let medium: Arc<dyn Medium> = Arc::new(medium);
        let failed_before = durability::failed_before(&*medium)?;
        let (recovered, end) =
            log_recovery::recover(&medium, covered.into(), failed_before, &mut visit)?;
        let files = SegmentFiles::new(medium.clone(), options.segment_bytes)
            .map_err(Error::io("remove unused files in", medium.path()))?;
        let head_exists = end.head.exists();
        let durability = Arc::new(Durability::new(medium.clone(), end.next - 1, end.head));
        if let Some(segment) = &end.tail {
            durability.add_segment(segment);
        }
        let log = Log {
            medium,
            files: Arc::new(files),
            current: end.tail,
            head_exists,
            next: end.next,
            proven_durable: 0,
            appended_bytes: 0,
            buffer: Vec::new(),
            durability,
        };
        Ok((log, recovered))
    }

    /// Reserves space on the disk: appending a payload of up to `bytes` bytes then cannot
    /// fail with [`Error::NoSpace`]. Fails as long as the disk has no space for `HEAD`.
    pub fn reserve(&mut self, bytes: u64) -> Result<(), Error> {
        self.check_not_poisoned()?;
        if !self.head_exists {
            self.durability.create_head().map_err(|cause| self.create_error(cause))?;
            self.head_exists = true;
        }
        if self.durability.head_lacks_space() {
            self.durability.sync()?;
        }
        match self.fits(needed(bytes)) {
            true => Ok(()),
            false => self.create_segment(needed(bytes)),
        }
    }

    /// Ensures that the sync of the next records needs no space on the disk: `HEAD` then names
    /// the current segment. Waits for the disk if the segment is new.
    pub fn reserve_sync(&mut self) -> Result<(), Error> {
        match self.durability.newest_is_named() {
            true => Ok(()),
            false => self.durability.sync(),
        }
    }

    /// Whether [`Log::reserve`] with the same number of bytes waits for the disk.
    pub fn reserve_waits(&self, bytes: u64) -> bool {
        let needed = needed(bytes);
        let prepared =
            || !self.replaces_segment() && self.files.is_prepared(HEADER_BYTES as u64 + needed);
        !self.head_exists
            || self.durability.head_lacks_space()
            || !(self.fits(needed) || prepared())
    }

    /// Whether the current segment has space for `needed` bytes.
    fn fits(&self, needed: u64) -> bool {
        let fits = |s: &Segment| s.format == FORMAT && s.size - s.position >= needed;
        self.current.as_ref().is_some_and(fits)
    }

    /// Whether a new segment would have the name of the current one, which then has no
    /// record yet.
    fn replaces_segment(&self) -> bool {
        self.current.as_ref().is_some_and(|s| s.first == self.next)
    }

    /// Creates a segment with space for `needed` bytes, which include a record and the
    /// spare room. Its header and its name are durable after the next sync.
    fn create_segment(&mut self, needed: u64) -> Result<(), Error> {
        let first = self.next;
        let salt = RandomState::new().hash_one(first) as u32;
        let header = framing::encode_header(segment::MAGIC, first, salt);
        let replaces_segment = self.replaces_segment();
        let write_header = |file: &dyn LogFile| {
            file.write_all_at(&header, 0)?;
            // `HEAD` may name the replaced segment. Then the header must be durable as soon
            // as the file has this name.
            if replaces_segment { file.sync() } else { Ok(()) }
        };
        let bytes = HEADER_BYTES as u64 + needed;
        let (file, size) = self
            .files
            .create(&segment::file_name(first), bytes, write_header)
            .map_err(|cause| self.create_error(cause))?;
        let position = HEADER_BYTES as u64;
        let segment = Segment { first, format: FORMAT, salt, file, position, size };
        self.durability.add_new_segment(&segment);
        self.current = Some(segment);
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
        match self.head_exists && self.fits((payload.len() + RECORD_HEADER_BYTES) as u64) {
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
        self.appended_bytes += bytes.len() as u64;
        if segment.position > segment.size / 2 {
            self.files.request();
        }
        Ok(())
    }

    /// Makes all appended records durable. After [`Error::NoSpace`], which
    /// [`Log::reserve_sync`] prevents, the caller may call it again.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.durability.sync()
    }

    /// Makes `HEAD` state the newest durable record, also if a part of `HEAD` is damaged
    /// later. Call it after the last record of this process.
    pub fn settle_head(&self) -> Result<(), Error> {
        self.durability.settle_head()
    }

    /// Returns the sequence of the newest record; 0 if no record was ever appended.
    pub fn last(&self) -> u64 {
        self.next - 1
    }

    /// Returns the total size of the records that this process has appended, in bytes.
    pub fn appended_bytes(&self) -> u64 {
        self.appended_bytes
    }

    /// Returns the sequence of the newest record that is known to be durable.
    pub fn durable(&self) -> u64 {
        self.durability.durable()
    }

    /// Returns a handle that removes old segments from another thread.
    pub fn trimmer(&self) -> Trimmer {
        Trimmer(self.medium.clone())
    }

    /// Returns a handle that prepares segments in another thread.
    pub fn preparer(&self) -> Preparer {
        Preparer(self.files.clone())
    }

    /// Returns a handle with which a snapshot claims space on the disk. After a failure to
    /// create a segment, the log leaves it free.
    pub fn space_claim(&self) -> SpaceClaim {
        self.files.space_claim()
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

/// Prepares the next segment of a [`Log`], so that appending does not wait for the disk.
pub struct Preparer(Arc<SegmentFiles>);

impl Preparer {
    /// Allocates the space of the next segment if the current one is half full. If this
    /// fails, the log tries it itself when it needs the segment.
    pub fn prepare(&self) -> io::Result<()> {
        self.0.prepare()
    }
}

/// Returns the space that a record with a payload of `bytes` bytes needs in a segment, with
/// the spare room.
fn needed(bytes: u64) -> u64 {
    bytes + RECORD_HEADER_BYTES as u64 + SPARE_BYTES
}
