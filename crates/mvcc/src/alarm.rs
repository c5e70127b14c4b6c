//! Alarms: states of the store that somebody has to look at before it takes
//! everything again. They are part of the state, so they outlive a restart.

use std::collections::BTreeSet;

use crate::effect::{Effect, Effects};
use crate::{Command, Error, Store, quota};

/// What is wrong. The numbers are those of etcd's `AlarmType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum AlarmKind {
    /// The quota is used up: whatever would add to the store is refused.
    NoSpace = 1,
    /// The content is not to be trusted: whatever would change it is refused.
    Corrupt = 2,
}

/// One alarm of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Alarm {
    /// What is wrong.
    pub kind: AlarmKind,
    /// Where. As in etcd it need not be the ID of a member that exists.
    pub member_id: u64,
}

/// How much the store may hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Bytes, counted as [`crate::Stats::total_bytes`]; 0 for no limit.
    pub bytes: i64,
    /// Whose alarm it is when they are used up.
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

/// The alarms that are raised.
#[derive(Default)]
pub(crate) struct Alarms(BTreeSet<Alarm>);

impl Alarms {
    pub(crate) fn iter(&self) -> impl Iterator<Item = Alarm> {
        self.0.iter().copied()
    }

    /// Raises or clears `alarm`; whether that changed anything.
    pub(crate) fn set(&mut self, alarm: Alarm, raised: bool) -> bool {
        if raised { self.0.insert(alarm) } else { self.0.remove(&alarm) }
    }

    fn raised(&self, kind: AlarmKind) -> bool {
        self.0.iter().any(|alarm| alarm.kind == kind)
    }
}

impl Store {
    /// The alarms that are raised, by kind and member.
    pub fn alarms(&self) -> impl Iterator<Item = Alarm> {
        self.alarms.iter()
    }

    /// Sets the quota; it is no part of the state and holds until the next start.
    pub fn set_quota(&mut self, quota: Quota) {
        self.quota = quota;
    }

    /// Raises or clears an alarm; whether that changed anything.
    pub(crate) fn set_alarm(&mut self, alarm: Alarm, raised: bool, effects: &mut Effects) -> bool {
        let changed = self.alarms.set(alarm, raised);
        if changed {
            effects.push(Effect::Alarm { alarm, raised });
        }
        changed
    }

    /// Whether alarms and quota let `command` in. One that does not fit into the
    /// quota raises the alarm, which then stays until somebody clears it.
    pub(crate) fn admit(&mut self, command: &Command, effects: &mut Effects) -> Result<(), Error> {
        // As in etcd a lease is kept alive whatever the state of the keys.
        if matches!(command, Command::Alarm { .. } | Command::LeaseRenew { .. }) {
            return Ok(());
        }
        if self.alarms.raised(AlarmKind::Corrupt) {
            return Err(Error::Corrupt);
        }
        let full = self.alarms.raised(AlarmKind::NoSpace);
        if !full && self.quota.bytes == 0 {
            return Ok(());
        }
        let cost = quota::cost_bytes(command);
        if cost == 0 {
            return Ok(());
        }
        if !full && self.stats().total_bytes.saturating_add(cost) < self.quota.bytes {
            return Ok(());
        }
        let alarm = Alarm { kind: AlarmKind::NoSpace, member_id: self.quota.member_id };
        if !full {
            self.set_alarm(alarm, true, effects);
        }
        Err(Error::NoSpace)
    }
}
