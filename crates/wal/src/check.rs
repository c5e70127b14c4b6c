//! A report about a log, made without changing it.

use std::path::PathBuf;

use files::Error;

use crate::medium::Medium;
use crate::scan::{self, Cut, ScannedLog, ScannedSegment};

/// The content of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogReport {
    /// The segments that contain records of the log, in order.
    pub segments: Vec<SegmentReport>,
    /// Sequence that the next record would get.
    pub next: u64,
    /// Where opening would cut off an unfinished write.
    pub cut: Option<Cut>,
}

/// The content of one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentReport {
    /// The file.
    pub file: PathBuf,
    /// Sequence of its first record.
    pub first: u64,
    /// Number of records, including those that a snapshot covers.
    pub records: u64,
    /// Bytes up to the end of the last record.
    pub bytes: u64,
    /// Allocated size of the file in bytes.
    pub allocated_bytes: u64,
}

/// Reads and verifies the log on `medium` as [`crate::Log::open`] does, without
/// changing it. Hands the payload of each record after `covered` to `visit`.
pub fn check(
    medium: &dyn Medium,
    covered: u64,
    mut visit: impl FnMut(&[u8]) -> Result<(), String>,
) -> Result<LogReport, Error> {
    let ScannedLog { segments, next, cut, .. } = scan::scan(medium, covered, &mut visit)?;
    let report = |ScannedSegment { segment, path, records }: ScannedSegment| SegmentReport {
        file: path,
        first: segment.first,
        records,
        bytes: segment.position,
        allocated_bytes: segment.size,
    };
    let segments = segments.into_iter().map(report).collect();
    Ok(LogReport { segments, next, cut })
}
