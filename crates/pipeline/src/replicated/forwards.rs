//! The commands that this member has forwarded to the leader.

use std::collections::BTreeMap;
use std::time::Instant;

use consensus::id::{Index, MemberId};
use mvcc::Reply;

use crate::Error;
use crate::submission::{Outcome, ReplyTo, Submission};

/// Maximum number of forwarded commands without a response. Further ones wait in the queue.
const MAX_COMMANDS: usize = 16_384;
/// Maximum number of batches of commands without a response to their last small command. Commands that arrive
/// meanwhile share the next one: the larger a batch, the fewer messages and task switches for a command.
const MAX_BATCHES: usize = 2;
/// Maximum total size of their requests in bytes.
const MAX_BYTES: usize = 64 << 20;

/// A command whose response is awaited.
struct Pending {
    to: MemberId,
    submission: Submission,
    deadline: Instant,
    /// The error at the deadline.
    error: Error,
}

/// A response of the leader that waits until this member has applied an entry.
struct Answered {
    to: ReplyTo,
    result: Result<Reply, Error>,
    deadline: Instant,
}

#[derive(Default)]
pub(super) struct Forwards {
    /// By number. Later commands have higher numbers.
    pending: BTreeMap<u64, Pending>,
    bytes: usize,
    last: u64,
    /// The numbers of the last small commands of the latest batches. Large ones take turns at the leader, so
    /// others do not wait for their responses.
    batches: Vec<u64>,
    /// By entry and number.
    answered: BTreeMap<(Index, u64), Answered>,
}

impl Forwards {
    /// Whether another batch of commands may be forwarded.
    pub(super) fn may_send(&mut self) -> bool {
        self.batches.retain(|last| self.pending.contains_key(last));
        self.batches.len() < MAX_BATCHES
            && self.pending.len() < MAX_COMMANDS
            && self.bytes < MAX_BYTES
    }

