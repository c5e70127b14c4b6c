//! The thread of a member. It owns replica and store, so evaluation, proposal, application and
//! taking back are in one order without locks.

use std::time::{Duration, Instant};

use consensus::id::MemberId;
use consensus::message::Message;
use consensus::output::Role;
use futures_channel::oneshot;
use peer::Event;

use super::apply::Inconsistent;
use super::entry_log::Report;
use super::handle::{MoveLeaderError, Request};
use super::member::{Member, MoveDone, Moving};
use super::member_command_queue::Asker;
use crate::pace::STEP_PAUSE;
use crate::waker::Wake;
use crate::{Error, pace};

/// A member that was suspended for longer than this number of ticks does not make up for them.
const MAX_TICKS: u32 = 3;
/// Interval at which a leader whose disk is full asks another member to lead.
const FULL_DISK_INTERVAL: Duration = Duration::from_secs(10);
/// For how long another identity must be expected at the address of a member without state before it ends.
const UNKNOWN_TIME: Duration = Duration::from_secs(3);
/// How long the end of the transport is awaited.
const TRANSPORT_END: Duration = Duration::from_secs(2);

/// Why the thread ends.
enum End {
    Stopping,
    /// The cluster has removed this member.
    Removed,
    /// The cluster has removed this member before it got the state, and expects another one at its address.
    Replaced,
    /// The member must not go on.
    Failed(String),
}

impl From<Inconsistent> for End {
    fn from(error: Inconsistent) -> Self {
        End::Failed(format!("the replica is inconsistent: {error}"))
    }
}

impl Member {
    /// Runs until the store is stopping, or the member fails.
    pub(super) fn run(mut self, wake: &Wake) {
        let mut next_tick = Instant::now() + self.settings.tick;
        let mut stop_at = None;
        let end = loop {
            let worked = match self.turn(&mut next_tick) {
                Ok(worked) => worked,
                Err(end) => break end,
            };
            if self.shared.stopping.load(std::sync::atomic::Ordering::Acquire) {
                let now = Instant::now();
                let stop_at = *stop_at.get_or_insert(now + self.settings.election_timeout);
                if now >= stop_at || (!worked && self.is_idle()) {
                    break End::Stopping;
                }
            }
            if !worked {
                wake.wait(self.sleep(next_tick));
            }
        };
        self.finish(end);
    }

    /// Handles everything that has happened. Returns whether commands were handled, so that there
    /// may be more.
    fn turn(&mut self, next_tick: &mut Instant) -> Result<bool, End> {
        let now = Instant::now();
        self.tick(now, next_tick);
        for event in self.transport.events() {
            self.on_event(event)?;
        }
        self.take_reports()?;
        while let Ok(received) = self.transfer.received.try_recv() {
            self.on_received(received)?;
        }
        self.take_requests(now);
        self.run_hash_checks(now);
        self.run_member_commands();
        self.handle_output(true)?;
        if self.is_removed() {
            return Err(End::Removed);
        }
        let worked = match self.role.role {
            Role::Leader => self.execute_commands(),
            Role::Follower | Role::Candidate => self.forward_commands(),
        };
        self.expire_commands(now, !worked && self.has_commands());
        self.handle_output(false)?;
        let needed = self.proposals.needed_revision();
        self.applier.collect_garbage(pace::STEP_ENTRIES, needed);
        Ok(worked)
    }

    /// Lets time pass for the replica and for those who wait.
    fn tick(&mut self, now: Instant, next_tick: &mut Instant) {
        if now < *next_tick {
            return;
        }
        for _ in 0..MAX_TICKS {
            self.replica.tick();
            *next_tick += self.settings.tick;
            if now < *next_tick {
                break;
            }
        }
        if now >= *next_tick {
            *next_tick = now + self.settings.tick;
        }
        self.forwards.expire(now);
        self.expire_member_commands(now);
        for (to, _) in self.proposals.take_expired(now) {
            self.reply(to, 0, Err(Error::LeaderFailed));
        }
        self.expire_reads(now);
        self.finish_moving(|moving| moving.deadline <= now, Err(MoveLeaderError::TimedOut));
        self.resign_if_disk_is_full(now);
        self.announce(now);
    }

