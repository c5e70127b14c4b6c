//! Reading a log back.
//!
//! Records are read in order until one is missing or damaged. What comes after
//! it decides what that means. If a later record says that the damaged one was
//! durable, it had been promised and the log is corrupt: opening fails. If none
//! does, the machine stopped while it was being written; it and all behind it
//! were never promised and are cut off.

use std::path::{Path, PathBuf};

use crate::Error;
use crate::head;
use crate::log::Segment;
use crate::medium::Medium;
use crate::segment::{self, HEADER_BYTES, Header};

/// What opening a log found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Records handed back.
    pub records: u64,
    /// Bytes of their payloads.
    pub payload_bytes: u64,
    /// Where an unfinished write was cut off, if there was one.
    pub cut: Option<Cut>,
    /// Whether a write or an fsync of the process before failed: then even under
    /// the same kernel something may be missing that was not synced.
    pub failed_before: bool,
}

/// A place where the log was cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The segment.
    pub file: PathBuf,
    /// Where in it, in bytes.
    pub offset: u64,
}

/// What a log holds, read without changing anything.
#[derive(Default)]
pub(crate) struct Survey {
    pub(crate) recovered: Recovered,
    /// The segments that count, in order.
    pub(crate) segments: Vec<Found>,
    /// Number of the record that is due next.
    pub(crate) next: u64,
    /// What `HEAD` names.
    head: u64,
    /// The segments behind them, which hold nothing that was promised.
    unpromised: Vec<u64>,
}

/// A segment that was read.
pub(crate) struct Found {
    pub(crate) segment: Segment,
    pub(crate) path: PathBuf,
    pub(crate) records: u64,
}

/// Where the next record goes.
pub(crate) struct End {
    pub(crate) next: u64,
    /// The segment to continue.
    pub(crate) tail: Option<Segment>,
    /// What `HEAD` names.
    pub(crate) head: u64,
}

/// Hands the payload of each record behind `covered` to `visit`, in order, and
/// cuts off an unfinished end. An error of `visit` is reported as damage at that
/// record.
pub(crate) fn recover(
    medium: &dyn Medium,
    covered: u64,
    visit: &mut dyn FnMut(&[u8]) -> Result<(), String>,
) -> Result<(Recovered, End), Error> {
    let Survey { recovered, mut segments, next, head, unpromised } =
        survey(medium, covered, visit)?;
    for Found { segment, path, .. } in &segments {
        // The process before this one may have left it to the page cache.
        segment.file.sync().map_err(Error::io("fsync", path))?;
    }
    let tail = segments.pop();
    if let (Some(cut), Some(Found { segment, path, .. })) = (&recovered.cut, &tail)
        && cut.file == *path
    {
        segment.file.zero_from(segment.position).map_err(Error::io("truncate", path))?;
        segment.file.sync().map_err(Error::io("sync", path))?;
    }
    let named = tail.as_ref().map_or(0, |found| found.segment.first);
    let head = if unpromised.contains(&head) { rename(medium, named)? } else { head };
    drop_from(medium, &unpromised)?;
    if next <= covered {
        // The log ends before what is covered: the machine lost its tail. What
        // is left of it says nothing new, and must not leave a gap behind it.
        let head = rename(medium, 0)?;
        drop_from(medium, &list(medium)?)?;
        return Ok((recovered, End { next: covered + 1, tail: None, head }));
    }
    Ok((recovered, End { next, tail: tail.map(|found| found.segment), head }))
}

/// Makes `HEAD` name what will be there when what it names is removed.
fn rename(medium: &dyn Medium, first: u64) -> Result<u64, Error> {
    head::write(medium, first).map_err(Error::io("write HEAD in", medium.path()))?;
    Ok(first)
}

/// Reads the records behind `covered`, tells an unfinished end from damage, and
/// changes nothing.
pub(crate) fn survey(
    medium: &dyn Medium,
    covered: u64,
    visit: &mut dyn FnMut(&[u8]) -> Result<(), String>,
) -> Result<Survey, Error> {
    let mut segments = list(medium)?;
    let head = head::read(medium)?;
    require(medium, &segments, head)?;
    // Segments whose records are all covered need not even be intact.
    segments.drain(..obsolete(&segments, covered));
    if let Some(first) = segments.first().filter(|first| **first > covered + 1) {
        return Err(Error::Gap { path: medium.path().to_owned(), first: *first, covered });
    }
    let next = segments.first().map_or(covered + 1, |first| (*first).min(covered + 1));
    let mut survey = Survey { next, head, ..Survey::default() };
    let mut visit_new = |sequence: u64, payload: &[u8]| match sequence > covered {
        true => visit(payload),
        false => Ok(()),
    };
    let visit: Visit<'_> = &mut visit_new;
    for (position, &first) in segments.iter().enumerate() {
        let name = segment::file_name(first);
        let path = medium.path().join(&name);
        let file = medium.open(&name).map_err(Error::io("open", &path))?;
        let content = file.read().map_err(Error::io("read", &path))?;
        let Some(salt) = check_header(&content, first, survey.next, &path)? else {
            // The segment was being made, or one before it ends too early.
            let damage = Damage { path: &path, offset: 0 };
            refuse_if_durable(medium, &segments[position..], head, survey.next, damage)?;
            survey.unpromised = segments[position..].to_vec();
            survey.recovered.cut = Some(Cut { file: path, offset: 0 });
            break;
        };
        let (before, Survey { next, recovered, .. }) = (survey.recovered.records, &mut survey);
        let offset = read_records(&content, salt, &path, next, recovered, &mut *visit)?;
        let clean = content[offset..].iter().all(|byte| *byte == 0);
        if !clean {
            let damage = Damage { path: &path, offset: offset as u64 };
            refuse_if_durable(medium, &segments[position..], head, survey.next, damage)?;
            survey.unpromised = segments[position + 1..].to_vec();
            survey.recovered.cut = Some(Cut { file: path.clone(), offset: offset as u64 });
        }
        let (position, size) = (offset as u64, content.len() as u64);
        let segment = Segment { first, salt, file, position, size };
        let records = survey.recovered.records - before;
        survey.segments.push(Found { segment, path, records });
        if !clean {
            break;
        }
    }
    Ok(survey)
}

