//! A member of the cluster: the state machine of Raft, and the order in which everything happens.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use raft::eraftpb;
use raft::{ProgressState, RawNode, Ready, SnapshotStatus, StateRole};

use crate::entry::{Content, Data, Entry, HardState, Snapshot};
use crate::evaluation::{Evaluation, Evaluations, NotReady};
use crate::fault::{Fault, is_active};
use crate::id::{Index, MemberId, Position, Term};
use crate::identity::LogMode;
use crate::log::Log;
use crate::membership::{Change, ChangeError, MemberInfo, Membership};
use crate::message::{Body, Ignored, LogView, Message};
use crate::output::{Committed, CommittedContent, Output, Role, RoleChange, Write, WriteNumber};
use crate::reads::{ReadNumber, Reads};
use crate::rejoin::Rejoin;
use crate::start::{Config, Start, StartError};
use crate::status::{MemberStatus, Status};
use crate::wire::DecodeError;

/// A learner has the log if at most this number of entries is missing. It gets them while it is
/// made a voter.
pub(crate) const CAUGHT_UP_ENTRIES: u64 = 64;

/// Why a change of the members is not proposed.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ProposeChangeError {
    /// This replica cannot propose now.
    #[error(transparent)]
    NotReady(#[from] NotReady),
    /// The change is not allowed.
    #[error(transparent)]
    Refused(#[from] ChangeError),
    /// Another change is not applied yet.
    #[error("another change of the members is in progress: try again")]
    Pending,
    /// The leader cannot remove itself: nobody would lead until the next election.
    #[error("member {0} is the leader: transfer the leadership first")]
    Leader(MemberId),
    /// The learner does not have the log yet.
    #[error("member {0} does not have the log yet: try again")]
    NotInSync(MemberId),
}

/// Why the leadership is not transferred.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum TransferError {
    /// This replica is not the leader.
    #[error("not the leader")]
    NotLeader,
    /// The other member does not vote.
    #[error("member {0} is not a voter")]
    NotVoter(MemberId),
}

/// The error of a log that contradicts itself. The replica must stop: its state may be wrong.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Inconsistency {
    /// An entry was evaluated on a state that is not the one before it.
    #[error("entry {0:?} was evaluated in term {1} on the state after entry {2}, not {3}")]
    Evaluation(Position, Term, Index, Index),
    /// Entries are missing.
    #[error("entry {0:?} is committed after entry {1}")]
    Gap(Position, Index),
    /// A change of the members cannot be made.
    #[error("the change of the members in entry {0:?} is inconsistent: {1}")]
    Members(Position, String),
    /// An entry cannot be read.
    #[error("an entry cannot be read: {0}")]
    Decode(#[from] DecodeError),
}

/// The state that the caller has applied, or a later one.
#[derive(Clone)]
struct StateInfo {
    index: Index,
    membership: Arc<Membership>,
    last_data: Index,
}

/// A member of the cluster. See the documentation of the crate.
pub struct Replica {
    config: Config,
    raft: RawNode<Log>,
    evaluations: Evaluations,
    reads: Reads,
    rejoin: Rejoin,
    /// The state after the last entry in [`Output::committed`].
    committed: StateInfo,
    /// The states between `applied` and `committed` in which something is different.
    unapplied: VecDeque<StateInfo>,
    /// The state that the library knows to be applied.
    applied: StateInfo,
    /// The last entry that the caller has applied. It is ahead of `applied` while a snapshot is
    /// written.
    applied_by_caller: Index,
    /// The term that this replica leads.
    leading: Option<Term>,
    /// Snapshots whose content the caller has received. The library takes one or none of them.
    received: Vec<Snapshot>,
    /// Writes that are not finished, and the messages that have to wait for them.
    unfinished: VecDeque<(WriteNumber, Vec<eraftpb::Message>)>,
    /// Messages whose writes are finished.
    released: Vec<eraftpb::Message>,
    role: RoleChange,
    /// Whether time has passed since the last output.
    ticked: bool,
    /// The last committed entry of which this leader has told the others.
    announced: Index,
    output: Output,
}