    fn on_event(&mut self, event: Event) -> Result<(), End> {
        match event {
            Event::Message(message) => self.on_message(message),
            Event::Snapshot(snapshot) => self.receive_state(snapshot),
            Event::SnapshotSent { to, delivered } => {
                self.transfer.sending = self.transfer.sending.saturating_sub(1);
                self.replica.snapshot_sent(to, delivered);
            }
            Event::Unreachable(member) => self.replica.unreachable(member),
            Event::Found { expected, identity } => {
                self.replica.found(expected, identity.member, identity.is_waiting);
            }
            Event::Forwarded { from, body } => self.on_forwarded(from, body),
            Event::ForwardLost(member) => {
                self.forwards.on_lost(member);
                let own = self.id();
                self.member_commands.on_lost(member, own);
            }
            Event::RemovedBy(_) => return Err(End::Removed),
            Event::Expected(expected) => self.on_expected(expected, Instant::now())?,
        }
        Ok(())
    }

    /// Ends the member if the cluster expects another one at its address and does not know this one any more. It
    /// has nothing, so its process can be the other one. A member that lags behind may expect an earlier
    /// identity for a moment.
    fn on_expected(&mut self, expected: MemberId, now: Instant) -> Result<(), End> {
        if self.handle.has_state() || self.transport.is_reached() {
            self.unknown_since = None;
            return Ok(());
        }
        let since = *self.unknown_since.get_or_insert(now);
        if now.saturating_duration_since(since) < UNKNOWN_TIME {
            return Ok(());
        }
        tracing::warn!(%expected, "another member was added at the peer URLs of this one, which has no state");
        Err(End::Replaced)
    }

    fn on_message(&mut self, message: Message) {
        let from = message.from;
        if let Err(reason) = self.replica.receive(message) {
            tracing::debug!(peer = %from, %reason, "ignored a message");
        }
    }

    fn take_reports(&mut self) -> Result<(), End> {
        let Some(log) = &self.log else { return Ok(()) };
        while let Ok(report) = log.reports.try_recv() {
            match report {
                Report::Persisted(number) => {
                    let installing = &mut self.transfer.installing;
                    installing.take_if(|installing| *installing <= number);
                    self.replica.persisted(number);
                }
                Report::Failed(error) => {
                    return Err(End::Failed(format!("the log failed: {error}")));
                }
            }
        }
        Ok(())
    }

    fn take_requests(&mut self, now: Instant) {
        let mut readers = Vec::new();
        while let Ok(request) = self.requests.try_recv() {
            match request {
                Request::Read(reader) => readers.push(reader),
                Request::Export(export) => self.transfer.exports.push(export),
                Request::Resign(done) => self.move_leader(None, MoveDone::Resign(done), now),
                Request::MoveLeader(to, done) => {
                    self.move_leader(Some(to), MoveDone::Client(done), now);
                }
                Request::Compare(compared) => self.compare_with_others(compared, now),
                Request::ChangeMembers(command, answer) => {
                    self.queue_member_command(command, Asker::Client(answer), now);
                }
            }
        }
        if !readers.is_empty() {
            let number = self.replica.read();
            self.reads.add(number, now + self.settings.request_timeout, readers);
            self.expire_reads(now);
        }
    }

    /// Fails the readers that have waited for too long, or that no leader will answer.
    fn expire_reads(&mut self, now: Instant) {
        let error = if self.role.leader.is_some() { Error::TimedOut } else { Error::NoLeader };
        match self.is_abandoned(now) {
            true => self.reads.fail(error),
            false => self.reads.expire(now, error),
        }
    }

    /// Asks another member to lead while the disk of this one is full. A leader applies only what is
    /// in its own log, so it would not answer writes, although the others have them. The disks of the
    /// others may be full too, so it does not do so again at once.
    fn resign_if_disk_is_full(&mut self, now: Instant) {
        let is_full = self.shared.no_space.load(std::sync::atomic::Ordering::Relaxed);
        let may = now >= self.resign_again_at && self.moving.is_empty();
        if is_full && may && self.role.role == Role::Leader {
            self.resign_again_at = now + FULL_DISK_INTERVAL;
            let (done, _) = oneshot::channel();
            self.move_leader(None, MoveDone::Resign(done), now);
        }
    }

