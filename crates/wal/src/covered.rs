//! The last record that a snapshot covers, and whether the log may end before it.

use files::Error;

use crate::durability;
use crate::medium::Medium;

/// The last record that the snapshot covers. `u64` converts to a covered record before which
/// the log may end for any reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Covered {
    /// The sequence of the record; 0 without a snapshot.
    pub record: u64,
    /// When the log may have lost this record.
    pub loss: AllowedLoss,
}

/// When a log may have lost its end, although a snapshot contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedLoss {
    /// Never: each record was durable before the snapshot was taken.
    Never,
    /// Only if a write or an fsync of the previous process failed.
    AfterFailure,
    /// The machine may have crashed before the record was durable.
    Crash,
}

impl From<u64> for Covered {
    fn from(record: u64) -> Self {
        Covered { record, loss: AllowedLoss::Crash }
    }
}

impl Covered {
    /// Fails if the log whose next record is `next` ends before the covered record, and no
    /// allowed loss explains it.
    pub(crate) fn require(&self, medium: &dyn Medium, next: u64) -> Result<(), Error> {
        let explained = match self.loss {
            AllowedLoss::Never => false,
            AllowedLoss::AfterFailure => durability::failed_before(medium)?,
            AllowedLoss::Crash => true,
        };
        if next > self.record || explained {
            return Ok(());
        }
        let path = medium.path().to_owned();
        Err(Error::ShortLog { path, last: next.saturating_sub(1), covered: self.record })
    }
}
