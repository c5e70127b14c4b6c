//! Checks whether all members have the same content. An entry names the revisions before and after it, so
//! members whose revisions differ notice it at once. Other differences are found by comparing the hashes of
//! their histories, those that HashKV returns:
//!
//! 1. A member hashes its history up to a revision.
//! 2. It asks the others for their hashes up to this revision.
//! 3. It compares them ([`super::hash_comparison`]).
//!
//! The leader does so regularly (`--corrupt-check-time`), and after compactions (the feature gate
//! CompactHashCheck); then it raises the alarm CORRUPT for members that differ. A member does so before it
//! serves clients (the feature gate InitialCorruptCheck), and ends if it differs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use auth::Caller;
use consensus::id::MemberId;
use consensus::output::Role;
use mvcc::{Alarm, AlarmKind, Command};

use super::hash_check_state::{Check, Compared, Hashed, Purpose};
use super::hash_comparison::{Comparison, compare};
use super::member::Member;
use super::wire::{encode_hash, encode_hash_request};
use crate::Error;
use crate::history_hash::{HistoryHash, hash};
use crate::submission::{ReplyTo, Submission};

/// Interval at which members are asked again that have not answered.
const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which a member looks whether all have answered.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How long the hashes of members that are connected are awaited. A large store is hashed for seconds.
const MAX_WAIT: Duration = Duration::from_secs(60);

impl Member {
    /// Begins, continues and ends checks.
    pub(super) fn run_hash_checks(&mut self, now: Instant) {
        while let Ok(hashed) = self.hash_checks.hashed.try_recv() {
            self.on_hashed(hashed, now);
        }
        if self.hash_checks.check.is_none() && self.role.role == Role::Leader {
            let compacted = || self.shared.store.read().compacted();
            if let Some(purpose) = self.hash_checks.due(compacted, now) {
                self.begin_hash_check(purpose, now);
            }
        }
        let look_at = |check: &mut Check| check.own.is_some() && check.look_at <= now;
        if let Some(mut check) = self.hash_checks.check.take_if(look_at) {
            check.look_at = now + LOOK_INTERVAL;
            self.ask_for_hashes(&mut check, now);
            match self.is_complete(&check, now) {
                true => self.end_hash_check(check),
                false => self.hash_checks.check = Some(check),
            }
        }
    }

    /// Compares the content of this member with that of the others.
    pub(super) fn compare_with_others(&mut self, compared: Compared, now: Instant) {
        self.begin_hash_check(Purpose::Start(compared), now);
    }

    fn begin_hash_check(&mut self, purpose: Purpose, now: Instant) {
        let revision = match purpose {
            Purpose::Compacted => self.shared.store.read().compacted(),
            // The published one.
            Purpose::Current | Purpose::Start(_) => 0,
        };
        let checks = &mut self.hash_checks;
        checks.last_number += 1;
        let number = checks.last_number;
        let (own, answers) = (None, BTreeMap::new());
        checks.check =
            Some(Check { number, purpose, own, answers, begun: now, ask_at: now, look_at: now });
        self.hash_in_background(number, None, revision);
    }

    /// Hashes the history up to a revision on another thread.
    fn hash_in_background(&self, number: u64, asker: Option<MemberId>, revision: i64) {
        let Some(runtime) = &self.runtime else { return };
        let (shared, waker) = (self.shared.clone(), self.waker.clone());
        let sender = self.hash_checks.sender.clone();
        runtime.spawn_blocking(move || {
            let result = hash(&shared, revision, &|_| false);
            // The member may have stopped.
            let _ = sender.send(Hashed { number, asker, result });
            waker.wake();
        });
    }