impl Replica {
    /// Creates a replica.
    pub fn new(config: Config, start: Start) -> Result<Replica, StartError> {
        start.check()?;
        let hard_state = start.hard_state();
        let Start { snapshot, base, entries, .. } = start;
        let entries = entries.into_iter().map(Entry::into_raft);
        let log = Log::new(&snapshot, base, entries, hard_state);
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raft = RawNode::new(&raft_config(&config, snapshot.position.index), log, &logger)
            .map_err(|error| StartError::Config(error.to_string()))?;
        let state = StateInfo {
            index: snapshot.position.index,
            membership: Arc::new(snapshot.membership),
            last_data: snapshot.last_data,
        };
        let mut replica = Replica {
            raft,
            evaluations: Evaluations::new(snapshot.last_data),
            reads: Reads::new(config.member, config.seed),
            rejoin: Rejoin::default(),
            applied_by_caller: state.index,
            committed: state.clone(),
            applied: state,
            unapplied: VecDeque::new(),
            leading: None,
            received: Vec::new(),
            unfinished: VecDeque::new(),
            released: Vec::new(),
            role: RoleChange::default(),
            ticked: false,
            announced: 0,
            output: Output::default(),
            config,
        };
        replica.after_event();
        Ok(replica)
    }

    // Events.

    /// Handles a message. A message with a snapshot is passed on when the caller has received the
    /// content of the snapshot.
    pub fn receive(&mut self, message: Message) -> Result<(), Ignored> {
        if message.cluster != self.config.cluster {
            return Err(Ignored::OtherCluster(message.cluster));
        }
        if message.to != self.config.member && !is_active(Fault::WrongReceiver) {
            return Err(Ignored::OtherReceiver(message.to));
        }
        let log = &self.raft.raft.raft_log;
        message.check(&LogView {
            term: self.raft.raft.term,
            is_leader: self.leading.is_some(),
            last: log.last_index(),
            commit: log.committed,
            term_of: &|index| log.term(index).ok(),
        })?;
        match &message.body {
            Body::Snapshot(snapshot) => self.received.push(snapshot.clone()),
            Body::TimeoutNow if self.must_not_campaign() => return Ok(()),
            _ => {}
        }
        let from = message.from;
        let result = self.raft.step(message.into_raft());
        self.after_event();
        result.map_err(|_| Ignored::UnknownSender(from))
    }

    /// Notes that time has passed. All durations in [`Config`] are numbers of ticks.
    pub fn tick(&mut self) {
        if !self.must_not_campaign() {
            self.raft.tick();
        }
        self.reads.tick();
        self.ticked = true;
        self.after_event();
        self.propose_next_change();
    }

    /// Notes that a write, and all earlier ones, are as durable as the mode requires.
    pub fn persisted(&mut self, number: WriteNumber) {
        while self.unfinished.front().is_some_and(|(first, _)| *first <= number) {
            self.released.extend(self.unfinished.pop_front().expect("there is a first").1);
        }
        self.raft.on_persist_ready(number);
        self.after_event();
    }

    /// Notes that the caller has applied all entries up to `index`, or a snapshot at `index`.
    pub fn applied(&mut self, index: Index) {
        assert!(index <= self.committed.index, "entry {index} is not committed");
        self.applied_by_caller = self.applied_by_caller.max(index);
    }