/// Refuses a log that ends before the segment that `HEAD` names.
fn require(medium: &dyn Medium, segments: &[u64], head: u64) -> Result<(), Error> {
    if segments.last().copied().unwrap_or(0) >= head {
        return Ok(());
    }
    let file = medium.path().join(segment::file_name(head));
    let reason = "it is missing, and HEAD says that it was the newest segment".into();
    Err(Error::Corrupt { file, offset: 0, reason })
}

/// Takes the sequence and the payload of a record.
type Visit<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<(), String>;

/// How many of the `segments` hold nothing behind `covered`.
pub(crate) fn obsolete(segments: &[u64], covered: u64) -> usize {
    segments.iter().skip(1).take_while(|next| **next <= covered + 1).count()
}

/// First sequences of the segments, in order.
pub(crate) fn list(medium: &dyn Medium) -> Result<Vec<u64>, Error> {
    let names = medium.list().map_err(Error::io("list", medium.path()))?;
    let mut segments: Vec<u64> =
        names.iter().filter_map(|name| segment::parse_file_name(name)).collect();
    segments.sort_unstable();
    Ok(segments)
}

/// The salt of a segment that begins with the record that is due.
fn check_header(content: &[u8], named: u64, next: u64, path: &Path) -> Result<Option<u32>, Error> {
    match segment::decode_header(segment::SEGMENT, content) {
        Header::Newer { format } => Err(Error::NewerFormat {
            path: path.to_owned(),
            found: format.into(),
            supported: segment::FORMAT.into(),
        }),
        Header::Valid { first, salt } => Ok((first == named && first == next).then_some(salt)),
        Header::Damaged => Ok(None),
    }
}

/// Visits the intact records of a segment and returns where they end.
fn read_records(
    content: &[u8],
    salt: u32,
    path: &Path,
    next: &mut u64,
    recovered: &mut Recovered,
    visit: Visit<'_>,
) -> Result<usize, Error> {
    let mut offset = HEADER_BYTES;
    while let Some(record) = segment::decode_record(salt, &content[offset..]) {
        if record.sequence != *next {
            break;
        }
        visit(record.sequence, record.payload).map_err(|reason| Error::Corrupt {
            file: path.to_owned(),
            offset: offset as u64,
            reason,
        })?;
        *next += 1;
        recovered.records += 1;
        recovered.payload_bytes += record.payload.len() as u64;
        offset += record.encoded_len();
    }
    Ok(offset)
}

#[derive(Clone, Copy)]
struct Damage<'a> {
    path: &'a Path,
    offset: u64,
}

/// Looks in the damaged segment and the `later` ones, the damaged one in front,
/// for a record that says `missing` was durable.
fn refuse_if_durable(
    medium: &dyn Medium,
    segments: &[u64],
    head: u64,
    missing: u64,
    damage: Damage<'_>,
) -> Result<(), Error> {
    for &first in segments {
        let path = medium.path().join(segment::file_name(first));
        let file = medium.open(&segment::file_name(first)).map_err(Error::io("open", &path))?;
        let content = file.read().map_err(Error::io("read", &path))?;
        let Header::Valid { salt, .. } = segment::decode_header(segment::SEGMENT, &content) else {
            // A header is durable before the first record is written, so there
            // is nothing behind one that was not finished.
            // Nor does HEAD name one.
            let written = content.iter().skip(HEADER_BYTES).any(|byte| *byte != 0);
            let begun = first == head || written;
            let reason = "its header is damaged".to_owned();
            match begun {
                true => return Err(Error::Corrupt { file: path, offset: 0, reason }),
                false => continue,
            }
        };
        if let Some(witness) = find_promise(&content[HEADER_BYTES..], salt, missing) {
            let reason = format!(
                "record {missing} is damaged or missing, and record {witness} says that it was durable"
            );
            let file = damage.path.to_owned();
            return Err(Error::Corrupt { file, offset: damage.offset, reason });
        }
    }
    Ok(())
}

/// The sequence of an intact record anywhere in `content` that was written when
/// `missing` was durable.
fn find_promise(content: &[u8], salt: u32, missing: u64) -> Option<u64> {
    for offset in 0..content.len() {
        let (sequence, durable) = segment::claims(&content[offset..])?;
        // Looked at first, because a checksum at every offset would take hours.
        let plausible = sequence > missing
            && sequence - missing <= u64::from(u32::MAX)
            && (missing..sequence).contains(&durable);
        if plausible && segment::decode_record(salt, &content[offset..]).is_some() {
            return Some(sequence);
        }
    }
    None
}

fn drop_from(medium: &dyn Medium, segments: &[u64]) -> Result<(), Error> {
    // The last goes first: a crash in between leaves no gap.
    for &first in segments.iter().rev() {
        let name = segment::file_name(first);
        medium.remove(&name).map_err(Error::io("remove", medium.path().join(name)))?;
    }
    Ok(())
}