    fn on_hashed(&mut self, hashed: Hashed, now: Instant) {
        let Hashed { number, asker, result } = hashed;
        let checks = &mut self.hash_checks;
        if let Some(asker) = asker {
            checks.asking.remove(&asker);
            self.transport.forward(asker, encode_hash(number, &result));
            return;
        }
        let Some(check) = checks.check.as_mut().filter(|check| check.number == number) else {
            return;
        };
        match result {
            Ok(hash) => (check.own, check.begun) = (Some(hash), now),
            Err(error) => {
                tracing::warn!(%error, "could not hash the history to compare it with other members");
                checks.check = None;
            }
        }
    }

    /// Answers another member that wants to compare hashes, one request at a time.
    pub(super) fn on_hash_request(&mut self, from: MemberId, number: u64, revision: i64) {
        if self.hash_checks.asking.insert(from) {
            self.hash_in_background(number, Some(from), revision);
        }
    }

    pub(super) fn on_hash(
        &mut self,
        from: MemberId,
        number: u64,
        result: Result<HistoryHash, Error>,
    ) {
        let check = self.hash_checks.check.as_mut();
        if let Some(check) = check.filter(|check| check.number == number) {
            check.answers.insert(from, result);
        }
    }

    /// Returns the members that have not answered.
    fn unanswered(&self, check: &Check) -> Vec<MemberId> {
        let others = self.replica.membership().members().map(|member| member.id);
        others.filter(|id| *id != self.id() && !check.answers.contains_key(id)).collect()
    }

    fn ask_for_hashes(&self, check: &mut Check, now: Instant) {
        let Some(own) = check.own.filter(|_| check.ask_at <= now) else { return };
        check.ask_at = now + ASK_INTERVAL;
        let request = encode_hash_request(check.number, own.revision);
        for id in self.unanswered(check) {
            // If it is lost, it is sent again.
            self.transport.forward(id, request.clone());
        }
    }

    /// Whether all members have answered that are reached. Others may become reachable soon after a start.
    fn is_complete(&self, check: &Check, now: Instant) -> bool {
        let (unanswered, connected) = (self.unanswered(check), self.transport.connected());
        let waited = now.saturating_duration_since(check.begun);
        let may_answer = |id: &MemberId| {
            let limit =
                if connected.contains(id) { MAX_WAIT } else { self.settings.request_timeout };
            waited < limit
        };
        !unanswered.iter().any(may_answer)
    }

    fn end_hash_check(&mut self, check: Check) {
        let Check { purpose, own, answers, .. } = check;
        let Some(own) = own else { return };
        let answers: BTreeMap<_, _> =
            answers.into_iter().filter_map(|(id, answer)| Some((id, answer.ok()?))).collect();
        let members = self.replica.membership().members().len();
        let comparison = compare(self.id(), &own, &answers, members);
        let Comparison { equal, different, suspicious } = &comparison;
        let revision = own.revision;
        match different.is_empty() {
            true => tracing::info!(revision, equal = equal.len(), members, "compared the members"),
            false => tracing::error!(
                revision,
                ?equal,
                ?different,
                ?suspicious,
                "members have different contents at the same revision"
            ),
        }
        match purpose {
            Purpose::Start(compared) => {
                // The caller may have stopped.
                let _ = compared.send(different.iter().map(|id| id.get()).collect());
                return;
            }
            Purpose::Compacted if equal.len() + 1 == members => {
                self.hash_checks.equal_at = own.compact_revision;
            }
            Purpose::Compacted | Purpose::Current => {}
        }
        suspicious.iter().for_each(|id| self.raise_corrupt(*id));
    }

    /// Raises the alarm CORRUPT for a member, if this one still leads.
    fn raise_corrupt(&mut self, member_id: u64) {
        let alarm = Alarm { kind: AlarmKind::Corrupt, member_id };
        let command = Command::Alarm { alarm, raised: true };
        let (caller, reply) = (Caller::Store, ReplyTo::Nobody);
        self.remote.push_back(Submission { command, caller, bytes: 0, reply });
    }
}

#[cfg(test)]
#[path = "hash_checks_test.rs"]
mod tests;
