//! Detects revisions that clients have seen but the log has lost.
//!
//! A restart can lose changes in two ways: writes of keys with `WalMode::None` are not
//! logged, and a crash of the machine can lose the end of a buffered log. In both cases,
//! the log contains a *visible-revision bound*: no revision above it is published until a
//! higher bound is durable.
//!
//! If changes may have been lost, the next process continues after the bound, and marks
//! the store as compacted there. A client that saw a lost revision then gets the error
//! that the revision is compacted, and lists again. So no revision ever identifies two
//! different states.
//!
//! After a clean shutdown the log contains the last published revision, which replaces
//! the bound. While the machine keeps running (its boot ID is unchanged), buffered writes
//! are not lost.

use mvcc::{Effect, LogDurability};
use wal::AllowedLoss;

/// Distance between the last revision that may have been published and the revision at
/// which the next process continues. A watcher that saw revision r resumes from r + 1,
/// and gets an error only if r + 1 is before the compacted revision. So the compacted
/// revision must be at least r + 2.
const RESUME_MARGIN: i64 = 2;
/// Number of revisions that a repaired store skips after the highest revision found in
/// the damaged files. It is larger than the number of revisions that can have been
/// published and then lost.
pub(crate) const LOST_LOG_MARGIN: i64 = 1 << 30;

/// Collects from the effects of a log what determines whether published revisions may be
/// lost.
#[derive(Debug, Default)]
pub(crate) struct Continuity {
    /// As the last process that opened the log recorded it.
    durability: LogDurability,
    /// The highest visible-revision bound in the log of that process.
    visible_bound: i64,
    /// Set after a clean shutdown: the last published revision, and whether the log
    /// contains all changes.
    clean_end: Option<(i64, bool)>,
}

/// How the state of a new process differs from the log that it recovered.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Resumption {
    /// Set if published changes may be lost: the revision from which the process
    /// continues, and at which the store is marked as compacted.
    pub(crate) restart_revision: Option<i64>,
    /// Whether acknowledged lease renewals may be lost.
    pub(crate) renewals_lost: bool,
}

impl Continuity {
    /// Takes the next effect of the log into account.
    pub(crate) fn observe(&mut self, effect: &Effect) {
        match effect {
            Effect::Opened(durability) => {
                *self = Continuity { durability: durability.clone(), ..Continuity::default() };
            }
            Effect::VisibleBound(revision) => {
                self.visible_bound = self.visible_bound.max(*revision)
            }
            Effect::Closed { revision, complete } => self.clean_end = Some((*revision, *complete)),
            _ => {}
        }
    }

    /// Returns how a process continues on a machine with the boot ID `boot_id`.
    /// `revision` is that of the last change in the log. An empty `boot_id` means that it
    /// is unknown.
    pub(crate) fn resume(&self, revision: i64, boot_id: &[u8]) -> Resumption {
        let crashed = allowed_loss(&self.durability, boot_id) == AllowedLoss::Crash;
        let tail_lost = self.clean_end.is_none() && crashed;
        let complete = self.clean_end.is_some_and(|(_, complete)| complete);
        let unlogged_lost = self.durability.unlogged && !complete;
        let published =
            self.clean_end.map_or(self.visible_bound, |(revision, _)| revision).max(revision);
        let restart_revision = (tail_lost || unlogged_lost).then_some(published + RESUME_MARGIN);
        Resumption { restart_revision, renewals_lost: tail_lost }
    }
}

/// Returns when a log may have lost its end that was written with this durability, if the
/// machine has the boot ID `boot_id` now. An empty boot ID is unknown.
pub(crate) fn allowed_loss(durability: &LogDurability, boot_id: &[u8]) -> AllowedLoss {
    match &durability.buffered_boot_id {
        None => AllowedLoss::Never,
        Some(before) if !boot_id.is_empty() && before == boot_id => AllowedLoss::AfterFailure,
        Some(_) => AllowedLoss::Crash,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(effects: &[Effect]) -> Continuity {
        let mut continuity = Continuity::default();
        effects.iter().for_each(|effect| continuity.observe(effect));
        continuity
    }

    fn opened(unlogged: bool, buffered_boot_id: Option<&[u8]>) -> Effect {
        let buffered_boot_id = buffered_boot_id.map(<[u8]>::to_vec);
        Effect::Opened(LogDurability { unlogged, buffered_boot_id })
    }

    fn restart_revision(effects: &[Effect], boot_id: &[u8]) -> Option<i64> {
        after(effects).resume(10, boot_id).restart_revision
    }

    #[test]
    fn a_synced_log_continues_at_its_last_revision() {
        assert_eq!(restart_revision(&[], b"a"), None);
        assert_eq!(restart_revision(&[opened(false, None), Effect::VisibleBound(99)], b"b"), None);
    }

    #[test]
    fn a_buffered_log_loses_nothing_while_the_machine_runs() {
        let log = [opened(false, Some(b"a")), Effect::VisibleBound(50)];
        assert_eq!(restart_revision(&log, b"a"), None);
        assert_eq!(restart_revision(&log, b"b"), Some(52));
        assert!(after(&log).resume(10, b"b").renewals_lost);
        assert_eq!(restart_revision(&[opened(false, Some(b"")), log[1].clone()], b""), Some(52));
        let ended = Effect::Closed { revision: 10, complete: true };
        assert_eq!(restart_revision(&[log[0].clone(), log[1].clone(), ended], b"b"), None);
    }

    #[test]
    fn unlogged_keys_are_always_lost() {
        let log = [opened(true, Some(b"a")), Effect::VisibleBound(50)];
        assert_eq!(restart_revision(&log, b"a"), Some(52));
        assert!(!after(&log).resume(10, b"a").renewals_lost);
        let [open, bound] = log;
        let incomplete = Effect::Closed { revision: 30, complete: false };
        let closed = [open.clone(), bound.clone(), incomplete];
        assert_eq!(restart_revision(&closed, b"a"), Some(32), "the last revision is in the log");
        let complete = Effect::Closed { revision: 30, complete: true };
        assert_eq!(restart_revision(&[open, bound, complete, opened(false, None)], b"a"), None);
    }
}
