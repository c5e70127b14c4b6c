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

use std::path::{Path, PathBuf};

use files::Error;
use files::framing::{self, HEADER_BYTES, Header};

use crate::head;
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
    /// Where the log ends with an unfinished write.
    pub(crate) unfinished_write: Option<UnfinishedWrite>,
    /// The segments with records, in order.
    pub(crate) segments: Vec<ScannedSegment>,
    /// Sequence of the next record.
    pub(crate) next: u64,
    /// First sequence of the segment that `HEAD` names; 0 if it names none.
    pub(crate) head: u64,
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
}

/// A function that gets the sequence and the payload of each record.
type Visit<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<(), String>;

/// Passes the payload of each record after `covered` to `visit`, in order; `covered` is
/// the last record that the snapshot covers.
pub(crate) fn scan(
    medium: &dyn Medium,
    covered: u64,
    visit: &mut dyn FnMut(&[u8]) -> Result<(), String>,
) -> Result<ScannedLog, Error> {
    let mut segments = segment::list(medium)?;
    let head = head::read(medium)?;
    require_head_segment(medium, &segments, head)?;
    // Skip the segments of which all records are covered. They are not needed, so they
    // may be damaged.
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
    for index in 0..segments.len() {
        scan_segment(medium, &segments[index..], &mut log, &mut visit_uncovered)?;
        if log.unfinished_write.is_some() {
            break;
        }
    }
    Ok(log)
}

/// Reads the first of `segments`. Sets `log.unfinished_write` if the log ends there with
/// an unfinished write.
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
        // The creation of the segment was interrupted, or the log ends in the segment
        // before it.
        let damage = Damage { path: &path, offset: 0 };
        refuse_if_durable(medium, segments, log, damage)?;
        log.segments_after_end = segments.to_vec();
        log.unfinished_write = Some(UnfinishedWrite { file: path, offset: 0 });
        return Ok(());
    };
    let records_before = log.records;
    let end = read_records(&content, salt, &path, log, visit)?;
    if content[end..].iter().any(|byte| *byte != 0) {
        let damage = Damage { path: &path, offset: end as u64 };
        refuse_if_durable(medium, segments, log, damage)?;
        log.segments_after_end = segments[1..].to_vec();
        log.unfinished_write = Some(UnfinishedWrite { file: path.clone(), offset: end as u64 });
    }
    let (position, size) = (end as u64, content.len() as u64);
    let segment = Segment { first, salt, file, position, size };
    let records = log.records - records_before;
    log.segments.push(ScannedSegment { segment, path, records });
    Ok(())
}

/// Refuses a log that ends before the segment that `HEAD` names.
fn require_head_segment(medium: &dyn Medium, segments: &[u64], head: u64) -> Result<(), Error> {
    if segments.last().copied().unwrap_or(0) >= head {
        return Ok(());
    }
    let file = medium.path().join(segment::file_name(head));
    let reason = "it is missing, but HEAD names it as the newest segment".into();
    Err(Error::Corrupt { file, offset: 0, reason })
}

/// Returns the salt in the header of a segment. Returns `None` if the header is damaged,
/// or if the first sequence in it differs from that in the file name (`named`) or from
/// the expected one (`next`).
fn read_header(content: &[u8], named: u64, next: u64, path: &Path) -> Result<Option<u32>, Error> {
    match framing::decode_header(segment::MAGIC, content) {
        Header::Newer { format } => Err(Error::newer_format(path, format)),
        Header::Valid { number, salt } => Ok((number == named && number == next).then_some(salt)),
        Header::Damaged => Ok(None),
    }
}

/// Visits the intact records of a segment up to the first missing or damaged one. Returns
/// the offset at which they end.
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

/// Fails if a record proves that the missing record `log.next` was durable. Searches
/// `segments`: the damaged segment and all later ones.
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
            // A header is durable before HEAD names the segment and before the first
            // record is written. So a segment whose header was not completely written has
            // no records.
            let has_records = content.iter().skip(HEADER_BYTES).any(|byte| *byte != 0);
            if first != log.head && !has_records {
                continue;
            }
            let reason = "its header is damaged".to_owned();
            return Err(Error::Corrupt { file: path, offset: 0, reason });
        };
        if let Some(proof) = find_proof(&content[HEADER_BYTES..], salt, missing) {
            let reason = format!(
                "record {missing} is damaged or missing, and record {proof} proves that it was durable"
            );
            let file = damage.path.to_owned();
            return Err(Error::Corrupt { file, offset: damage.offset, reason });
        }
    }
    Ok(())
}

/// Searches `content` for an intact record that states that the record `missing` was
/// durable. Returns its sequence.
fn find_proof(content: &[u8], salt: u32, missing: u64) -> Option<u64> {
    for offset in 0..content.len() {
        let (sequence, durable) = framing::peek_sequences(&content[offset..])?;
        // Computing a checksum at every offset would take hours. So check the numbers
        // first.
        let plausible = sequence > missing
            && sequence - missing <= u64::from(u32::MAX)
            && (missing..sequence).contains(&durable);
        if plausible && framing::decode_record(salt, &content[offset..]).is_some() {
            return Some(sequence);
        }
    }
    None
}
