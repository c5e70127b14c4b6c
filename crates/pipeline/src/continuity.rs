//! What a log says about revisions that somebody saw and it does not hold.
//!
//! Two things make a store show more than it will remember: keys whose writes are
//! not logged, and a machine that stops before a buffered log was flushed. So a
//! *ceiling* is in the log, and durable, before any revision up to it is shown.
//! A start that may have lost something goes on behind the ceiling, and counts as
//! compacted there: whoever saw a revision that is gone is told to list again, and
//! no revision means two things.
//!
//! After an end in good order the exact revision is known. And as long as the
//! machine runs, nothing that was only buffered is lost: the ID of the machine's
//! run tells.

use mvcc::{Effect, Opened};

/// A watcher that saw revision r resumes from r + 1, and is told of a compaction
/// if that is before the compacted revision.
const BEHIND_ALL_WATCHERS: i64 = 2;
/// When a part of the log is lost for good, so many revisions may have been shown
/// behind the last one that is found, and more.
pub(crate) const MAY_HAVE_BEEN_SHOWN: i64 = 1 << 30;

/// What the effects of a log, in order, say.
#[derive(Debug, Default)]
pub(crate) struct Continuity {
    opened: Opened,
    ceiling: i64,
    /// If the last process ended in good order: the last revision that was shown,
    /// and whether the log holds all of the state.
    ended: Option<(i64, bool)>,
}

/// How to go on.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Resumption {
    /// The revision to go on from, compacted there, if something may be missing
    /// that was shown.
    pub(crate) restart: Option<i64>,
    /// Whether acknowledged renewals of leases may be missing.
    pub(crate) renewals_lost: bool,
}

impl Continuity {
    /// Takes note of an effect that was read.
    pub(crate) fn note(&mut self, effect: &Effect) {
        match effect {
            Effect::Opened(opened) => {
                *self = Continuity { opened: opened.clone(), ..Continuity::default() };
            }
            Effect::VisibleBound(revision) => self.ceiling = self.ceiling.max(*revision),
            Effect::Closed { revision, complete } => self.ended = Some((*revision, *complete)),
            _ => {}
        }
    }

    /// How a process goes on that runs on `boot_id` and finds `revision` in the log.
    pub(crate) fn resume(&self, revision: i64, boot_id: &[u8]) -> Resumption {
        let may_be_lost = |written_on: &Vec<u8>| boot_id.is_empty() || written_on != boot_id;
        let tail_lost =
            self.ended.is_none() && self.opened.buffered_on.as_ref().is_some_and(may_be_lost);
        let complete = self.ended.is_some_and(|(_, complete)| complete);
        let keys_lost = self.opened.unlogged && !complete;
        let shown = self.ended.map_or(self.ceiling, |(revision, _)| revision).max(revision);
        let restart = (tail_lost || keys_lost).then_some(shown + BEHIND_ALL_WATCHERS);
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
    fn a_log_that_says_nothing_or_is_strict_goes_on_as_it_is() {
        assert_eq!(restart(&[], b"a"), None);
        assert_eq!(restart(&[opened(false, None), Effect::VisibleBound(99)], b"b"), None);
    }

    #[test]
    fn a_buffered_log_is_whole_as_long_as_the_machine_runs() {
        let log = [opened(false, Some(b"a")), Effect::VisibleBound(50)];
        assert_eq!(restart(&log, b"a"), None);
        assert_eq!(restart(&log, b"b"), Some(52));
        assert!(after(&log).resume(10, b"b").renewals_lost);
        assert_eq!(restart(&[opened(false, Some(b"")), log[1].clone()], b""), Some(52));
        let ended = Effect::Closed { revision: 10, complete: true };
        assert_eq!(restart(&[log[0].clone(), log[1].clone(), ended], b"b"), None);
    }

    #[test]
    fn unlogged_keys_are_gone_whatever_happened() {
        let log = [opened(true, Some(b"a")), Effect::VisibleBound(50)];
        assert_eq!(restart(&log, b"a"), Some(52));
        assert!(!after(&log).resume(10, b"a").renewals_lost);
        let [open, ceiling] = log;
        let incomplete = Effect::Closed { revision: 30, complete: false };
        let exactly = [open.clone(), ceiling.clone(), incomplete];
        assert_eq!(restart(&exactly, b"a"), Some(32), "the ceiling is not needed");
        let complete = Effect::Closed { revision: 30, complete: true };
        assert_eq!(restart(&[open, ceiling, complete, opened(false, None)], b"a"), None);
    }
}
