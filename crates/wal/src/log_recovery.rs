//! Opening a log: scans it, cuts off an unfinished write, and makes the rest durable.

use files::Error;

use crate::head;
use crate::medium::Medium;
use crate::scan::{self, Cut, ScannedLog, ScannedSegment};
use crate::segment::{self, Segment};

/// The result of opening a log.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RecoveredLog {
    /// Number of records handed to the visitor.
    pub records: u64,
    /// Bytes of their payloads.
    pub payload_bytes: u64,
    /// Where an unfinished write was cut off.
    pub cut: Option<Cut>,
    /// Whether a write or an fsync of the previous process failed. If so, unsynced
    /// records may be missing even though the machine has kept running.
    pub failed_before: bool,
}

/// The end of a recovered log, where appending continues.
pub(crate) struct LogEnd {
    /// Sequence of the next record.
    pub(crate) next: u64,
    /// The segment to continue.
    pub(crate) tail: Option<Segment>,
    /// First sequence of the segment that `HEAD` names.
    pub(crate) head: u64,
}

/// Hands the payload of each record after `covered` to `visit`, in order, and cuts off
/// an unfinished write at the end. An error of `visit` is reported as damage at that
/// record.
pub(crate) fn recover(
    medium: &dyn Medium,
    covered: u64,
    visit: &mut dyn FnMut(&[u8]) -> Result<(), String>,
) -> Result<(RecoveredLog, LogEnd), Error> {
    let ScannedLog { records, payload_bytes, cut, mut segments, next, head, unpromised } =
        scan::scan(medium, covered, visit)?;
    for ScannedSegment { segment, path, .. } in &segments {
        // The previous process may have left the records in the page cache.
        segment.file.sync().map_err(Error::io("fsync", path))?;
    }
    let tail = segments.pop();
    if let (Some(cut), Some(ScannedSegment { segment, path, .. })) = (&cut, &tail)
        && cut.file == *path
    {
        segment.file.zero_from(segment.position).map_err(Error::io("truncate", path))?;
        segment.file.sync().map_err(Error::io("sync", path))?;
    }
    let recovered = RecoveredLog { records, payload_bytes, cut, failed_before: false };
    let tail_first = tail.as_ref().map_or(0, |scanned| scanned.segment.first);
    let head = if unpromised.contains(&head) { set_head(medium, tail_first)? } else { head };
    remove_segments(medium, &unpromised)?;
    if next <= covered {
        // The log ends before the last covered record, because the machine lost the
        // tail. The snapshot holds all records that are left. They are removed, because
        // appending after them would leave a gap.
        let head = set_head(medium, 0)?;
        remove_segments(medium, &segment::list(medium)?)?;
        return Ok((recovered, LogEnd { next: covered + 1, tail: None, head }));
    }
    Ok((recovered, LogEnd { next, tail: tail.map(|scanned| scanned.segment), head }))
}

/// Makes `HEAD` name a segment that remains when the one it names now is removed.
fn set_head(medium: &dyn Medium, first: u64) -> Result<u64, Error> {
    head::write(medium, first).map_err(Error::io("write HEAD in", medium.path()))?;
    Ok(first)
}

fn remove_segments(medium: &dyn Medium, segments: &[u64]) -> Result<(), Error> {
    // The newest goes first, so that a crash in between leaves no gap.
    for &first in segments.iter().rev() {
        let name = segment::file_name(first);
        medium.remove(&name).map_err(Error::io("remove", medium.path().join(name)))?;
    }
    Ok(())
}
