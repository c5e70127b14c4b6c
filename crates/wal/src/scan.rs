//! Reads all segments of a log in order, without changing them.
//!
//! Records are read until one is missing or damaged. The bytes after it decide the
//! result:
//!
//! - A later record proves that the missing record was durable: the log is corrupt, and
//!   the scan fails.
//! - No later record proves this: the machine crashed during the write. The missing
//!   record and all bytes after it were never reported as durable, and opening truncates
//!   the log here.
//!
//! `HEAD` proves it too: it states a durable record.

use std::path::{Path, PathBuf};

use files::framing::{self, HEADER_BYTES, Header, RECORD_HEADER_BYTES};
use files::record_search::RecordSearch;
use files::{Error, PayloadError};

use crate::content::Content;
use crate::head::{self, StoredHead};
use crate::medium::Medium;
use crate::segment::{self, Segment};

/// The position of an unfinished write, at which opening truncates the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfinishedWrite {
    /// Path of the segment.
    pub file: PathBuf,
    /// Offset in the segment in bytes.
    pub offset: u64,
}

/// The content of a log.
#[derive(Default)]
pub(crate) struct ScannedLog {
    /// Number of records that were read, including those that the snapshot covers.
    pub(crate) records: u64,
    /// Total size of their payloads in bytes.
    pub(crate) payload_bytes: u64,
    /// Total size of the records that the snapshot does not cover, in bytes.
    pub(crate) uncovered_bytes: u64,
    /// The newest record that another record or `HEAD` proves to be durable.
    pub(crate) proven: u64,
    /// Where the log ends with an unfinished write.
    pub(crate) unfinished_write: Option<UnfinishedWrite>,
    /// The segments with records, in order.
    pub(crate) segments: Vec<ScannedSegment>,
    /// Sequence of the next record.
    pub(crate) next: u64,
    /// The content of `HEAD`.
    pub(crate) head: StoredHead,
    /// First sequences of the segments after the end of the log. They contain no record
    /// that was reported as durable.
    pub(crate) segments_after_end: Vec<u64>,
}

/// A segment that was read.
pub(crate) struct ScannedSegment {
    pub(crate) segment: Segment,
    pub(crate) path: PathBuf,
    /// Number of records in the segment.
    pub(crate) records: u64,
    /// The end of the segment that nothing proves to be durable: its records, and the
    /// header if none of its records is proven.
    pub(crate) unproven: Vec<u8>,
    /// Number of bytes after the last record, up to the last one that is not zero.
    pub(crate) garbage_bytes: u64,
}

impl ScannedSegment {
    /// Returns the offset of [`ScannedSegment::unproven`].
    pub(crate) fn unproven_offset(&self) -> u64 {
        self.segment.position - self.unproven.len() as u64
    }
}

/// A function that gets the payload of each record that the snapshot does not cover.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), PayloadError>;

/// Passes the payload of each record after `covered` to `visit`, in order; `covered` is
/// the last record that the snapshot covers. Fails if the log does not contain what `HEAD`
/// states.
pub(crate) fn scan(
    medium: &dyn Medium,
    covered: u64,
    visit: Visit<'_>,
) -> Result<ScannedLog, Error> {
    let head = head::read(medium)?;
    let segments = segment::list(medium)?;
    require_head_segment(medium, &segments, &head)?;
    let log = scan_segments(medium, covered, segments, head, visit)?;
    require_durable_record(medium, covered, &log)?;
    Ok(log)
}

/// Does the same without `HEAD`, which may be damaged.
pub(crate) fn scan_without_head(
    medium: &dyn Medium,
    covered: u64,
    visit: Visit<'_>,
) -> Result<ScannedLog, Error> {
    let segments = segment::list(medium)?;
    scan_segments(medium, covered, segments, StoredHead::default(), visit)
}