    /// Notes whether the content of a snapshot was delivered to a member.
    pub fn snapshot_sent(&mut self, to: MemberId, delivered: bool) {
        let status = if delivered { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.raft.report_snapshot(to.get(), status);
        self.after_event();
    }

    /// Notes that messages to a member are probably lost.
    pub fn unreachable(&mut self, member: MemberId) {
        self.raft.report_unreachable(member.get());
        self.after_event();
    }

    /// Notes the identity that answered at the address of the member `expected`, and whether it is a
    /// process that waits for an identity. The leader replaces members that have lost their log, and lets added
    /// members begin ([`crate::rejoin`]).
    pub fn found(&mut self, expected: MemberId, info: MemberInfo, is_waiting: bool) {
        self.rejoin.on_identity(expected, info, is_waiting, &self.committed.membership);
    }

    // Requests.

    /// Returns the permission to evaluate a batch of commands.
    pub fn begin_evaluation(&self) -> Result<Evaluation, NotReady> {
        let raft = &self.raft.raft;
        let term = self.leading.ok_or(NotReady::NotLeader)?;
        if !raft.apply_to_current_term() && !is_active(Fault::EvaluateBeforeFirstEntry) {
            return Err(NotReady::NotCaughtUp);
        }
        if raft.lead_transferee.is_some() {
            return Err(NotReady::Transferring);
        }
        if raft.uncommitted_size() as u64 >= self.config.max_uncommitted_bytes {
            return Err(NotReady::TooManyUncommitted);
        }
        Ok(Evaluation { term, previous: self.evaluations.previous() })
    }

    /// Proposes the effects of a batch that was evaluated with this permission. Returns the
    /// position of its entry. If it fails, the caller undoes the batch.
    pub fn propose(
        &mut self,
        evaluation: Evaluation,
        payload: Bytes,
    ) -> Result<Position, NotReady> {
        let current = self.begin_evaluation()?;
        if current != evaluation && !is_active(Fault::StaleEvaluation) {
            return Err(NotReady::Stale);
        }
        let Evaluation { term, previous } = current;
        let content = Content::Data(Data { term, previous, payload: payload.clone() });
        let position = self.append(content.context(), payload)?;
        self.evaluations.push(position);
        self.reads.ride(position.index);
        self.after_event();
        Ok(position)
    }

    /// Proposes a change of the members. Returns the position of its entry.
    pub fn change_members(&mut self, change: Change) -> Result<Position, ProposeChangeError> {
        self.begin_evaluation()?;
        if self.raft.raft.has_pending_conf() && !is_active(Fault::ChangeWhilePending) {
            return Err(ProposeChangeError::Pending);
        }
        self.committed.membership.check(&change)?;
        let removed = match &change {
            Change::Remove(id) | Change::Replace { old: id, .. } => Some(*id),
            _ => None,
        };
        if removed == Some(self.config.member) {
            return Err(ProposeChangeError::Leader(self.config.member));
        }
        if let Change::Promote(id) = change
            && !self.has_log(id)
            && !is_active(Fault::PromoteWithoutLog)
        {
            return Err(ProposeChangeError::NotInSync(id));
        }
        let conf_change = change.conf_change();
        let context = Content::Change(change).context();
        let position = match conf_change {
            None => self.append(context, Bytes::new())?,
            Some(conf_change) => {
                let pending = self.raft.raft.pending_conf_index;
                if self.raft.propose_conf_change(context.into(), conf_change).is_err() {
                    // The library would wait for the entry that it has not appended.
                    self.raft.raft.pending_conf_index = pending;
                    return Err(NotReady::TooManyUncommitted.into());
                }
                self.last_position()
            }
        };
        self.after_event();
        Ok(position)
    }

    /// Proposes what the leader changes by itself, if there is anything.
    fn propose_next_change(&mut self) {
        if self.leading.is_none() {
            return;
        }
        let next = self.rejoin.next_change(&self.committed.membership, |id| self.has_log(id));
        if let Some(change) = next {
            // If it cannot be proposed now, the next tick tries again.
            let _ = self.change_members(change);
        }
    }

    /// Asks another member to lead. If it has not taken over after the election timeout, this
    /// member continues to lead.
    pub fn transfer_leadership(&mut self, to: MemberId) -> Result<(), TransferError> {
        if self.leading.is_none() {
            return Err(TransferError::NotLeader);
        }
        if !self.committed.membership.voters().contains(&to) {
            return Err(TransferError::NotVoter(to));
        }
        self.raft.transfer_leader(to.get());
        self.after_event();
        Ok(())
    }

    /// Requests a linearizable read. It may be served when [`Output::reads_ready`] has reached the
    /// returned number, from the state that is applied then.
    pub fn read(&mut self) -> ReadNumber {
        self.reads.request()
    }

    /// Removes the entries up to `index` from the log in memory; applied ones only. A member that
    /// needs them gets a snapshot.
    pub fn compact(&mut self, index: Index) {
        let index = index.min(self.applied.index);
        self.raft.mut_store().compact(index);
    }

    /// Returns the members after the last committed entry that the caller has got.
    pub fn membership(&self) -> &Membership {
        &self.committed.membership
    }

    /// Returns the last entry that is known to be committed.
    pub fn commit_index(&self) -> Index {
        self.raft.raft.raft_log.committed
    }

    /// Returns the entries after `index`, as far as they are in memory. Who stores a snapshot of the
    /// state after `index` stores them too, before older records are removed.
    pub fn entries_after(&self, index: Index) -> Vec<Entry> {
        let entries = self.raft.raft.raft_log.all_entries().into_iter();
        let entries = entries.filter(|entry| entry.index > index);
        entries.map(|entry| Entry::from_raft(entry).expect("it was written here")).collect()
    }

    /// Describes the applied state, for a snapshot of it.
    pub fn describe_state(&self) -> Snapshot {
        let state = match is_active(Fault::SnapshotOfUnappliedEntries) {
            true => &self.committed,
            false => &self.applied,
        };
        let term = self.raft.raft.raft_log.term(state.index).unwrap_or_default();
        Snapshot {
            position: Position { term, index: state.index },
            last_data: state.last_data,
            membership: Membership::clone(&state.membership),
        }
    }

    /// Returns the state of the replica, for metrics and operators.
    pub fn status(&self) -> Status {
        let raft = &self.raft.raft;
        let progress = |info: &MemberInfo| {
            let progress = raft.prs().get(info.id.get());
            let replicated = progress.filter(|_| self.leading.is_some());
            MemberStatus {
                info: info.clone(),
                is_voter: self.committed.membership.is_voter(info.id),
                replicated: replicated.map(|progress| progress.matched),
            }
        };
        Status {
            role: self.current_role(),
            first_index: self.raft.store().base() + 1,
            last_index: raft.raft_log.last_index(),
            commit: raft.raft_log.committed,
            applied: self.applied.index,
            members: self.committed.membership.members().map(progress).collect(),
        }
    }

    // Output.

    /// Returns what the caller has to do. The caller calls it after each event, or after several.
    pub fn output(&mut self) -> Result<Output, Inconsistency> {
        self.announce_commit();
        self.output_before_proposals()
    }

    /// As [`Replica::output`], but a leader does not tell the others yet what is committed: its next
    /// proposal does, or the next call of `output`. This saves two messages for each member and
    /// batch while there is more to propose.
    pub fn output_before_proposals(&mut self) -> Result<Output, Inconsistency> {
        // First, so that a snapshot is described by the state that the caller has now.
        self.forward_applied();
        self.request_reads();
        let released = std::mem::take(&mut self.released);
        self.send(released);
        while self.raft.has_ready() {
            self.advance()?;
            self.after_event();
        }
        let role = self.current_role();
        if role != self.role {
            self.role = role;
            self.output.role = Some(role);
        }
        self.output.reads_ready = self.reads.take_ready(self.applied_by_caller);
        self.received.clear();
        Ok(std::mem::take(&mut self.output))
    }

    fn announce_commit(&mut self) {
        let raft = &mut self.raft.raft;
        let is_known = raft.raft_log.committed == self.announced;
        if raft.state == StateRole::Leader && !is_known {
            raft.bcast_append();
            self.announced = raft.raft_log.committed;
        }
    }

    fn advance(&mut self) -> Result<(), Inconsistency> {
        let mut ready = self.raft.ready();
        self.send(ready.take_messages());
        for read in ready.take_read_states() {
            self.reads.on_answer(&read.request_ctx, read.index);
        }
        let snapshot = self.restore(&ready)?;
        let entries = ready.take_entries();
        let hard_state = ready.hs().map(HardState::from_raft);
        let log = self.raft.mut_store();
        if let Some(snapshot) = &snapshot {
            log.restore(snapshot);
        }
        log.append(&entries);
        if let Some(hard_state) = hard_state {
            log.set_hard_state(hard_state);
        }
        let entries = entries.into_iter().map(Entry::from_raft).collect::<Result<_, _>>()?;
        let committed = ready.take_committed_entries();
        self.write(&mut ready, Write { number: 0, sync: false, hard_state, snapshot, entries });
        let number = ready.number();
        let wait = !self.unfinished.is_empty() && !is_active(Fault::PersistedAtOnce);
        self.raft.advance_append_async(ready);
        if !wait {
            self.raft.on_persist_ready(number);
        }
        committed.into_iter().try_for_each(|entry| self.commit(Entry::from_raft(entry)?))
    }

    /// Lets the caller store what is in `ready`, and sends the messages that rely on it: at once if
    /// nothing has to be written before.
    fn write(&mut self, ready: &mut Ready, write: Write) {
        let messages = ready.take_persisted_messages();
        let (number, must_sync) = (ready.number(), ready.must_sync());
        let is_empty = write.hard_state.is_none() && !must_sync;
        let is_memory = self.config.mode == LogMode::Memory;
        if !is_empty && !is_memory {
            let sync = must_sync && self.config.mode == LogMode::Fsync;
            self.output.writes.push(Write { number, sync, ..write });
        }
        // What is not written in order must not overtake an earlier write.
        if is_memory || (!must_sync && self.unfinished.is_empty()) {
            self.send(messages);
        } else if is_active(Fault::SendBeforeWrite) || is_active(Fault::PersistedAtOnce) {
            self.send(messages);
            self.unfinished.push_back((number, Vec::new()));
        } else if is_empty && let Some((_, waiting)) = self.unfinished.back_mut() {
            waiting.extend(messages);
        } else {
            self.unfinished.push_back((number, messages));
        }
    }

    /// Returns the snapshot that the library wants to install.
    fn restore(&mut self, ready: &Ready) -> Result<Option<Snapshot>, Inconsistency> {
        let metadata = ready.snapshot().get_metadata();
        if metadata.index == 0 {
            return Ok(None);
        }
        let position = Position { term: metadata.term, index: metadata.index };
        let snapshot = self.received.iter().find(|snapshot| snapshot.position == position);
        let Some(snapshot) = snapshot.cloned() else {
            return Err(Inconsistency::Members(position, "unknown snapshot".to_owned()));
        };
        let Snapshot { last_data, .. } = snapshot;
        let membership = Arc::new(snapshot.membership.clone());
        self.committed = StateInfo { index: position.index, membership, last_data };
        self.unapplied.clear();
        self.unapplied.push_back(self.committed.clone());
        self.evaluations.restore(last_data, position.index, &mut self.output.outcomes);
        // The snapshot contains them.
        self.output.committed.clear();
        self.output.restore = Some(snapshot.clone());
        Ok(Some(snapshot))
    }

    fn commit(&mut self, entry: Entry) -> Result<(), Inconsistency> {
        let position = entry.position;
        if position.index != self.committed.index + 1 {
            return Err(Inconsistency::Gap(position, self.committed.index));
        }
        self.committed.index = position.index;
        let content = match entry.content {
            Content::Empty => self.commit_other(position, CommittedContent::Empty),
            Content::Change(change) => {
                let result = self.commit_change(position, &change)?;
                let membership = Membership::clone(&self.committed.membership);
                self.commit_other(position, CommittedContent::Members { membership, result })
            }
            Content::Data(data) => self.commit_data(position, data)?,
        };
        if self.leading == Some(position.term) {
            self.reads.on_commit(position.index);
        }
        self.output.committed.push(Committed { position, content });
        Ok(())
    }

    fn commit_other(&mut self, position: Position, content: CommittedContent) -> CommittedContent {
        self.evaluations.commit(position, false, &mut self.output.outcomes);
        content
    }

    /// Checks that the data was evaluated on the state before it.
    fn commit_data(
        &mut self,
        position: Position,
        data: Data,
    ) -> Result<CommittedContent, Inconsistency> {
        let previous = self.evaluations.last_committed();
        if data.term != position.term || data.previous != previous {
            let Data { term, previous: evaluated, .. } = data;
            return Err(Inconsistency::Evaluation(position, term, evaluated, previous));
        }
        self.committed.last_data = position.index;
        self.unapplied.push_back(self.committed.clone());
        let evaluated = self.evaluations.commit(position, true, &mut self.output.outcomes);
        Ok(if evaluated { CommittedContent::Publish } else { CommittedContent::Apply(data) })
    }

    /// Makes a change of the members, unless it is not allowed any more. Returns why it is not.
    fn commit_change(
        &mut self,
        position: Position,
        change: &Change,
    ) -> Result<Result<(), ChangeError>, Inconsistency> {
        if let Err(error) = self.committed.membership.check(change) {
            return Ok(Err(error));
        }
        let mut membership = Membership::clone(&self.committed.membership);
        membership.apply(change);
        if let Some(conf_change) = change.conf_change() {
            let error = |reason: String| Inconsistency::Members(position, reason);
            let applied = self.raft.apply_conf_change(&conf_change);
            let conf_state = applied.map_err(|e| error(e.to_string()))?;
            if !membership.equals(&conf_state) {
                return Err(error(format!("{conf_state:?} instead of {membership:?}")));
            }
        }
        let is_removed = !membership.is_voter(self.config.member);
        self.committed.membership = Arc::new(membership);
        self.unapplied.push_back(self.committed.clone());
        if is_removed && self.raft.raft.state == StateRole::Leader {
            // An earlier leader has proposed it. The library would lead on, and panic.
            let term = self.raft.raft.term;
            self.raft.raft.become_follower(term, raft::INVALID_ID);
        }
        Ok(Ok(()))
    }

    /// Tells the library what the caller has applied. While a snapshot is not written, the library
    /// does not accept that it is applied.
    fn forward_applied(&mut self) {
        let index = self.applied_by_caller.min(self.raft.raft.raft_log.persisted);
        if index <= self.applied.index || index < self.raft.store().base() {
            return;
        }
        let before = self.applied.membership.clone();
        while self.unapplied.front().is_some_and(|state| state.index <= index) {
            self.applied = self.unapplied.pop_front().expect("there is a first");
        }
        let has_changed = !Arc::ptr_eq(&before, &self.applied.membership);
        self.applied.index = index;
        self.raft.mut_store().set_applied(index, self.applied.membership.clone());
        self.raft.advance_apply_to(index);
        self.after_event();
        if has_changed {
            // At once: until a member is replaced, the cluster survives fewer failures.
            self.propose_next_change();
        }
    }

    /// Asks the leader about reads. A leader that has a batch on its way waits for the next one,
    /// up to a tick: reads can ride on it without further messages.
    fn request_reads(&mut self) {
        let ticked = std::mem::take(&mut self.ticked);
        let raft = &self.raft.raft;
        if is_active(Fault::ReadWithoutQuorum) {
            self.reads.confirm_all(raft.raft_log.committed);
        }
        let may_ask = match self.leading {
            Some(_) => raft.commit_to_current_term() && (ticked || !self.evaluations.is_ahead()),
            None => raft.leader_id != raft::INVALID_ID,
        };
        if may_ask && let Some(context) = self.reads.next_attempt() {
            self.raft.read_index(context.into());
        }
    }

    /// Whether the library would panic if it began an election: because a snapshot has replaced the
    /// log, but not the caller's state (it looks for entries between the two), or because the only
    /// voter has not written its log (it leads at once).
    fn must_not_campaign(&self) -> bool {
        let is_restoring = self.applied.index < self.raft.store().base();
        let is_writing = self.leading.is_none() && !self.unfinished.is_empty();
        is_restoring || (is_writing && self.committed.membership.voters().len() == 1)
    }

    fn send(&mut self, messages: Vec<eraftpb::Message>) {
        for message in messages {
            let cluster = self.config.cluster;
            let message = Message::from_raft(cluster, message, || self.describe_state());
            self.output.messages.push(message.expect("the library sends only such messages"));
        }
    }

    // The library.

    /// Appends an entry as the leader.
    fn append(&mut self, context: Bytes, data: Bytes) -> Result<Position, NotReady> {
        let entry = eraftpb::Entry { context, data, ..eraftpb::Entry::default() };
        let mut message = eraftpb::Message::default();
        message.set_msg_type(eraftpb::MessageType::MsgPropose);
        message.from = self.config.member.get();
        message.set_entries(vec![entry].into());
        self.raft.step(message).map_err(|_| NotReady::TooManyUncommitted)?;
        self.announced = self.commit_index();
        Ok(self.last_position())
    }

    /// Returns the entries of the log in memory.
    #[cfg(test)]
    pub(crate) fn log(&self) -> Vec<Entry> {
        self.entries_after(0)
    }

    fn last_position(&self) -> Position {
        let raft = &self.raft.raft;
        Position { term: raft.term, index: raft.raft_log.last_index() }
    }

    /// Whether a member has nearly all committed entries, and is alive. Only the leader knows.
    pub fn has_log(&self, id: MemberId) -> bool {
        let raft = &self.raft.raft;
        raft.prs().get(id.get()).is_some_and(|progress| {
            // In an idle cluster, a member that has got a snapshot is probed until the next entry.
            let has_all = progress.matched >= raft.raft_log.committed;
            let is_close = progress.state == ProgressState::Replicate
                && progress.matched + CAUGHT_UP_ENTRIES >= raft.raft_log.committed;
            progress.recent_active && (has_all || is_close)
        })
    }

    fn current_role(&self) -> RoleChange {
        let raft = &self.raft.raft;
        let role = match raft.state {
            StateRole::Leader => Role::Leader,
            StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
            StateRole::Follower => Role::Follower,
        };
        RoleChange { role, term: raft.term, leader: MemberId::new(raft.leader_id) }
    }

    /// Does what must follow each call of the library.
    fn after_event(&mut self) {
        let (raft, config) = (&mut self.raft.raft, &self.config);
        // The library chooses the timeout at random whenever it starts to wait.
        let random = mix(config.seed ^ mix(config.member.get() ^ mix(raft.term)));
        let timeout = config.election_ticks + (random % u64::from(config.election_ticks)) as u32;
        raft.set_randomized_election_timeout(timeout as usize);

        let leading = (raft.state == StateRole::Leader).then_some(raft.term);
        if self.leading != leading {
            if self.leading.is_some() {
                self.on_leadership_lost();
            }
            self.rejoin.clear();
            self.leading = leading;
        }
    }

    fn on_leadership_lost(&mut self) {
        self.reads.on_leadership_lost();
        self.evaluations.undo();
        if !is_active(Fault::NoUndo) {
            // Also if nothing is proposed: a batch may be evaluated and not proposed yet.
            self.output.undo_to = Some(self.committed.index);
        }
    }
}

fn raft_config(config: &Config, applied: Index) -> raft::Config {
    raft::Config {
        id: config.member.get(),
        election_tick: config.election_ticks as usize,
        heartbeat_tick: config.heartbeat_ticks as usize,
        applied,
        max_size_per_msg: config.max_message_bytes,
        max_inflight_msgs: config.max_inflight_messages,
        check_quorum: true,
        pre_vote: true,
        max_uncommitted_size: config.max_uncommitted_bytes.max(config.max_message_bytes),
        // `Replica::output` does it.
        skip_bcast_commit: true,
        ..raft::Config::default()
    }
}

/// Mixes the bits of a number (the finalizer of SplitMix64).
fn mix(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