    /// Asks another member to lead: `to`, or the one that has most of the log.
    fn move_leader(&mut self, to: Option<MemberId>, done: MoveDone, now: Instant) {
        if self.role.role != Role::Leader {
            return done.send(Err(MoveLeaderError::NotLeader));
        }
        let to = to.or_else(|| self.best_successor());
        let Some(to) = to.filter(|to| *to != self.id()) else {
            return done.send(Ok(()));
        };
        match self.replica.transfer_leadership(to) {
            Ok(()) => {
                let deadline = now + self.settings.election_timeout;
                self.moving.push(Moving { deadline, done });
            }
            Err(_) => done.send(Err(MoveLeaderError::BadTransferee)),
        }
    }

    /// Returns the voter that has most of the log, among those to which this member is connected.
    pub(super) fn best_successor(&self) -> Option<MemberId> {
        let connected = self.transport.connected();
        let members = self.replica.status().members.into_iter();
        let others = members.filter(|member| {
            member.is_voter && member.info.id != self.id() && connected.contains(&member.info.id)
        });
        others.max_by_key(|member| member.replicated).map(|member| member.info.id)
    }

    /// Answers those who wait until another member leads.
    pub(super) fn finish_moving(
        &mut self,
        ends: impl Fn(&Moving) -> bool,
        result: Result<(), MoveLeaderError>,
    ) {
        let (ended, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.moving).into_iter().partition(ends);
        self.moving = waiting;
        ended.into_iter().for_each(|moving| moving.done.send(result));
    }

    fn has_commands(&self) -> bool {
        !self.batch.is_empty() || !self.remote.is_empty() || self.applier.has_commands()
    }

    /// Whether nobody waits for anything.
    fn is_idle(&self) -> bool {
        !self.has_commands()
            && !self.proposals.is_ahead()
            && self.forwards.is_empty()
            && self.member_commands.is_empty()
    }

    /// Returns how long the thread may sleep unless it is woken.
    fn sleep(&self, next_tick: Instant) -> Duration {
        let now = Instant::now();
        let tick = next_tick.saturating_duration_since(now);
        let garbage = if self.applier.has_garbage() { STEP_PAUSE } else { tick };
        tick.min(garbage).min(self.until_next_expiry(now))
    }

    /// Fails everything that waits, and ends the transport: without it, the other members elect
    /// another leader.
    fn finish(mut self, end: End) {
        let is_removed = matches!(end, End::Removed);
        let error = match end {
            End::Stopping => Error::Stopped,
            End::Removed => {
                tracing::warn!(
                    "the member has been permanently removed from the cluster: its data cannot be used \
                     any more. Add it again, and start it without its data"
                );
                self.handle.set_removed();
                Error::Stopped
            }
            End::Replaced => {
                self.handle.set_replaced();
                Error::Stopped
            }
            End::Failed(reason) => self.shared.fail_because(reason),
        };
        self.finish_member_commands(is_removed, &error);
        for (to, _) in self.proposals.take_all() {
            to.send(Err(error.clone()));
        }
        self.forwards.fail(&error);
        self.reads.fail(error.clone());
        for submission in self.batch.drain(..).chain(self.remote.drain(..)) {
            submission.reply.send(Err(error.clone()));
        }
        if let Some(runtime) = self.runtime.take() {
            let transport = self.transport.clone();
            runtime.block_on(async move {
                let _ = tokio::time::timeout(TRANSPORT_END, transport.stop()).await;
            });
            runtime.shutdown_background();
        }
    }
}

impl MoveDone {
    fn send(self, result: Result<(), MoveLeaderError>) {
        // The other side may not wait any more.
        match self {
            MoveDone::Resign(done) => drop(done.send(())),
            MoveDone::Client(done) => drop(done.send(result)),
        }
    }
}