/// Reads `segments` up to the end of the log.
fn scan_segments(
    medium: &dyn Medium,
    covered: u64,
    mut segments: Vec<u64>,
    head: StoredHead,
    visit: Visit<'_>,
) -> Result<ScannedLog, Error> {
    // Skip the segments of which all records are covered. They are not needed, so they
    // may be damaged.
    segments.drain(..segment::count_covered(&segments, covered));
    if let Some(first) = segments.first().filter(|first| **first > covered + 1) {
        return Err(Error::Gap { path: medium.path().to_owned(), first: *first, covered });
    }
    let next = segments.first().map_or(covered + 1, |first| (*first).min(covered + 1));
    let proven = head.head.durable;
    let mut log = ScannedLog { next, head, proven, ..ScannedLog::default() };
    scan_rest(medium, &segments, covered, &mut log, visit)?;
    Ok(log)
}

/// Reads `segments` up to the end of the log, unless `log` has ended already.
pub(crate) fn scan_rest(
    medium: &dyn Medium,
    segments: &[u64],
    covered: u64,
    log: &mut ScannedLog,
    visit: Visit<'_>,
) -> Result<(), Error> {
    for index in 0..segments.len() {
        if log.unfinished_write.is_some() {
            break;
        }
        scan_segment(medium, &segments[index..], covered, log, visit)?;
    }
    Ok(())
}

/// Reads the first of `segments`. Sets `log.unfinished_write` if the log ends there with
/// an unfinished write.
fn scan_segment(
    medium: &dyn Medium,
    segments: &[u64],
    covered: u64,
    log: &mut ScannedLog,
    visit: Visit<'_>,
) -> Result<(), Error> {
    let first = segments[0];
    let name = segment::file_name(first);
    let path = medium.path().join(&name);
    let file = medium.open(&name).map_err(Error::io("open", &path))?;
    let readable = Content::read(&*file).map_err(Error::io("read", &path))?;
    let content = &readable.bytes;
    require_full_size(content, first, &log.head, &path)?;
    let Some((format, salt)) = read_header(content, first, log.next, &path)? else {
        readable.require_readable(&path, 0)?;
        // The creation of the segment was interrupted, or the log ends in the segment
        // before it.
        let damage = Damage { path: &path, offset: 0 };
        refuse_if_durable(medium, segments, log, damage)?;
        log.segments_after_end = segments.to_vec();
        log.unfinished_write = Some(UnfinishedWrite { file: path, offset: 0 });
        return Ok(());
    };
    let records_before = log.records;
    let end = read_records((content, HEADER_BYTES), salt, &path, covered, log, visit)?;
    // What cannot be read may be a durable record.
    readable.require_readable(&path, end)?;
    let garbage_bytes = judge_end(medium, segments, (content, end), &path, log)?;
    let (position, size) = (end as u64, content.len() as u64);
    let segment = Segment { first, format, salt, file, position, size };
    let records = log.records - records_before;
    let unproven = content[unproven_offset(content, first, log.proven, end)..end].to_vec();
    log.segments.push(ScannedSegment { segment, path, records, unproven, garbage_bytes });
    log.forget_proven();
    Ok(())
}

/// Returns the number of bytes after `end`, where the records of the first of `segments` end,
/// up to the last one that is not zero. If there is one, the log ends with an unfinished
/// write, or is refused.
pub(crate) fn judge_end(
    medium: &dyn Medium,
    segments: &[u64],
    (content, end): (&[u8], usize),
    path: &Path,
    log: &mut ScannedLog,
) -> Result<u64, Error> {
    let garbage_bytes = content[end..].iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
    if garbage_bytes > 0 {
        let damage = Damage { path, offset: end as u64 };
        refuse_if_durable(medium, segments, log, damage)?;
        log.segments_after_end = segments[1..].to_vec();
        log.unfinished_write = Some(UnfinishedWrite { file: path.into(), offset: end as u64 });
    }
    Ok(garbage_bytes as u64)
}

