//! Does what the replica asks for.

use std::time::Instant;

use consensus::entry::Snapshot;
use consensus::evaluation::Outcome;
use consensus::id::Position;
use consensus::message::{Body, Message};
use consensus::output::{Output, Role, RoleChange, Write};

use super::apply::Inconsistent;
use super::entry_log::Job;
use super::member::Member;
use super::state::StateSnapshot;
use crate::Error;

impl Member {
    /// Does everything that the replica asks for. If a proposal may follow at once, the replica lets
    /// it tell the others what is committed.
    pub(super) fn handle_output(&mut self, may_propose: bool) -> Result<(), Inconsistent> {
        loop {
            let output = match may_propose {
                true => self.replica.output_before_proposals()?,
                false => self.replica.output()?,
            };
            if output.is_empty() {
                break;
            }
            self.handle_one(output)?;
        }
        self.send_responses();
        // What was forwarded, and the responses.
        self.transport.flush();
        // What the replica has not taken now, it never takes.
        self.transfer.states.clear();
        self.forwards.on_applied(self.applied);
        self.member_commands.on_applied(self.applied);
        self.handle.set_progress(self.replica.commit_index(), self.applied);
        self.at_rest();
        if let Some(index) = self.log_size.compact(self.transfer.sending > 0) {
            self.replica.compact(index);
        }
        Ok(())
    }

    fn handle_one(&mut self, output: Output) -> Result<(), Inconsistent> {
        let Output { messages, role, undo_to, restore, writes, committed, outcomes, reads_ready } =
            output;
        messages.into_iter().for_each(|message| self.send(message));
        // The others work on them while this member publishes.
        self.transport.flush();
        if let Some(role) = role {
            self.change_role(role);
        }
        if let Some(index) = undo_to {
            self.take_back(index);
        }
        let mut restored = None;
        if let Some(snapshot) = restore {
            restored = Some(self.restore(&snapshot)?);
        }
        writes.into_iter().for_each(|write| self.write(write, &mut restored));
        committed.into_iter().try_for_each(|entry| self.commit(entry))?;
        outcomes.into_iter().for_each(|(position, outcome)| self.end_undone(position, outcome));
        if let Some(number) = reads_ready {
            self.reads.confirm(number);
        }
        Ok(())
    }

    fn send(&mut self, message: Message) {
        match message.body {
            // It needs its content, which is not available while batches are uncommitted.
            Body::Snapshot(_) => self.transfer.wanted.push(message),
            _ => self.transport.send(message),
        }
    }

    fn change_role(&mut self, role: RoleChange) {
        let before = std::mem::replace(&mut self.role, role);
        self.handle.set_role(role);
        let now = Instant::now();
        self.leaderless_since = match role.leader {
            Some(_) => None,
            None => self.leaderless_since.or(Some(now)),
        };
        if (before.role, before.leader, before.term) != (role.role, role.leader, role.term) {
            let leader = role.leader.map(|leader| leader.to_string()).unwrap_or_default();
            tracing::info!(role = ?role.role, term = role.term, leader, "the role has changed");
        }
        let is_new = before.role != Role::Leader || before.term != role.term;
        match role.role {
            Role::Leader if is_new => self.begin_to_lead(now),
            Role::Leader => {}
            Role::Follower | Role::Candidate => self.shared.lessor.lock().demote(),
        }
        if let Some(leader) = role.leader.filter(|_| before.leader != role.leader) {
            // The commands that this member has forwarded to itself do not exist.
            self.forwards.on_leader(leader, now + self.settings.election_timeout);
        }
        if self.other_leader().is_some() {
            self.finish_moving(|_| true, Ok(()));
        }
    }

    /// Continues the store time, and lets leases expire.
    fn begin_to_lead(&mut self, now: Instant) {
        let clock_ms = self.shared.store.read().clock_ms();
        self.shared.clock.continue_from(clock_ms, now);
        self.clock_ms = clock_ms;
        self.shared.lessor.lock().promote(now);
    }

    /// Replaces the store by the state of another member, which was received before. Returns the
    /// state, for the log.
    fn restore(&mut self, snapshot: &Snapshot) -> Result<StateSnapshot, Inconsistent> {
        let position = snapshot.position;
        let state = self.transfer.states.remove(&position);
        self.replace_store(state.ok_or(Inconsistent::NoState(position))?);
        let state = StateSnapshot::start(&self.shared);
        self.applied = position.index;
        self.replica.applied(position.index);
        self.set_membership(&snapshot.membership);
        self.transport.set_state();
        self.on_commands_replaced(position.index);
        Ok(state)
    }

    fn write(&mut self, write: Write, restored: &mut Option<StateSnapshot>) {
        let Some(log) = &self.log else { return };
        let job = match write.snapshot.is_some().then(|| restored.take()).flatten() {
            Some(state) => {
                self.transfer.installing = Some(write.number);
                Job::Install(write, state)
            }
            None => Job::Write(write),
        };
        // The thread ends only after a failure, which it has reported.
        let _ = log.jobs.send(job);
    }

    /// Replies to the clients of a batch that was taken back, whose fate is known now.
    fn end_undone(&mut self, position: Position, outcome: Outcome) {
        for (to, reply) in self.proposals.take_undone(position) {
            match outcome {
                Outcome::Committed => self.reply(to, position.index, reply),
                Outcome::Lost => self.reply(to, 0, Err(Error::LeaderChanged)),
                Outcome::Unknown => self.reply(to, 0, Err(Error::LeaderFailed)),
            }
        }
    }
}