    /// Whether nothing is awaited.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.answered.is_empty()
    }

    /// Returns the number of the next command.
    pub(super) fn next_number(&self) -> u64 {
        self.last + 1
    }

    /// Adds a batch of commands that were sent with the numbers from [`Forwards::next_number`] on.
    pub(super) fn add(&mut self, to: MemberId, commands: Vec<Submission>, deadline: Instant) {
        let mut last_small = None;
        for submission in commands {
            self.last += 1;
            self.bytes += submission.bytes;
            if submission.command.is_small() {
                last_small = Some(self.last);
            }
            let pending = Pending { to, submission, deadline, error: Error::TimedOut };
            self.pending.insert(self.last, pending);
        }
        self.batches.extend(last_small);
    }

    fn remove(&mut self, number: u64) -> Option<Pending> {
        let pending = self.pending.remove(&number)?;
        self.bytes -= pending.submission.bytes;
        Some(pending)
    }

    /// Handles a response. Returns the command if the member that got it has not executed it, and
    /// another one may.
    pub(super) fn on_response(
        &mut self,
        number: u64,
        index: Index,
        result: Result<Reply, Error>,
        applied: Index,
    ) -> Option<Submission> {
        let Pending { submission, deadline, .. } = self.remove(number)?;
        if matches!(result, Err(Error::LeaderChanged | Error::NoLeader | Error::NoConnection)) {
            return Some(submission);
        }
        let to = submission.reply;
        match index <= applied {
            true => to.send(result.map(Outcome::Done)),
            false => {
                self.answered.insert((index, number), Answered { to, result, deadline });
            }
        }
        None
    }

    /// Passes responses on whose entries are applied.
    pub(super) fn on_applied(&mut self, applied: Index) {
        while let Some(first) = self.answered.first_entry().filter(|e| e.key().0 <= applied) {
            let Answered { to, result, .. } = first.remove();
            to.send(result.map(Outcome::Done));
        }
    }

    /// Fails the commands that were forwarded to a member whose connection has ended: their responses
    /// are lost.
    pub(super) fn on_lost(&mut self, to: MemberId) {
        let lost = self.pending.iter().filter(|(_, pending)| pending.to == to);
        let lost: Vec<u64> = lost.map(|(number, _)| *number).collect();
        for number in lost {
            if let Some(pending) = self.remove(number) {
                pending.submission.reply.send(Err(Error::ConnectionLost));
            }
        }
    }

    /// Notes that another member leads. The earlier leader may still respond, until `deadline`.
    pub(super) fn on_leader(&mut self, leader: MemberId, deadline: Instant) {
        for pending in self.pending.values_mut().filter(|pending| pending.to != leader) {
            pending.deadline = pending.deadline.min(deadline);
            pending.error = Error::LeaderFailed;
        }
    }

    /// Fails the commands whose responses do not come, or whose entries this member does not get.
    pub(super) fn expire(&mut self, now: Instant) {
        let expired = self.pending.iter().filter(|(_, pending)| pending.deadline <= now);
        let expired: Vec<_> = expired.map(|(n, pending)| (*n, pending.error.clone())).collect();
        for (number, error) in expired {
            if let Some(pending) = self.remove(number) {
                pending.submission.reply.send(Err(error));
            }
        }
        let expired = self.answered.iter().filter(|(_, answered)| answered.deadline <= now);
        let expired: Vec<_> = expired.map(|(entry, _)| *entry).collect();
        for answered in expired.into_iter().filter_map(|entry| self.answered.remove(&entry)) {
            answered.to.send(Err(Error::TimedOut));
        }
    }

    /// Fails everything.
    pub(super) fn fail(&mut self, error: &Error) {
        self.bytes = 0;
        let pending = std::mem::take(&mut self.pending).into_values();
        pending.for_each(|pending| pending.submission.reply.send(Err(error.clone())));
        let answered = std::mem::take(&mut self.answered).into_values();
        answered.for_each(|answered| answered.to.send(Err(error.clone())));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use auth::Caller;
    use futures_channel::oneshot;
    use mvcc::Command;

    use super::*;

    type Receiver = oneshot::Receiver<Result<Outcome, Error>>;

    fn id(number: u64) -> MemberId {
        MemberId::new(number).unwrap()
    }

    fn add(forwards: &mut Forwards, to: u64, deadline: Instant) -> (u64, Receiver) {
        let (sender, receiver) = oneshot::channel();
        let submission = Submission {
            command: Command::LeaseRenew { id: 1 },
            caller: Caller::Store,
            bytes: 10,
            reply: ReplyTo::Client(sender),
        };
        let number = forwards.next_number();
        forwards.add(id(to), vec![submission], deadline);
        (number, receiver)
    }

    fn done() -> Result<Reply, Error> {
        Ok(Reply::Done { revision: 1 })
    }

    #[test]
    fn a_response_waits_for_its_entry() {
        let (now, mut forwards) = (Instant::now(), Forwards::default());
        let (first, mut early) = add(&mut forwards, 1, now);
        let (second, mut late) = add(&mut forwards, 1, now);
        assert!(forwards.on_response(first, 7, done(), 7).is_none());
        assert!(forwards.on_response(second, 9, done(), 7).is_none());
        assert!(matches!(early.try_recv(), Ok(Some(Ok(_)))));
        forwards.on_applied(8);
        assert!(matches!(late.try_recv(), Ok(None)));
        forwards.on_applied(9);
        assert!(matches!(late.try_recv(), Ok(Some(Ok(_)))));
        assert!(forwards.is_empty() && forwards.bytes == 0);
        assert!(forwards.on_response(second, 9, done(), 9).is_none(), "it is known no more");
    }

    #[test]
    fn two_batches_are_on_their_way() {
        let (now, mut forwards) = (Instant::now(), Forwards::default());
        let (first, _client) = add(&mut forwards, 1, now);
        assert!(forwards.may_send());
        let (second, _client) = add(&mut forwards, 1, now);
        assert!(!forwards.may_send());
        forwards.on_response(second, 9, done(), 7);
        assert!(forwards.may_send());
        let _third = add(&mut forwards, 1, now);
        assert!(!forwards.may_send());
        forwards.on_lost(id(1));
        assert!(forwards.may_send() && !forwards.pending.contains_key(&first));
    }

    #[test]
    fn a_command_that_was_not_executed_may_be_sent_again() {
        let (now, mut forwards) = (Instant::now(), Forwards::default());
        let (number, mut client) = add(&mut forwards, 1, now);
        let again = forwards.on_response(number, 0, Err(Error::LeaderChanged), 0);
        assert!(again.is_some() && matches!(client.try_recv(), Ok(None)));
    }

    #[test]
    fn lost_responses_are_errors() {
        let (now, mut forwards) = (Instant::now(), Forwards::default());
        let later = now + Duration::from_secs(100);
        let (_, mut lost) = add(&mut forwards, 1, later);
        let (_, mut replaced) = add(&mut forwards, 2, later);
        let (_, mut slow) = add(&mut forwards, 3, now + Duration::from_secs(1));
        forwards.on_lost(id(1));
        assert!(matches!(lost.try_recv(), Ok(Some(Err(Error::ConnectionLost)))));
        forwards.on_leader(id(3), now);
        forwards.expire(now);
        assert!(matches!(replaced.try_recv(), Ok(Some(Err(Error::LeaderFailed)))));
        assert!(matches!(slow.try_recv(), Ok(None)));
        forwards.expire(now + Duration::from_secs(1));
        assert!(matches!(slow.try_recv(), Ok(Some(Err(Error::TimedOut)))));
        // The leader has executed it, but this member does not get the entry.
        let (number, mut cut_off) = add(&mut forwards, 3, later);
        assert!(forwards.on_response(number, 9, done(), 7).is_none());
        forwards.expire(now);
        assert!(matches!(cut_off.try_recv(), Ok(None)));
        forwards.expire(later);
        assert!(matches!(cut_off.try_recv(), Ok(Some(Err(Error::TimedOut)))));
        assert!(forwards.is_empty());
    }
}