impl ScannedLog {
    /// Frees the unproven content of segments that a later record has proven.
    fn forget_proven(&mut self) {
        for scanned in &mut self.segments {
            if scanned.records > 0 && scanned.segment.first + scanned.records - 1 <= self.proven {
                scanned.unproven = Vec::new();
            }
        }
    }
}

/// Returns the offset in a segment after its last record up to `proven`; 0 if there is none.
/// The records end at `end`.
fn unproven_offset(content: &[u8], first: u64, proven: u64, end: usize) -> usize {
    if first > proven {
        return 0;
    }
    let mut offset = HEADER_BYTES;
    for _ in first..=proven {
        if offset == end {
            break;
        }
        offset += RECORD_HEADER_BYTES + framing::peek_payload_len(&content[offset..]);
    }
    offset
}

/// Refuses a log that ends before the segment that `HEAD` names.
fn require_head_segment(
    medium: &dyn Medium,
    segments: &[u64],
    head: &StoredHead,
) -> Result<(), Error> {
    let first = head.head.first;
    if segments.last().copied().unwrap_or(0) >= first {
        return Ok(());
    }
    let file = medium.path().join(segment::file_name(first));
    let reason = "it is missing, but HEAD names it as the newest segment".into();
    Err(Error::Corrupt { file, offset: 0, reason })
}

/// Refuses the segment that `HEAD` names if it is smaller than `HEAD` states.
fn require_full_size(
    content: &[u8],
    first: u64,
    head: &StoredHead,
    path: &Path,
) -> Result<(), Error> {
    let (bytes, offset) = (head.head.bytes, content.len() as u64);
    if first != head.head.first || offset >= bytes {
        return Ok(());
    }
    let reason = format!("it ends here, but HEAD states a size of {bytes} bytes");
    Err(Error::Corrupt { file: path.to_owned(), offset, reason })
}

/// Refuses a log that neither contains the durable record of `HEAD` nor has it covered by
/// the snapshot. Also refuses one whose `HEAD` is missing.
fn require_durable_record(
    medium: &dyn Medium,
    covered: u64,
    log: &ScannedLog,
) -> Result<(), Error> {
    let corrupt = |file, offset, reason| Err(Error::Corrupt { file, offset, reason });
    // Since format 3, `HEAD` exists before the first record does.
    let has_records = |s: &ScannedSegment| s.records > 0 && s.segment.format > 1;
    if log.head.format == 0 && log.segments.iter().any(has_records) {
        return corrupt(medium.path().join(head::NAME), 0, "it is missing".into());
    }
    let durable = log.head.head.durable;
    if durable <= covered.max(log.next.saturating_sub(1)) {
        return Ok(());
    }
    let reason = format!(
        "record {} is damaged or missing, and HEAD states that record {durable} was durable",
        log.next
    );
    let (file, offset) = match (&log.unfinished_write, log.segments.last()) {
        (Some(write), _) => (write.file.clone(), write.offset),
        (None, Some(last)) => (last.path.clone(), last.segment.position),
        (None, None) => (medium.path().to_owned(), 0),
    };
    corrupt(file, offset, reason)
}

/// Returns the format and the salt in the header of a segment. Returns `None` if the header
/// is damaged, or if the first sequence in it differs from that in the file name (`named`)
/// or from the expected one (`next`).
fn read_header(
    content: &[u8],
    named: u64,
    next: u64,
    path: &Path,
) -> Result<Option<(u16, u32)>, Error> {
    match framing::decode_header(segment::MAGIC, content) {
        Header::Newer { format } => Err(Error::newer_format(path, format)),
        Header::Valid { format, number, salt } => {
            Ok((number == named && number == next).then_some((format, salt)))
        }
        Header::Damaged => Ok(None),
    }
}

