//! Linearizable reads: after which applied entry a read may be served.
//!
//! Reads are only numbered here; the caller keeps what they ask for. A confirmation always covers
//! all reads up to a number, so any number of waiting reads needs the same memory.
//!
//! There are two ways to confirm reads:
//!
//! - **ReadIndex.** The leader notes its commit index, and asks a majority whether it is still the
//!   leader. One request at a time is on its way; reads that arrive meanwhile wait for the next.
//!   Each attempt has its own context: an answer to an earlier attempt says nothing about reads
//!   that arrived after it.
//! - **Riding.** Under load, a leader needs no extra messages: when a batch that it evaluated after
//!   the reads arrived is committed, it was still the leader then.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::fault::{Fault, is_active};
use crate::id::{Index, MemberId};

/// The number of a read. Reads of a replica are numbered in the order in which they arrive.
pub type ReadNumber = u64;

/// A confirmation: reads up to this number may be served after this entry is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Confirmation {
    through: ReadNumber,
    index: Index,
}

/// A request to the leader that was not answered yet.
struct Attempt {
    context: Bytes,
    through: ReadNumber,
    /// Its age in ticks.
    ticks: u32,
}

pub(crate) struct Reads {
    member: MemberId,
    /// A random number of this process: contexts of an earlier process must not be mistaken for
    /// those of this one.
    incarnation: u64,
    attempts: u64,
    /// The last read that was requested.
    requested: ReadNumber,
    /// The last read that was confirmed.
    confirmed: ReadNumber,
    attempt: Option<Attempt>,
    /// Batches that are not committed yet, with the reads that ride on them.
    riding: VecDeque<Confirmation>,
    /// Confirmations whose entries are not applied yet.
    waiting: VecDeque<Confirmation>,
}

/// Number of ticks after which an attempt is given up.
const ATTEMPT_TICKS: u32 = 3;

impl Reads {
    pub(crate) fn new(member: MemberId, incarnation: u64) -> Reads {
        Reads {
            member,
            incarnation,
            attempts: 0,
            requested: 0,
            confirmed: 0,
            attempt: None,
            riding: VecDeque::new(),
            waiting: VecDeque::new(),
        }
    }

    /// Registers a read.
    pub(crate) fn request(&mut self) -> ReadNumber {
        self.requested += 1;
        self.requested
    }

    /// Returns the context of a request to the leader, if one has to be sent now.
    pub(crate) fn next_attempt(&mut self) -> Option<Bytes> {
        let covered = self.riding.back().map_or(0, |last| last.through).max(self.confirmed);
        if self.attempt.is_some() || covered >= self.requested {
            return None;
        }
        self.attempts += u64::from(!is_active(Fault::ReusedReadContext));
        let numbers = [self.member.get(), self.incarnation, self.attempts];
        let context = Bytes::from_iter(numbers.into_iter().flat_map(u64::to_le_bytes));
        self.attempt =
            Some(Attempt { context: context.clone(), through: self.requested, ticks: 0 });
        Some(context)
    }

    /// Gives up an attempt that is too old: the request or its answer may be lost.
    pub(crate) fn tick(&mut self) {
        if let Some(attempt) = &mut self.attempt {
            attempt.ticks += 1;
            if attempt.ticks > ATTEMPT_TICKS {
                self.attempt = None;
            }
        }
    }

    /// Notes the answer to an attempt.
    pub(crate) fn on_answer(&mut self, context: &[u8], index: Index) {
        if let Some(attempt) = self.attempt.take_if(|attempt| attempt.context == context) {
            self.confirm(Confirmation { through: attempt.through, index });
        }
    }

    /// Lets all reads that have arrived ride on the batch that was evaluated just now.
    pub(crate) fn ride(&mut self, index: Index) {
        let riding = self.riding.back().map_or(0, |last| last.through);
        if self.requested > riding.max(self.confirmed) {
            self.riding.push_back(Confirmation { through: self.requested, index });
        }
    }

    /// Notes that the batches of this leader up to `index` are committed.
    pub(crate) fn on_commit(&mut self, index: Index) {
        while let Some(riding) = self.riding.front().copied().filter(|r| r.index <= index) {
            self.riding.pop_front();
            self.confirm(riding);
        }
    }

    /// Notes that this replica is not the leader any more. Reads that ride on a batch need another
    /// confirmation, even if the batch is committed later.
    pub(crate) fn on_leadership_lost(&mut self) {
        self.riding.clear();
        self.attempt = None;
    }

    fn confirm(&mut self, confirmation: Confirmation) {
        self.confirmed = self.confirmed.max(confirmation.through);
        self.waiting.push_back(confirmation);
    }

    /// Confirms all reads without asking anybody.
    pub(crate) fn confirm_all(&mut self, index: Index) {
        self.confirm(Confirmation { through: self.requested, index });
    }

    /// Returns the number up to which reads may be served when `applied` is applied, if it has
    /// grown.
    pub(crate) fn take_ready(&mut self, applied: Index) -> Option<ReadNumber> {
        let mut ready = None;
        self.waiting.retain(|confirmation| {
            let is_ready = confirmation.index <= applied || is_active(Fault::ReadBeforeApply);
            if is_ready {
                ready = ready.max(Some(confirmation.through));
            }
            !is_ready
        });
        ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads() -> Reads {
        Reads::new(MemberId::new(1).unwrap(), 5)
    }

    #[test]
    fn one_attempt_confirms_all_reads_before_it() {
        let mut reads = reads();
        assert_eq!(reads.next_attempt(), None);
        reads.request();
        let first = reads.next_attempt().unwrap();
        reads.request();
        reads.request();
        assert_eq!(reads.next_attempt(), None);
        reads.on_answer(&first, 10);
        let second = reads.next_attempt().unwrap();
        assert_ne!(first, second);
        // An answer to the first attempt says nothing about the later reads.
        reads.on_answer(&first, 10);
        assert_eq!(reads.take_ready(9), None);
        assert_eq!(reads.take_ready(10), Some(1));
        reads.on_answer(&second, 12);
        assert_eq!(reads.take_ready(12), Some(3));
        assert_eq!(reads.take_ready(13), None);
    }

    #[test]
    fn a_lost_attempt_is_repeated_with_another_context() {
        let mut reads = reads();
        reads.request();
        let first = reads.next_attempt().unwrap();
        (0..=ATTEMPT_TICKS).for_each(|_| reads.tick());
        let second = reads.next_attempt().unwrap();
        reads.on_answer(&first, 10);
        assert_eq!(reads.take_ready(10), None);
        reads.on_answer(&second, 10);
        assert_eq!(reads.take_ready(10), Some(1));
    }

    #[test]
    fn reads_ride_on_a_batch_unless_the_leadership_is_lost() {
        let mut reads = reads();
        reads.request();
        reads.ride(7);
        assert_eq!(reads.next_attempt(), None);
        reads.request();
        reads.on_commit(7);
        assert_eq!(reads.take_ready(7), Some(1));
        reads.ride(8);
        reads.on_leadership_lost();
        reads.on_commit(8);
        assert_eq!(reads.take_ready(8), None);
        assert!(reads.next_attempt().is_some());
    }
}
