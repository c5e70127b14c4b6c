//! How far the store is, and whether the cache has got there.
//!
//! A watch alone does not tell that its store has gone back: a watch that begins after the last revision reports
//! nothing until this revision is there again, with other content. And a member that has lost the others reports
//! what it has. So the store is asked for its revision with a linearizable read.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

/// How far a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The ID of the store, which its members share.
    pub cluster: u64,
    /// The last revision.
    pub revision: u64,
}

/// The store has not got the history that was read from it.
#[derive(Debug, PartialEq, Eq)]
pub struct Replaced(pub String);

impl std::error::Error for Replaced {}

impl fmt::Display for Replaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Position {
    /// Checks that the store can have got here from a position that was known before it was asked.
    ///
    /// # Errors
    /// If it is another store, or has gone back.
    pub fn check_after(self, known: Position) -> Result<(), Replaced> {
        if self.cluster != known.cluster {
            return Err(Replaced("the ID of the store is another one".into()));
        }
        if self.revision < known.revision {
            return Err(Replaced(format!(
                "the store has gone back to revision {} from {}",
                self.revision, known.revision
            )));
        }
        Ok(())
    }
}

/// The revisions of the store that the cache has not reached yet.
#[derive(Default)]
pub struct Answers {
    /// When the store was asked, and its revision.
    pending: VecDeque<(Instant, u64)>,
}

impl Answers {
    /// Adds an answer. Those to questions that are older by this time are forgotten.
    pub fn add(&mut self, asked: Instant, revision: u64, max_age: Duration) {
        self.pending.retain(|(time, _)| asked.saturating_duration_since(*time) < max_age);
        self.pending.push_back((asked, revision));
    }

    /// Returns when the store was asked at last whose answer a cache of this version has reached, if that is new:
    /// the cache has everything that the store had then.
    pub fn reached(&mut self, version: u64) -> Option<Instant> {
        let mut last = None;
        while let Some((asked, revision)) = self.pending.front()
            && *revision <= version
        {
            last = Some(*asked);
            self.pending.pop_front();
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_is_another_one_or_has_gone_back_is_found() {
        let known = Position { cluster: 1, revision: 10 };
        for revision in [10, 11] {
            assert_eq!(Position { revision, ..known }.check_after(known), Ok(()));
        }
        assert!(Position { revision: 9, ..known }.check_after(known).is_err());
        assert!(Position { cluster: 2, revision: 11 }.check_after(known).is_err());
    }

    #[test]
    fn a_cache_is_as_current_as_the_last_answer_that_it_has_reached() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let max_age = Duration::from_secs(5);
        let mut answers = Answers::default();
        for (seconds, revision) in [(0, 10), (1, 10), (2, 20), (3, 30)] {
            answers.add(at(seconds), revision, max_age);
        }
        assert_eq!(answers.reached(9), None);
        assert_eq!(answers.reached(19), Some(at(1)));
        assert_eq!(answers.reached(19), None, "it is not new");
        assert_eq!(answers.reached(30), Some(at(3)));
        answers.add(at(4), 40, max_age);
        answers.add(at(9), 90, max_age);
        assert_eq!(answers.reached(89), None, "the answer of the fourth second is too old");
        assert_eq!(answers.reached(90), Some(at(9)));
    }
}
