//! Reads all segments of a log in order, without changing them.
//!
//! Records are read until one is missing or damaged. The records after it decide what
//! that means:
//!
//! - A later record proves that the damaged one was durable: the log is corrupt, and the
//!   scan fails.
//! - No later record proves this: the machine stopped during the write. That record and
//!   all bytes after it were never promised to be durable, and opening cuts them off.

use std::path::{Path, PathBuf};

use files::Error;
use files::framing::{self, HEADER_BYTES, Header};

use crate::head;
use crate::medium::Medium;
use crate::segment::{self, Segment};

/// The position at which an unfinished write is, or was, cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The segment.
    pub file: PathBuf,
    /// Offset in the segment in bytes.
    pub offset: u64,
}

/// The content of a log.
#[derive(Default)]
pub(crate) struct ScannedLog {
    /// Number of records read, including those that a snapshot covers.
    pub(crate) records: u64,
    /// Bytes of their payloads.
    pub(crate) payload_bytes: u64,
    /// Where the log ends in an unfinished write.
    pub(crate) cut: Option<Cut>,
    /// The segments with records, in order.
    pub(crate) segments: Vec<ScannedSegment>,
    /// Sequence of the next record.
    pub(crate) next: u64,
    /// First sequence of the segment that `HEAD` names.
    pub(crate) head: u64,
    /// First sequences of the segments after the cut. They contain no record that was
    /// promised to be durable.
    pub(crate) unpromised: Vec<u64>,
}

/// A segment that was read.
pub(crate) struct ScannedSegment {
    pub(crate) segment: Segment,
    pub(crate) path: PathBuf,
    pub(crate) records: u64,
}

/// Takes the sequence and the payload of a record.
type Visit<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<(), String>;

/// Hands the payload of each record after `covered` to `visit`, in order.
pub(crate) fn scan(
    medium: &dyn Medium,
    covered: u64,
    visit: &mut dyn FnMut(&[u8]) -> Result<(), String>,
) -> Result<ScannedLog, Error> {
    let mut segments = segment::list(medium)?;
    let head = head::read(medium)?;
    require_head(medium, &segments, head)?;
    // Segments whose records are all covered may be damaged.
    segments.drain(..segment::count_covered(&segments, covered));
    if let Some(first) = segments.first().filter(|first| **first > covered + 1) {
        return Err(Error::Gap { path: medium.path().to_owned(), first: *first, covered });
    }
    let next = segments.first().map_or(covered + 1, |first| (*first).min(covered + 1));
    let mut log = ScannedLog { next, head, ..ScannedLog::default() };
    let mut visit_uncovered = |sequence: u64, payload: &[u8]| match sequence > covered {
        true => visit(payload),
        false => Ok(()),
    };
    for position in 0..segments.len() {
        scan_segment(medium, &segments[position..], &mut log, &mut visit_uncovered)?;
        if log.cut.is_some() {
            break;
        }
    }
    Ok(log)
}

/// Reads the first of `segments`; sets the cut if the log ends there in an unfinished
/// write.
fn scan_segment(
    medium: &dyn Medium,
    segments: &[u64],
    log: &mut ScannedLog,
    visit: Visit<'_>,
) -> Result<(), Error> {
    let first = segments[0];
    let name = segment::file_name(first);
    let path = medium.path().join(&name);
    let file = medium.open(&name).map_err(Error::io("open", &path))?;
    let content = file.read().map_err(Error::io("read", &path))?;
    let Some(salt) = read_header(&content, first, log.next, &path)? else {
        // The segment was being created, or the one before it ends too early.
        let damage = Damage { path: &path, offset: 0 };
        refuse_if_durable(medium, segments, log, damage)?;
        log.unpromised = segments.to_vec();
        log.cut = Some(Cut { file: path, offset: 0 });
        return Ok(());
    };
    let records_before = log.records;
    let end = read_records(&content, salt, &path, log, visit)?;
    if content[end..].iter().any(|byte| *byte != 0) {
        let damage = Damage { path: &path, offset: end as u64 };
        refuse_if_durable(medium, segments, log, damage)?;
        log.unpromised = segments[1..].to_vec();
        log.cut = Some(Cut { file: path.clone(), offset: end as u64 });
    }
    let (position, size) = (end as u64, content.len() as u64);
    let segment = Segment { first, salt, file, position, size };
    let records = log.records - records_before;
    log.segments.push(ScannedSegment { segment, path, records });
    Ok(())
}

