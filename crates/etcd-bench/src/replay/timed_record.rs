//! Records ordered by time.

use trace::Record;

/// A record with its sort key. Records are ordered by time and then by sequence number.
pub struct TimedRecord {
    /// The trace time at which the record is due.
    pub time: u64,
    /// The position in the trace.
    pub sequence: u64,
    pub record: Record,
}

impl TimedRecord {
    fn sort_key(&self) -> (u64, u64) {
        (self.time, self.sequence)
    }
}

impl PartialEq for TimedRecord {
    fn eq(&self, other: &Self) -> bool {
        self.sort_key() == other.sort_key()
    }
}

impl Eq for TimedRecord {}

impl PartialOrd for TimedRecord {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for TimedRecord {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.sort_key().cmp(&other.sort_key())
    }
}
