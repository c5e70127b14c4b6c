//! Looking at a log without changing it.

use std::path::PathBuf;

use crate::Error;
use crate::medium::Medium;
use crate::recovery::{self, Cut, Found, Survey};

/// What a log holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// The segments that count, in order.
    pub segments: Vec<SegmentReport>,
    /// Number of the record that would come next.
    pub next: u64,
    /// Where opening would cut off an unfinished write.
    pub cut: Option<Cut>,
}

/// One segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentReport {
    /// The file.
    pub file: PathBuf,
    /// Number of its first record.
    pub first: u64,
    /// Records in it, those included that a snapshot covers.
    pub records: u64,
    /// Bytes up to the end of its last record.
    pub bytes: u64,
    /// Bytes that the file takes.
    pub allocated_bytes: u64,
}

/// Reads the log on `medium` as [`crate::Log::open`] would, and changes nothing.
pub fn inspect(
    medium: &dyn Medium,
    covered: u64,
    mut visit: impl FnMut(&[u8]) -> Result<(), String>,
) -> Result<Inspection, Error> {
    let Survey { recovered, segments, next, .. } = recovery::survey(medium, covered, &mut visit)?;
    let report = |Found { segment, path, records }: Found| SegmentReport {
        file: path,
        first: segment.first,
        records,
        bytes: segment.position,
        allocated_bytes: segment.size,
    };
    let segments = segments.into_iter().map(report).collect();
    Ok(Inspection { segments, next, cut: recovered.cut })
}
