//! Alarms: conditions that make the store reject writes until a client clears them. They
//! are part of the state, and a restart restores them.

use std::collections::BTreeSet;

/// The kind of an alarm. The numbers are those of etcd's `AlarmType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum AlarmKind {
    /// The quota is exceeded. Commands that add data are rejected.
    NoSpace = 1,
    /// The data is corrupt. All commands that change data are rejected.
    Corrupt = 2,
}

/// An alarm of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Alarm {
    /// The kind of alarm.
    pub kind: AlarmKind,
    /// The member ID. As in etcd, there need not be a member with this ID.
    pub member_id: u64,
}

/// The size limit of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// The limit of [`crate::Stats::total_bytes`] in bytes; 0 for no limit.
    pub bytes: i64,
    /// The ID of the member for which the NOSPACE alarm is raised.
    pub member_id: u64,
}

impl TryFrom<i64> for AlarmKind {
    type Error = ();

    fn try_from(number: i64) -> Result<Self, ()> {
        match number {
            1 => Ok(AlarmKind::NoSpace),
            2 => Ok(AlarmKind::Corrupt),
            _ => Err(()),
        }
    }
}

/// The raised alarms.
#[derive(Default)]
pub(crate) struct Alarms(BTreeSet<Alarm>);

impl Alarms {
    pub(crate) fn iter(&self) -> impl Iterator<Item = Alarm> {
        self.0.iter().copied()
    }

    /// Raises or clears `alarm`. Returns whether it was not in this state before.
    pub(crate) fn set(&mut self, alarm: Alarm, raised: bool) -> bool {
        if raised { self.0.insert(alarm) } else { self.0.remove(&alarm) }
    }

    /// Whether no alarm is raised.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an alarm of this kind is raised for any member.
    pub(crate) fn is_raised(&self, kind: AlarmKind) -> bool {
        self.0.iter().any(|alarm| alarm.kind == kind)
    }
}
