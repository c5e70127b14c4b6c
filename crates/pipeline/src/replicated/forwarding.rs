//! Commands between members: a follower forwards them to the leader, and passes the response on when
//! it has applied the entry itself.

use std::time::{Duration, Instant};

use bytes::Bytes;
use consensus::id::{Index, MemberId};
use consensus::membership::{Change, MemberInfo};
use consensus::output::Role;
use mvcc::Reply;

use super::batch::{Batch, Messages};
use super::member::Member;
use super::member_command_queue::Asker;
use super::wire::{Forwarded, encode_member, write_command, write_response};
use super::wire_format::WireError;
use crate::Error;
use crate::large_commands::{ClientId, Origin};
use crate::submission::{Outcome, ReplyTo, Submission};

/// Maximum number of small commands of other members that wait. Further ones are refused.
const MAX_REMOTE: usize = 65_536;
/// Interval at which a member says which URLs it has, as long as the membership has others.
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(1);

impl Member {
    /// Forwards the commands that wait to the leader. Returns whether any was forwarded.
    pub(super) fn forward_commands(&mut self) -> bool {
        let Some(leader) = self.other_leader() else { return false };
        let mut worked = false;
        while self.forwards.may_send() && self.take_batch() {
            let batch = std::mem::take(&mut self.batch);
            worked = true;
            let forwardable = self.forwardable(batch);
            self.batch = self.forward(leader, forwardable);
            if !self.batch.is_empty() {
                return false;
            }
        }
        worked
    }

    /// Returns the commands that are to be forwarded, without those to which this member replies.
    fn forwardable(&mut self, commands: Vec<Submission>) -> Vec<Submission> {
        let mut forwardable = Vec::with_capacity(commands.len());
        for submission in commands {
            match submission.reply {
                ReplyTo::Client(_) => forwardable.push(submission),
                // Only a leader ends leases.
                ReplyTo::Nobody => {}
                // The member that has forwarded it asks the leader.
                ReplyTo::Member(..) => self.reply(submission.reply, 0, Err(Error::LeaderChanged)),
            }
        }
        forwardable
    }

    /// Forwards commands, in as few messages as possible. Returns those that cannot be sent now.
    fn forward(&mut self, leader: MemberId, commands: Vec<Submission>) -> Vec<Submission> {
        let deadline = Instant::now() + self.settings.request_timeout;
        let mut commands = commands.into_iter().peekable();
        let (mut message, mut together) = (Batch::default(), Vec::new());
        while let Some(submission) = commands.next() {
            let number = self.forwards.next_number() + together.len() as u64;
            let Submission { command, caller, bytes, .. } = &submission;
            message.push(|buf| write_command(number, caller, *bytes, command, buf));
            together.push(submission);
            if !message.is_full() && commands.peek().is_some() {
                continue;
            }
            let body = message.take().expect("it has a command");
            if !self.transport.ask(leader, body) {
                return together.into_iter().chain(commands).collect();
            }
            self.forwards.add(leader, std::mem::take(&mut together), deadline);
        }
        Vec::new()
    }

    /// Handles what another member has sent.
    pub(super) fn on_forwarded(&mut self, from: MemberId, body: Bytes) {
        for message in Messages::of(body) {
            let decoded = message.map_err(|error| (None, error)).and_then(Forwarded::decode);
            self.on_said(from, decoded);
        }
    }