/// Visits the intact records of a segment from offset `start` up to the first missing or
/// damaged one. Returns the offset at which they end.
pub(crate) fn read_records(
    (content, start): (&[u8], usize),
    salt: u32,
    path: &Path,
    covered: u64,
    log: &mut ScannedLog,
    visit: Visit<'_>,
) -> Result<usize, Error> {
    let mut offset = start;
    while let Some(record) = framing::decode_record(salt, &content[offset..]) {
        if record.sequence != log.next {
            break;
        }
        if record.sequence > covered {
            visit(record.payload).map_err(|error| error.at(path, offset as u64))?;
            log.uncovered_bytes += record.encoded_len() as u64;
        }
        log.proven = log.proven.max(record.durable.min(record.sequence.saturating_sub(1)));
        log.next += 1;
        log.records += 1;
        log.payload_bytes += record.payload.len() as u64;
        offset += record.encoded_len();
    }
    Ok(offset)
}

/// The position of the first missing or damaged record.
#[derive(Clone, Copy)]
struct Damage<'a> {
    path: &'a Path,
    offset: u64,
}

/// Fails if a record proves that the missing record `log.next` was durable. Searches
/// `segments`: the damaged segment from the damage on, and all later ones.
fn refuse_if_durable(
    medium: &dyn Medium,
    segments: &[u64],
    log: &ScannedLog,
    damage: Damage<'_>,
) -> Result<(), Error> {
    let missing = log.next;
    let mut start = HEADER_BYTES.max(damage.offset as usize);
    for &first in segments {
        let from = std::mem::replace(&mut start, HEADER_BYTES);
        let path = medium.path().join(segment::file_name(first));
        let file = medium.open(&segment::file_name(first)).map_err(Error::io("open", &path))?;
        let readable = Content::read(&*file).map_err(Error::io("read", &path))?;
        readable.require_readable(&path, 0)?;
        let content = readable.bytes;
        let (number, salt) = match framing::decode_header(segment::MAGIC, &content) {
            Header::Valid { number, salt, .. } => (number, salt),
            Header::Newer { format } => return Err(Error::newer_format(&path, format)),
            Header::Damaged if header_may_be_unfinished(&log.head, first, &content) => continue,
            Header::Damaged => {
                let reason = "its header is damaged".to_owned();
                return Err(Error::Corrupt { file: path, offset: 0, reason });
            }
        };
        if let Some(proof) = find_proof((&content, from), number, salt, missing) {
            let reason = format!(
                "record {missing} is damaged or missing, and record {proof} proves that it was durable"
            );
            let file = damage.path.to_owned();
            return Err(Error::Corrupt { file, offset: damage.offset, reason });
        }
    }
    Ok(())
}

/// Whether a segment with a damaged header has no durable record.
fn header_may_be_unfinished(head: &StoredHead, first: u64, content: &[u8]) -> bool {
    if head.names_every_durable_segment() {
        return first > head.head.first;
    }
    // In format 1, the header was durable before `HEAD` named the segment, and before its
    // first record was written.
    let has_records = content.iter().skip(HEADER_BYTES).any(|byte| *byte != 0);
    first != head.head.first && !has_records
}

/// Searches the content of a segment from an offset on for an intact record that states that
/// the record `missing` was durable. Returns its sequence. `first` is the sequence of the
/// first record of the segment.
fn find_proof((content, from): (&[u8], usize), first: u64, salt: u32, missing: u64) -> Option<u64> {
    let proves = |offset, sequence, durable| {
        may_contain(first, offset, sequence) && (missing..sequence).contains(&durable)
    };
    RecordSearch::new(content, salt).find(from, proves).map(|(_, record)| record.sequence)
}

/// Whether a segment whose first record is `first` may contain the record `sequence` at
/// `offset`: all records before it need space.
pub(crate) fn may_contain(first: u64, offset: usize, sequence: u64) -> bool {
    let records_before = (offset - HEADER_BYTES) / RECORD_HEADER_BYTES;
    sequence.checked_sub(first).is_some_and(|distance| distance <= records_before as u64)
}