/// Refuses a log that ends before the segment that `HEAD` names.
fn require_head(medium: &dyn Medium, segments: &[u64], head: u64) -> Result<(), Error> {
    if segments.last().copied().unwrap_or(0) >= head {
        return Ok(());
    }
    let file = medium.path().join(segment::file_name(head));
    let reason = "it is missing, but HEAD names it as the newest segment".into();
    Err(Error::Corrupt { file, offset: 0, reason })
}

/// Returns the salt of a segment that begins with record `next` and is named
/// accordingly; `None` if the header is damaged or names another record.
fn read_header(content: &[u8], named: u64, next: u64, path: &Path) -> Result<Option<u32>, Error> {
    match framing::decode_header(segment::MAGIC, content) {
        Header::Newer { format } => Err(Error::newer_format(path, format)),
        Header::Valid { number, salt } => Ok((number == named && number == next).then_some(salt)),
        Header::Damaged => Ok(None),
    }
}

/// Visits the intact records of a segment and returns the offset at which they end.
fn read_records(
    content: &[u8],
    salt: u32,
    path: &Path,
    log: &mut ScannedLog,
    visit: Visit<'_>,
) -> Result<usize, Error> {
    let mut offset = HEADER_BYTES;
    while let Some(record) = framing::decode_record(salt, &content[offset..]) {
        if record.sequence != log.next {
            break;
        }
        visit(record.sequence, record.payload).map_err(|reason| Error::Corrupt {
            file: path.to_owned(),
            offset: offset as u64,
            reason,
        })?;
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

/// Fails if a record in `segments`, the damaged segment and all later ones, proves that
/// the missing record `log.next` was durable.
fn refuse_if_durable(
    medium: &dyn Medium,
    segments: &[u64],
    log: &ScannedLog,
    damage: Damage<'_>,
) -> Result<(), Error> {
    let missing = log.next;
    for &first in segments {
        let path = medium.path().join(segment::file_name(first));
        let file = medium.open(&segment::file_name(first)).map_err(Error::io("open", &path))?;
        let content = file.read().map_err(Error::io("read", &path))?;
        let Header::Valid { salt, .. } = framing::decode_header(segment::MAGIC, &content) else {
            // A header is durable before HEAD names the segment and before its first
            // record is written. So a segment with an unfinished header has no records.
            let has_records = content.iter().skip(HEADER_BYTES).any(|byte| *byte != 0);
            if first != log.head && !has_records {
                continue;
            }
            let reason = "its header is damaged".to_owned();
            return Err(Error::Corrupt { file: path, offset: 0, reason });
        };
        if let Some(witness) = find_witness(&content[HEADER_BYTES..], salt, missing) {
            let reason = format!(
                "record {missing} is damaged or missing, and record {witness} proves that it was durable"
            );
            let file = damage.path.to_owned();
            return Err(Error::Corrupt { file, offset: damage.offset, reason });
        }
    }
    Ok(())
}

/// Returns the sequence of an intact record anywhere in `content` that was written when
/// `missing` was durable.
fn find_witness(content: &[u8], salt: u32, missing: u64) -> Option<u64> {
    for offset in 0..content.len() {
        let (sequence, durable) = framing::peek_sequences(&content[offset..])?;
        // A checksum at every offset would take hours, so check the numbers first.
        let plausible = sequence > missing
            && sequence - missing <= u64::from(u32::MAX)
            && (missing..sequence).contains(&durable);
        if plausible && framing::decode_record(salt, &content[offset..]).is_some() {
            return Some(sequence);
        }
    }
    None
}
