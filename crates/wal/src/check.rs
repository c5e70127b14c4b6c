//! Reports the content of a log without changing it.

use std::path::PathBuf;

use files::{Error, PayloadError};

use crate::covered::Covered;
use crate::durability;
use crate::medium::Medium;
use crate::scan::{self, ScannedLog, ScannedSegment, UnfinishedWrite};

/// The content of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogReport {
    /// The segments that contain records of the log, in order.
    pub segments: Vec<SegmentReport>,
    /// Sequence of the next record.
    pub next: u64,
    /// Where opening would truncate an unfinished write.
    pub unfinished_write: Option<UnfinishedWrite>,
    /// Whether a write or an fsync of the last process failed. Then unsynced records may be
    /// missing although the machine has kept running.
    pub failed_before: bool,
}

/// The content of one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentReport {
    /// Path of the file.
    pub file: PathBuf,
    /// Sequence of its first record.
    pub first: u64,
    /// Number of records, including those that the snapshot covers.
    pub records: u64,
    /// Size up to the end of the last record in bytes.
    pub bytes: u64,
    /// Allocated size of the file in bytes.
    pub allocated_bytes: u64,
}

/// Reads and verifies the log on `medium` as [`crate::Log::open`] does, without changing
/// it. Passes the payload of each record after `covered` to `visit`, in order.
pub fn check(
    medium: &dyn Medium,
    covered: impl Into<Covered>,
    mut visit: impl FnMut(&[u8]) -> Result<(), PayloadError>,
) -> Result<LogReport, Error> {
    let covered = covered.into();
    let ScannedLog { segments, next, unfinished_write, .. } =
        scan::scan(medium, covered.record, &mut visit)?;
    covered.require(medium, next)?;
    let report = |ScannedSegment { segment, path, records, .. }: ScannedSegment| SegmentReport {
        file: path,
        first: segment.first,
        records,
        bytes: segment.position,
        allocated_bytes: segment.size,
    };
    let segments = segments.into_iter().map(report).collect();
    let failed_before = durability::failed_before(medium)?;
    Ok(LogReport { segments, next, unfinished_write, failed_before })
}