    fn on_said(&mut self, from: MemberId, decoded: Result<Forwarded, (Option<u64>, WireError)>) {
        match decoded {
            Ok(Forwarded::Command { number, caller, bytes, command }) => {
                let reply = ReplyTo::Member(from, number);
                self.queue_remote(Submission { command, caller, bytes: bytes as usize, reply });
            }
            Ok(Forwarded::Response { number, index, result }) => {
                let again = self.forwards.on_response(number, index, result, self.applied);
                self.batch.extend(again);
            }
            Ok(Forwarded::MemberCommand { number, command }) => {
                let asker = Asker::Member(from, number);
                self.queue_member_command(command, asker, Instant::now());
            }
            Ok(Forwarded::MembersChanged { number, index, result }) => {
                self.on_members_changed(number, index, result);
            }
            Ok(Forwarded::HashRequest { number, revision }) => {
                self.on_hash_request(from, number, revision);
            }
            Ok(Forwarded::Hash { number, result }) => self.on_hash(from, number, result),
            Ok(Forwarded::Member(info)) => self.set_client_urls(from, &info),
            Err((number, error)) => {
                tracing::warn!(peer = %from, %error, "a forwarded command cannot be decoded");
                if let Some(number) = number {
                    self.respond(from, number, 0, Err(Error::TooLarge));
                }
            }
        }
    }

    fn queue_remote(&mut self, submission: Submission) {
        if submission.command.is_small() {
            match self.remote.len() < MAX_REMOTE {
                true => self.remote.push_back(submission),
                false => self.reply(submission.reply, 0, Err(Error::TooManyRequests)),
            }
            return;
        }
        let ReplyTo::Member(from, number) = submission.reply else { return };
        let origin = Origin { client: ClientId(from.get() as usize), caller: auth::Caller::Store };
        if !self.large_commands.push(origin.client, submission) {
            self.respond(from, number, 0, Err(Error::TooManyRequests));
        }
    }

    /// Sends the reply to a forwarded command. Large ranges of a transaction are read before, on
    /// another thread.
    pub(super) fn respond(
        &mut self,
        to: MemberId,
        number: u64,
        index: Index,
        reply: Result<Outcome, Error>,
    ) {
        let result = match reply {
            Ok(Outcome::OpenTxn(txn)) => {
                let transport = self.transport.clone();
                let Some(runtime) = &self.runtime else { return };
                runtime.spawn_blocking(move || {
                    let result = match txn.finish_unless(&|| false) {
                        Ok(response) => Ok(Reply::Txn(response)),
                        Err(error @ Error::Refused(mvcc::Error::ResponseTooLarge)) => Err(error),
                        // It was executed, so no error may say that it was not.
                        Err(_) => Err(Error::TimedOut),
                    };
                    let mut body = Vec::new();
                    write_response(number, index, &result, &mut body);
                    transport.forward(to, body.into());
                    transport.flush();
                });
                return;
            }
            Ok(Outcome::Done(reply)) => Ok(reply),
            Err(error) => Err(error),
        };
        let responses = self.responses.entry(to).or_default();
        responses.push(|buf| write_response(number, index, &result, buf));
        if responses.is_full() {
            self.send_responses();
        }
    }

    /// Sends the responses that wait, in one message to each member.
    pub(super) fn send_responses(&mut self) {
        for (to, mut responses) in std::mem::take(&mut self.responses) {
            if let Some(body) = responses.take() {
                // If it is lost, the other member notices the end of the connection: it has asked only because there is
                // one.
                self.transport.forward(to, body);
            }
        }
    }

    /// Tells the leader at which URLs clients reach this member, if the membership has others.
    pub(super) fn announce(&mut self, now: Instant) {
        let known = self.replica.membership().get(self.id());
        let is_known = known.is_none_or(|known| known.client_urls == self.info.client_urls);
        if is_known || now < self.announce_at {
            return;
        }
        self.announce_at = now + ANNOUNCE_INTERVAL;
        match self.other_leader() {
            Some(leader) => drop(self.transport.forward(leader, encode_member(&self.info))),
            None => self.set_client_urls(self.id(), &self.info.clone()),
        }
    }

    /// Makes the client URLs of a member those of the membership, if this member leads.
    fn set_client_urls(&mut self, from: MemberId, info: &MemberInfo) {
        let known = self.replica.membership().get(from);
        let differs = known.is_some_and(|known| known.client_urls != info.client_urls);
        if self.role.role == Role::Leader && info.id == from && differs {
            let client_urls = info.client_urls.clone();
            // If it cannot be proposed now, the member announces it again.
            let _ = self.replica.change_members(Change::SetClientUrls { id: from, client_urls });
        }
    }
}
