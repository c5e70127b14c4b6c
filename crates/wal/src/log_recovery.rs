//! Opens a log: scans it, truncates an unfinished write, and makes the rest durable.

use std::io;
use std::sync::Arc;

use files::Error;

use crate::covered::Covered;
use crate::durability::{is_disk_full, mark_failure};
use crate::head::{Head, HeadFile};
use crate::medium::Medium;
use crate::scan::{self, ScannedLog, ScannedSegment, UnfinishedWrite, Visit};
use crate::segment::{self, Segment};

/// The result of opening a log.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RecoveredLog {
    /// Number of records that were read, including those that the snapshot covers.
    pub records: u64,
    /// Total size of their payloads in bytes.
    pub payload_bytes: u64,
    /// Total size of the records that the snapshot does not cover, in bytes.
    pub uncovered_bytes: u64,
    /// Where an unfinished write was truncated.
    pub unfinished_write: Option<UnfinishedWrite>,
    /// Whether a write or an fsync of the previous process failed. Then unsynced records
    /// may be missing although the machine has kept running.
    pub failed_before: bool,
}

/// The end of a recovered log, where appending continues.
pub(crate) struct LogEnd {
    /// Sequence of the next record.
    pub(crate) next: u64,
    /// The newest segment; `None` if there is none.
    pub(crate) tail: Option<Segment>,
    pub(crate) head: HeadFile,
}

/// Passes the payload of each record after the record `covered` to `visit`, in order.
/// The snapshot covers all records up to `covered`. Truncates the log before an
/// unfinished write. All records that were visited are durable when this returns.
/// `failed_before` says whether a write or an fsync of the previous process failed.
pub(crate) fn recover(
    medium: &Arc<dyn Medium>,
    covered: Covered,
    failed_before: bool,
    visit: Visit<'_>,
) -> Result<(RecoveredLog, LogEnd), Error> {
    let log = scan::scan(&**medium, covered.record, visit)?;
    covered.require(&**medium, log.next)?;
    let recovered = RecoveredLog {
        records: log.records,
        payload_bytes: log.payload_bytes,
        uncovered_bytes: log.uncovered_bytes,
        unfinished_write: log.unfinished_write.clone(),
        failed_before,
    };
    make_durable(&**medium, &log.segments, failed_before)
        .inspect_err(|_| mark_failure(&**medium))?;
    Ok((recovered, settle_end(medium, covered.record, log)?))
}

/// Makes the records of the log durable, and overwrites an unfinished write with zeros.
fn make_durable(
    medium: &dyn Medium,
    segments: &[ScannedSegment],
    failed_before: bool,
) -> Result<(), Error> {
    for scanned in segments {
        let ScannedSegment { segment, path, .. } = scanned;
        // After a failed fsync or a failed writeback, the kernel may have marked pages as
        // clean that are not on the disk. An fsync alone would then do nothing. So write
        // everything again that no record proves to be durable.
        segment
            .file
            .write_all_at(&scanned.unproven, scanned.unproven_offset())
            .and_then(|()| write_zeros(segment, zeros_after(scanned, failed_before)))
            .map_err(Error::io("write to", path))?;
        segment.file.sync().map_err(Error::io("fsync", path))?;
    }
    medium.sync_names().map_err(Error::io("fsync", medium.path()))
}

/// Returns the number of bytes after the last record that must be overwritten with zeros.
fn zeros_after(scanned: &ScannedSegment, failed_before: bool) -> u64 {
    match failed_before {
        // The zeros that an earlier start has written may be in the page cache only. Then
        // records of an unfinished write are still on the disk, anywhere after the end.
        true => scanned.segment.size - scanned.segment.position,
        false => scanned.garbage_bytes,
    }
}

/// Writes `bytes` zeros after the last record of a segment.
fn write_zeros(segment: &Segment, bytes: u64) -> io::Result<()> {
    let zeros = vec![0; bytes.min(1 << 20) as usize];
    let mut written = 0;
    while written < bytes {
        let len = (bytes - written).min(zeros.len() as u64) as usize;
        segment.file.write_all_at(&zeros[..len], segment.position + written)?;
        written += len as u64;
    }
    Ok(())
}

/// Removes the segments after the end of the log, and writes `HEAD`.
fn settle_end(medium: &Arc<dyn Medium>, covered: u64, log: ScannedLog) -> Result<LogEnd, Error> {
    let ScannedLog { mut segments, next, head, mut segments_after_end, .. } = log;
    let head_error = |cause: io::Error| Error::io("write HEAD in", medium.path())(cause);
    let mut head = HeadFile::open(medium.clone(), head).map_err(head_error)?;
    let mut tail = segments.pop().map(|scanned| scanned.segment);
    if next <= covered {
        // The log ends before the last covered record, because the machine lost the end
        // of the log. The snapshot contains the changes of all remaining records. Remove
        // them: appending after them would leave a gap.
        tail = None;
        segments_after_end = segment::list(&**medium)?;
    }
    let next = next.max(covered + 1);
    let (first, bytes) = tail.as_ref().map_or((0, 0), |segment| (segment.first, segment.size));
    // Before segments are removed: `HEAD` must not name a missing one.
    match head.write_both(Head { first, bytes, durable: next - 1 }) {
        // `HEAD` is created before the first record is written. Until then the disk may be
        // full.
        Err(cause) if is_disk_full(&cause) && segments_after_end.is_empty() => {}
        written => written.map_err(head_error)?,
    }
    remove_segments(&**medium, &segments_after_end)?;
    Ok(LogEnd { next, tail, head })
}

fn remove_segments(medium: &dyn Medium, segments: &[u64]) -> Result<(), Error> {
    // Remove the newest segment first, so that a crash in between leaves no gap.
    for &first in segments.iter().rev() {
        let name = segment::file_name(first);
        medium.remove(&name).map_err(Error::io("remove", medium.path().join(name)))?;
    }
    Ok(())
}
