//! What a leader does with commands: it evaluates them, and proposes their effects. Then it waits
//! until the entry is committed, before it publishes the changes and replies.

use std::time::{Duration, Instant};

use consensus::evaluation::{Evaluation, NotReady};
use mvcc::{Command, Effect, Effects};

use super::member::Member;
use super::payload;
use super::proposals::{InFlight, pair};
use crate::Error;
use crate::applier::BATCH_COMMANDS;
use crate::submission::Submission;

/// Maximum number of batches that are proposed and not committed. Commands that arrive meanwhile
/// share the next batch.
const MAX_IN_FLIGHT: usize = 4;
/// Maximum size of the effects of a batch in bytes: of the bound that is known before. Every member
/// accepts an entry of this size.
pub(super) const MAX_ENTRY_BYTES: usize = 1 << 30;
/// An entry gets the store time if the newest one in the log is at least this old, in milliseconds.
const CLOCK_INTERVAL_MS: i64 = 1000;

impl Member {
    /// Executes the commands that wait, as the leader. Returns whether there were any.
    pub(super) fn execute_commands(&mut self) -> bool {
        let mut worked = false;
        while self.proposals.in_flight() < MAX_IN_FLIGHT && !self.wants_rest() {
            let permission = match self.replica.begin_evaluation() {
                Ok(permission) => permission,
                Err(_) => break,
            };
            if !self.take_batch() {
                break;
            }
            if !self.execute_round(permission) {
                // The thread is woken when entries are committed.
                return false;
            }
            worked = true;
        }
        worked
    }

    /// Takes commands from the queues, of other members and of own clients: the larger a batch, the
    /// fewer messages for a command. Returns whether there are any.
    pub(super) fn take_batch(&mut self) -> bool {
        if self.batch.is_empty() {
            let count = self.remote.len().min(BATCH_COMMANDS);
            self.batch.extend(self.remote.drain(..count));
            let mut own = Vec::new();
            self.applier.take_any(&mut own);
            self.batch.append(&mut own);
        }
        !self.batch.is_empty()
    }

    /// Evaluates and proposes commands of the batch. Returns whether more may follow now.
    fn execute_round(&mut self, permission: Evaluation) -> bool {
        let Some((count, bytes)) = self.applier.next_round(&self.batch) else {
            // Nobody waits for the first command any more.
            self.batch.remove(0);
            return true;
        };
        let round: Vec<Submission> = self.batch.drain(..count).collect();
        if bytes > MAX_ENTRY_BYTES {
            round.into_iter().for_each(|s| self.reply(s.reply, 0, Err(Error::TooLarge)));
            return true;
        }
        let round = self.without_expired_renewals(round);
        if round.is_empty() {
            return true;
        }
        match self.propose(permission, round, bytes) {
            Ok(()) => true,
            Err(round) => {
                // It had no effect, so it is tried again.
                self.batch.splice(0..0, round);
                false
            }
        }
    }

    /// Replies to renewals of leases that have expired, although their revocation waits. The TTLs of
    /// the others start again now, so that none expires while its renewal is on its way.
    fn without_expired_renewals(&mut self, round: Vec<Submission>) -> Vec<Submission> {
        if !round.iter().any(|s| matches!(s.command, Command::LeaseRenew { .. })) {
            return round;
        }
        let now = Instant::now();
        let has_expired = |submission: &Submission| match submission.command {
            Command::LeaseRenew { id } => {
                let mut lessor = self.shared.lessor.lock();
                lessor.renew(id, now).is_none() && lessor.remaining(id, now).is_some()
            }
            _ => false,
        };
        let (expired, kept): (Vec<_>, Vec<_>) = round.into_iter().partition(has_expired);
        for submission in expired {
            self.reply(submission.reply, 0, Err(mvcc::Error::LeaseNotFound.into()));
        }
        kept
    }

    /// Evaluates commands and proposes their effects, of at most `bytes`. Returns the commands if that
    /// is not possible now; the store does not contain their changes then.
    fn propose(
        &mut self,
        permission: Evaluation,
        round: Vec<Submission>,
        bytes: usize,
    ) -> Result<(), Vec<Submission>> {
        let mut effects = Effects::new();
        let mut evaluated = self.applier.evaluate(&round, &mut effects);
        let undo = evaluated.undo.take().expect("a replicated store is evaluated with undo");
        self.add_clock(&mut effects);
        let compacted = effects.iter().rev().find_map(|effect| match effect {
            Effect::Compacted { revision } => Some(*revision),
            _ => None,
        });
        let payload = payload::encode(undo.revision(), evaluated.revision, &effects, bytes);
        let payload_bytes = payload.len();
        match self.replica.propose(permission, payload) {
            Ok(position) => {
                let submissions = round;
                self.proposals.push(InFlight {
                    position,
                    submissions,
                    evaluated,
                    undo,
                    compacted,
                    payload_bytes,
                });
                Ok(())
            }
            Err(reason) => {
                debug_assert_ne!(reason, NotReady::Stale, "one thread evaluates and proposes");
                self.shared.store.write().undo(undo);
                Err(round)
            }
        }
    }

    /// Adds the store time, if leases need it in the log.
    fn add_clock(&mut self, effects: &mut Effects) {
        let store = self.shared.store.read();
        let (now, has_leases) = (store.clock_ms(), store.stats().leases > 0);
        if has_leases && now - self.clock_ms >= CLOCK_INTERVAL_MS {
            effects.push(Effect::Clock { ms: now });
            self.clock_ms = now;
        }
    }

    /// Publishes a batch of this member that is committed, and replies.
    pub(super) fn publish(&mut self, batch: InFlight) {
        let InFlight { position, submissions, mut evaluated, compacted, .. } = batch;
        if let Some(revision) = compacted {
            self.shared.store.write().publish_compacted(revision);
        }
        self.applier.publish(&submissions, &evaluated);
        let replies = std::mem::take(&mut evaluated.replies);
        for (to, reply) in pair(submissions, replies) {
            self.reply(to, position.index, reply);
        }
    }

    /// Takes back all batches after an entry: another member leads.
    pub(super) fn take_back(&mut self, index: consensus::id::Index) {
        let deadline = Instant::now() + self.settings.request_timeout;
        let mut store = self.shared.store.write();
        let mut count = 0;
        while let Some(undo) = self.proposals.take_back(index, deadline) {
            store.undo(undo);
            count += 1;
        }
        drop(store);
        if count > 0 {
            tracing::warn!(
                batches = count,
                "took back uncommitted batches, the leadership is lost"
            );
        }
    }

    /// Fails the commands that wait, if nobody can execute them for too long, or if there is no leader that
    /// could.
    pub(super) fn expire_commands(&mut self, now: Instant, is_blocked: bool) {
        if !is_blocked {
            self.blocked_since = None;
            return;
        }
        let since = *self.blocked_since.get_or_insert(now);
        let is_waiting = now.saturating_duration_since(since) < self.settings.request_timeout;
        if is_waiting && !self.is_abandoned(now) {
            return;
        }
        while self.take_batch() {
            for submission in std::mem::take(&mut self.batch) {
                self.reply(submission.reply, 0, Err(Error::NoConnection));
            }
        }
    }

    /// Returns how long the thread may sleep before a lease expires.
    pub(super) fn until_next_expiry(&self, now: Instant) -> Duration {
        let next = self.shared.lessor.lock().next_check();
        next.map_or(Duration::MAX, |at| at.saturating_duration_since(now))
    }
}
