//! Detects revisions that clients have seen but the log has lost.
//!
//! A restart can lose changes in two ways: writes of some keys are not logged, and a
//! machine can stop before a buffered log was flushed. To handle this, the log contains a
//! *visible-revision bound*: it is durable before any revision up to it is exposed.
//!
//! A process that may have lost changes continues after the bound, and marks the store as
//! compacted there. So a client that saw a lost revision gets the error that the revision
//! is compacted and lists again, and no revision ever identifies two different states.
//!
//! After a clean shutdown the exact last revision is known. And as long as the machine
//! keeps running (its boot ID is unchanged), buffered writes are not lost.

use mvcc::{Effect, Opened};

/// A watcher that saw revision r resumes from r + 1, and gets an error if that is before
/// the compacted revision. So the compacted revision must be r + 2 at least.
const RESUME_MARGIN: i64 = 2;
/// Revisions that a repaired store skips: more than may have been exposed after the last
/// one that is found in a damaged log.
pub(crate) const LOST_LOG_MARGIN: i64 = 1 << 30;

/// What is known from the effects of a log about exposed and lost revisions.
#[derive(Debug, Default)]
pub(crate) struct Continuity {
    opened: Opened,
    visible_bound: i64,
    /// After a clean shutdown: the last exposed revision, and whether the log contains
    /// all changes.
    clean_end: Option<(i64, bool)>,
}

/// How a process continues after recovery.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Resumption {
    /// If exposed changes may be lost: the revision from which to continue, compacted
    /// there.
    pub(crate) restart: Option<i64>,
    /// Whether acknowledged renewals of leases may be missing.
    pub(crate) renewals_lost: bool,
}

impl Continuity {
    /// Notes an effect of the log. Effects must come in order.
    pub(crate) fn note(&mut self, effect: &Effect) {
        match effect {
            Effect::Opened(opened) => {
                *self = Continuity { opened: opened.clone(), ..Continuity::default() };
            }
            Effect::VisibleBound(revision) => {
                self.visible_bound = self.visible_bound.max(*revision)
            }
            Effect::Closed { revision, complete } => self.clean_end = Some((*revision, *complete)),
            _ => {}
        }
    }

    /// Decides how a process on the boot `boot_id` continues from a log whose last change
    /// has `revision`. An empty `boot_id` means that it is unknown.
    pub(crate) fn resume(&self, revision: i64, boot_id: &[u8]) -> Resumption {
        let may_be_lost = |written_on: &Vec<u8>| boot_id.is_empty() || written_on != boot_id;
        let tail_lost =
            self.clean_end.is_none() && self.opened.buffered_on.as_ref().is_some_and(may_be_lost);
        let complete = self.clean_end.is_some_and(|(_, complete)| complete);
        let keys_lost = self.opened.unlogged && !complete;
        let exposed =
            self.clean_end.map_or(self.visible_bound, |(revision, _)| revision).max(revision);
        let restart = (tail_lost || keys_lost).then_some(exposed + RESUME_MARGIN);
        Resumption { restart, renewals_lost: tail_lost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(effects: &[Effect]) -> Continuity {
        let mut continuity = Continuity::default();
        effects.iter().for_each(|effect| continuity.note(effect));
        continuity
    }

    fn opened(unlogged: bool, buffered_on: Option<&[u8]>) -> Effect {
        Effect::Opened(Opened { unlogged, buffered_on: buffered_on.map(<[u8]>::to_vec) })
    }

    fn restart(effects: &[Effect], boot_id: &[u8]) -> Option<i64> {
        after(effects).resume(10, boot_id).restart
    }

    #[test]
    fn a_log_with_fsync_continues_at_its_last_revision() {
        assert_eq!(restart(&[], b"a"), None);
        assert_eq!(restart(&[opened(false, None), Effect::VisibleBound(99)], b"b"), None);
    }

    #[test]
    fn a_buffered_log_loses_nothing_while_the_machine_runs() {
        let log = [opened(false, Some(b"a")), Effect::VisibleBound(50)];
        assert_eq!(restart(&log, b"a"), None);
        assert_eq!(restart(&log, b"b"), Some(52));
        assert!(after(&log).resume(10, b"b").renewals_lost);
        assert_eq!(restart(&[opened(false, Some(b"")), log[1].clone()], b""), Some(52));
        let ended = Effect::Closed { revision: 10, complete: true };
        assert_eq!(restart(&[log[0].clone(), log[1].clone(), ended], b"b"), None);
    }

    #[test]
    fn unlogged_keys_are_always_lost() {
        let log = [opened(true, Some(b"a")), Effect::VisibleBound(50)];
        assert_eq!(restart(&log, b"a"), Some(52));
        assert!(!after(&log).resume(10, b"a").renewals_lost);
        let [open, bound] = log;
        let incomplete = Effect::Closed { revision: 30, complete: false };
        let exactly = [open.clone(), bound.clone(), incomplete];
        assert_eq!(restart(&exactly, b"a"), Some(32), "the exact revision is known");
        let complete = Effect::Closed { revision: 30, complete: true };
        assert_eq!(restart(&[open, bound, complete, opened(false, None)], b"a"), None);
    }
}
