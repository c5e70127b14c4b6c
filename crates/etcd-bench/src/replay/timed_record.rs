//! Records ordered by time.

use trace::Record;

/// A record with its time and its number. Records are ordered by time and then by
/// number.
pub struct TimedRecord(pub u64, pub u64, pub Record);

impl PartialEq for TimedRecord {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
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
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}
