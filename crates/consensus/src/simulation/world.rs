//! A simulated cluster: its members, its network, its clients, and time.
//!
//! Everything that happens is an event at a time. Events are handled one after the other, and a
//! seed determines what happens. So a seed always gives the same run.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use bytes::Bytes;

use super::history::{History, ReferenceContent};
use super::machine::{Command, Effects, State};
use super::node::{Evaluated, Node, OperationId, PendingRead, PendingWrite, Process, Work};
use super::random::Random;
use crate::entry::Entry;
use crate::evaluation::Outcome;
use crate::id::{ClusterId, MemberId, Position};
use crate::identity::{Identity, LogMode, StoredIdentity, identity};
use crate::membership::Membership;
use crate::message::{Body, Ignored, Message};
use crate::output::{Committed, CommittedContent, Output, Role, WriteNumber};
use crate::replica::CAUGHT_UP_ENTRIES;
use crate::{Config, Replica, Start};

/// Time in microseconds.
pub(super) type Time = u64;

const CLUSTER: ClusterId = ClusterId(77);
pub(super) const MILLISECOND: Time = 1_000;
const TICK: Time = 10 * MILLISECOND;
const KEYS: u64 = 3;
const CLIENTS: usize = 4;
/// A client gives up an operation after this time.
const CLIENT_TIMEOUT: Time = 500 * MILLISECOND;
/// Number of applied entries after which a member stores a snapshot.
const SNAPSHOT_ENTRIES: u64 = 25;

/// What a run does.
pub(super) type Run<T = ()> = Result<T, String>;

/// Something that happens.
pub(super) enum Event {
    Tick { node: usize, run: u32 },
    Deliver { node: usize, bytes: Bytes, state: Option<State> },
    SnapshotSent { node: usize, run: u32, to: MemberId, delivered: bool },
    Persisted { node: usize, run: u32, number: WriteNumber },
    Apply { node: usize, run: u32 },
    Propose { node: usize, run: u32 },
    Client { client: usize },
    Restart { node: usize },
    Dial,
    Fault,
}

/// What a client waits for.
#[derive(Clone, Copy, Default)]
struct Client {
    operation: Option<OperationId>,
    deadline: Time,
}

/// The network, and how bad it is.
#[derive(Default)]
pub(super) struct Network {
    /// Percentage of messages that are lost.
    pub(super) loss: u64,
    /// Percentage of messages that arrive twice.
    pub(super) duplicates: u64,
    /// Percentage of messages that take long, so that later ones overtake them.
    pub(super) late: u64,
    /// Pairs (sender, receiver) of nodes without connection.
    pub(super) blocked: Vec<(usize, usize)>,
}

/// What a run has seen. The tests check that nothing is always 0.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    pub(super) writes: u64,
    pub(super) reads: u64,
    pub(super) terms: u64,
    pub(super) crashes: u64,
    pub(super) undone: u64,
    pub(super) lost: u64,
    pub(super) unknown: u64,
    pub(super) snapshots: u64,
    pub(super) replaced: u64,
    pub(super) changes: u64,
    pub(super) claimed: u64,
    pub(super) transfers: u64,
    pub(super) stale: u64,
    pub(super) wrong_receiver: u64,
    pub(super) unavailable: u64,
}

pub(super) struct World {
    pub(super) random: Random,
    pub(super) mode: LogMode,
    pub(super) now: Time,
    queue: BTreeMap<(Time, u64), Event>,
    events: u64,
    pub(super) nodes: Vec<Node>,
    /// The node of each identity, also of identities that do not exist any more.
    owners: BTreeMap<MemberId, usize>,
    /// The identities under which processes without state have begun.
    begun: BTreeSet<MemberId>,
    pub(super) network: Network,
    pub(super) history: History,
    clients: [Client; CLIENTS],
    operations: OperationId,
    values: u64,
    /// For each operation, whether its reply is known or nobody waits for it.
    ended: Vec<bool>,
    /// Maximum duration of a write to the disk.
    pub(super) disk_delay: Time,
    /// Whether more members may lose their logs than the cluster survives.
    pub(super) overload: bool,
    /// Whether faults are over.
    pub(super) settling: bool,
    /// Whether clients do nothing.
    pub(super) quiet: bool,
    pub(super) counts: Counts,
    /// A hash of everything that has happened.
    trace: DefaultHasher,
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let mode = random.pick(&[LogMode::Fsync, LogMode::Buffered, LogMode::Memory]);
        let members = random.pick(&[1, 3, 3, 3, 3, 5, 5]).expect("it is not empty");
        let mut world = World {
            mode: mode.expect("it is not empty"),
            now: 0,
            queue: BTreeMap::new(),
            events: 0,
            nodes: Vec::new(),
            owners: BTreeMap::new(),
            begun: BTreeSet::new(),
            network: Network::default(),
            history: History::default(),
            clients: [Client::default(); CLIENTS],
            operations: 0,
            values: 0,
            ended: Vec::new(),
            disk_delay: random.pick(&[1, 5, 30]).expect("it is not empty") * MILLISECOND,
            overload: seed.is_multiple_of(10),
            settling: false,
            quiet: false,
            counts: Counts::default(),
            trace: DefaultHasher::new(),
            random,
        };
        world.start_cluster(members);
        (0..CLIENTS).for_each(|client| world.after(TICK, Event::Client { client }));
        world.after(3 * TICK, Event::Dial);
        world.after(10 * TICK, Event::Fault);
        world
    }

    /// Starts all members of a new cluster.
    fn start_cluster(&mut self, members: usize) {
        let ids: Vec<_> = (0..members).map(|_| (self.add_node(), self.fresh_id())).collect();
        let infos = ids.iter().map(|(node, id)| self.nodes[*node].info(*id));
        let membership = Membership::of_voters(infos);
        self.history = History::new(2, membership.clone());
        for (node, id) in ids {
            self.begun.insert(id);
            let start = Start::new_cluster(membership.clone());
            self.format(node, id, &start);
            self.start(node, id, start, State::default());
        }
    }

    /// Adds a node without a process. Returns its number.
    pub(super) fn add_node(&mut self) -> usize {
        let name = format!("n{}", self.nodes.len());
        let tick = TICK * self.random.between(80, 125) / 100;
        self.nodes.push(Node { name, tick, ..Node::default() });
        self.nodes.len() - 1
    }

    /// Adds a node for a member that is added, and that starts later. Returns the identity.
    pub(super) fn add_member(&mut self) -> (usize, MemberId) {
        let (node, id) = (self.add_node(), self.fresh_id());
        self.owners.insert(id, node);
        let delay = self.random.below(600 * MILLISECOND);
        self.after(delay, Event::Restart { node });
        (node, id)
    }

    fn fresh_id(&mut self) -> MemberId {
        MemberId::new(self.random.next() | 1).expect("it is not 0")
    }

    fn format(&mut self, node: usize, id: MemberId, start: &Start) {
        let node = &mut self.nodes[node];
        let boot_id = Some(node.boot_id());
        let stored = StoredIdentity { member: id, mode: self.mode, boot_id };
        node.disk.format(stored, start);
    }

    /// Starts a process on a node that has none.
    pub(super) fn restart(&mut self, node: usize) {
        let fresh = self.fresh_id();
        let boot_id = self.nodes[node].boot_id();
        let disk = &self.nodes[node].disk;
        match identity(disk.identity(), Some(&boot_id), fresh) {
            Identity::Kept(id) => {
                let (start, state) = disk.start();
                self.start(node, id, start, state);
            }
            Identity::Fresh(id) => {
                self.owners.insert(id, node);
                self.nodes[node].waiting = Some(id);
            }
        }
    }

    /// A process without state begins under an identity: no other process ever has it.
    fn begin(&mut self, node: usize, id: MemberId) -> Run {
        if !self.begun.insert(id) {
            return Err(format!("two processes have the identity {id}"));
        }
        self.nodes[node].waiting = None;
        self.format(node, id, &Start::blank());
        self.start(node, id, Start::blank(), State::default());
        Ok(())
    }

    fn start(&mut self, node: usize, id: MemberId, start: Start, state: State) {
        let config = Config {
            cluster: CLUSTER,
            member: id,
            mode: self.mode,
            heartbeat_ticks: 1,
            election_ticks: 10,
            seed: self.random.next(),
            max_uncommitted_bytes: 2_000,
            max_message_bytes: 300,
            max_inflight_messages: 8,
        };
        let applied = start.snapshot.position.index;
        let replica = Replica::new(config, start).expect("the stored state is consistent");
        self.owners.insert(id, node);
        let Node { run, tick, process, compacted, .. } = &mut self.nodes[node];
        *run += 1;
        *compacted = applied;
        *process = Some(Process::new(id, replica, state, applied));
        let (run, tick) = (*run, *tick);
        self.after(tick, Event::Tick { node, run });
    }

    /// Ends the process of a node; with `reboot`, also its machine.
    pub(super) fn crash(&mut self, node: usize, reboot: bool) {
        let Node { process, waiting, disk, boot, .. } = &mut self.nodes[node];
        if process.take().is_none() && waiting.take().is_none() {
            return;
        }
        *boot += u64::from(reboot);
        disk.crash(self.mode, reboot, &mut self.random);
        self.counts.crashes += 1;
    }

    pub(super) fn after(&mut self, delay: Time, event: Event) {
        self.events += 1;
        self.queue.insert((self.now + delay, self.events), event);
    }

    /// Handles the next event.
    pub(super) fn step(&mut self) -> Run {
        let ((now, _), event) = self.queue.pop_first().expect("clients always have events");
        self.now = now;
        if let Some(until) = self.suspended(&event) {
            self.after(until - now, event);
            return Ok(());
        }
        (now, std::mem::discriminant(&event)).hash(&mut self.trace);
        match event {
            Event::Tick { node, run } => self.on_tick(node, run),
            Event::Deliver { node, bytes, state } => self.on_deliver(node, bytes, state),
            Event::SnapshotSent { node, run, to, delivered } => {
                self.with(node, run, |process| process.replica.snapshot_sent(to, delivered))
            }
            Event::Persisted { node, run, number } => {
                if self.nodes[node].run == run && self.nodes[node].process.is_some() {
                    self.nodes[node].disk.finish(number);
                }
                self.with(node, run, |process| process.replica.persisted(number))
            }
            Event::Apply { node, run } => self.on_apply(node, run),
            Event::Propose { node, run } => self.on_propose(node, run),
            Event::Client { client } => self.on_client(client),
            Event::Restart { node } => {
                if self.nodes[node].process.is_none() && self.nodes[node].waiting.is_none() {
                    self.restart(node);
                }
                Ok(())
            }
            Event::Dial => self.on_dial(),
            Event::Fault => self.on_fault(),
        }
    }

    /// Returns until when the node of an event is suspended.
    fn suspended(&self, event: &Event) -> Option<Time> {
        let node = match event {
            Event::Tick { node, .. }
            | Event::Deliver { node, .. }
            | Event::SnapshotSent { node, .. }
            | Event::Persisted { node, .. }
            | Event::Apply { node, .. }
            | Event::Propose { node, .. } => *node,
            _ => return None,
        };
        Some(self.nodes[node].suspended_until).filter(|until| *until > self.now)
    }

    /// Lets the process of a node do something, if it is still the same, and then what its replica
    /// asks for.
    pub(super) fn with(&mut self, node: usize, run: u32, action: impl FnOnce(&mut Process)) -> Run {
        if self.nodes[node].run != run {
            return Ok(());
        }
        let Some(process) = &mut self.nodes[node].process else { return Ok(()) };
        action(process);
        self.do_output(node)
    }

    fn process(&mut self, node: usize) -> &mut Process {
        self.nodes[node].process.as_mut().expect("the process runs")
    }

    fn on_tick(&mut self, node: usize, run: u32) -> Run {
        if self.nodes[node].run == run && self.nodes[node].process.is_some() {
            self.after(self.nodes[node].tick, Event::Tick { node, run });
        }
        self.with(node, run, |process| process.replica.tick())
    }

    fn on_deliver(&mut self, node: usize, bytes: Bytes, state: Option<State>) -> Run {
        bytes.hash(&mut self.trace);
        let run = self.nodes[node].run;
        let message = Message::decode(bytes).map_err(|error| format!("a message: {error}"))?;
        let mut result = Ok(());
        self.with(node, run, |process| {
            if let (Body::Snapshot(snapshot), Some(state)) = (&message.body, state) {
                process.received.push((snapshot.position, state));
            }
            result = process.replica.receive(message);
        })?;
        match result {
            // Correct members do not send it, and there are no others.
            Err(error @ Ignored::Contradiction(..)) => Err(error.to_string()),
            Err(Ignored::OtherReceiver(_)) => {
                self.counts.wrong_receiver += 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The members look who answers at the addresses of the others.
    fn on_dial(&mut self) -> Run {
        self.after(3 * TICK, Event::Dial);
        for dialer in 0..self.nodes.len() {
            let Some(process) = &self.nodes[dialer].process else { continue };
            let membership = process.replica.membership().clone();
            membership.members().try_for_each(|info| self.dial(dialer, info.id, &membership))?;
        }
        Ok(())
    }

    /// A member dials another one. A process that waits learns so under which identity it begins.
    fn dial(&mut self, dialer: usize, expected: MemberId, membership: &Membership) -> Run {
        let node = self.owners[&expected];
        let blocked = &self.network.blocked;
        let is_cut = blocked.contains(&(dialer, node)) || blocked.contains(&(node, dialer));
        if node == dialer || is_cut || self.suspended_node(node) {
            return Ok(());
        }
        let waiting = self.nodes[node].waiting;
        let has_claim = waiting.is_some() && membership.claims().get(&expected) == waiting.as_ref();
        if waiting == Some(expected) || has_claim {
            return self.begin(node, expected);
        }
        let running = self.nodes[node].process.as_ref().map(|process| process.id);
        let Some(id) = running.or(waiting).filter(|id| *id != expected) else { return Ok(()) };
        let info = self.nodes[node].info(id);
        let is_waiting = waiting.is_some();
        self.process(dialer).replica.found(expected, info, is_waiting);
        Ok(())
    }

    // Outputs.

    /// Does what the replica of a node asks for.
    pub(super) fn do_output(&mut self, node: usize) -> Run {
        let output = self.process(node).replica.output().map_err(|error| error.to_string())?;
        let Output { messages, role, undo_to, restore, writes, committed, outcomes, reads_ready } =
            output;
        for message in messages {
            self.send(node, message);
        }
        if let Some(role) = role {
            role.term.hash(&mut self.trace);
            if role.role == Role::Leader {
                let id = self.process(node).id;
                self.history.on_leader(role.term, id)?;
            }
        }
        if let Some(index) = undo_to {
            self.counts.undone += self.process(node).machine.undo_to(index);
        }
        let mut content = None;
        if let Some(snapshot) = restore {
            self.counts.snapshots += 1;
            let process = self.process(node);
            let received = process.received.iter().find(|(at, _)| *at == snapshot.position);
            let state = received.map(|(_, state)| state.clone()).ok_or("unknown snapshot")?;
            process.work.push_back(Work::Restore(snapshot.position.index, state.clone()));
            content = Some(state);
        }
        self.process(node).received.clear();
        for write in writes {
            let run = self.nodes[node].run;
            let delay = self.random.between(1, self.disk_delay);
            self.after(delay, Event::Persisted { node, run, number: write.number });
            let state = write.snapshot.is_some().then(|| content.take()).flatten();
            self.nodes[node].disk.begin(write, state);
        }
        self.commit(node, committed)?;
        self.on_outcomes(node, outcomes)?;
        if let Some(number) = reads_ready {
            self.serve_reads(node, number)?;
        }
        Ok(())
    }

    fn send(&mut self, node: usize, message: Message) {
        let (from, to) = (node, self.owners[&message.to]);
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        let bytes = Bytes::from(bytes);
        let is_snapshot = matches!(message.body, Body::Snapshot(_));
        let state = is_snapshot.then(|| self.process(node).machine.published().clone());
        let blocked = self.network.blocked.contains(&(from, to));
        let lost = blocked || self.random.percent(self.network.loss);
        let delay = match self.random.percent(self.network.late) {
            true => self.random.between(MILLISECOND, 100 * MILLISECOND),
            false => self.random.between(MILLISECOND / 5, 3 * MILLISECOND),
        };
        if is_snapshot {
            let run = self.nodes[node].run;
            let (to, delivered) = (message.to, !lost);
            self.after(delay + TICK, Event::SnapshotSent { node, run, to, delivered });
        }
        if lost {
            return;
        }
        if self.random.percent(self.network.duplicates) {
            let late = delay + self.random.below(50 * MILLISECOND);
            let (bytes, state) = (bytes.clone(), state.clone());
            self.after(late, Event::Deliver { node: to, bytes, state });
        }
        self.after(delay, Event::Deliver { node: to, bytes, state });
    }

    fn commit(&mut self, node: usize, committed: Vec<Committed>) -> Run {
        if !committed.is_empty() || !self.process(node).work.is_empty() {
            let run = self.nodes[node].run;
            let delay = self.random.below(4 * MILLISECOND);
            self.after(delay, Event::Apply { node, run });
        }
        for entry in committed {
            let position = entry.position;
            position.hash(&mut self.trace);
            let content = match &entry.content {
                CommittedContent::Empty => ReferenceContent::Empty,
                CommittedContent::Apply(data) => ReferenceContent::Data(data.payload.clone()),
                CommittedContent::Publish => {
                    let payload = self.history.payload(position);
                    ReferenceContent::Data(payload.ok_or("nobody has proposed the entry")?)
                }
                CommittedContent::Members { membership, result } => {
                    self.check_change(position, membership, result.is_err())?;
                    ReferenceContent::Members(membership.clone())
                }
            };
            self.history.on_committed(position, content)?;
            self.process(node).work.push_back(Work::Commit(entry));
        }
        Ok(())
    }

    /// A change that is refused changes nothing.
    fn check_change(&mut self, position: Position, members: &Membership, refused: bool) -> Run {
        if position.index <= self.history.last() {
            return Ok(());
        }
        let before = self.history.membership();
        if refused && members != before {
            return Err(format!("a refused change at {position:?} has changed the members"));
        }
        self.counts.changes += u64::from(!refused);
        self.counts.replaced += u64::from(members.is_joint());
        self.counts.claimed += u64::from(members.claims().len() > before.claims().len());
        Ok(())
    }

    /// A leader has proposed to promote a learner: its process has begun, and has the log.
    pub(super) fn check_promoted(&self, leader: usize, id: MemberId) -> Run {
        if !self.begun.contains(&id) {
            return Err(format!("{id} is promoted, but has not begun"));
        }
        let process = |node: usize| self.nodes[node].process.as_ref();
        let learner = process(self.owners[&id]).filter(|process| process.id == id);
        let (Some(leader), Some(learner)) = (process(leader), learner) else { return Ok(()) };
        let (commit, last) = (leader.replica.commit_index(), learner.replica.status().last_index);
        match last + CAUGHT_UP_ENTRIES >= commit {
            true => Ok(()),
            false => Err(format!("{id} is promoted with {last} of {commit} entries")),
        }
    }

    fn on_outcomes(&mut self, node: usize, outcomes: Vec<(Position, Outcome)>) -> Run {
        for (position, outcome) in outcomes {
            let process = self.process(node);
            let Some(writes) = process.proposed.remove(&position) else { continue };
            match outcome {
                Outcome::Committed => {
                    process.committed.insert(position, writes);
                }
                Outcome::Unknown => self.counts.unknown += 1,
                Outcome::Lost => {
                    self.counts.lost += 1;
                    self.history.on_lost(position)?;
                    writes.iter().for_each(|write| self.ended[write.operation] = true);
                }
            }
        }
        Ok(())
    }

    /// Serves the reads up to `number` from the applied state.
    fn serve_reads(&mut self, node: usize, number: u64) -> Run {
        loop {
            let process = self.process(node);
            if process.reads.front().is_none_or(|read| read.number > number) {
                return Ok(());
            }
            let read = process.reads.pop_front().expect("there is a first");
            let value = process.machine.published().get(read.key);
            let applied = process.machine.applied;
            if !self.ended[read.operation] {
                self.ended[read.operation] = true;
                self.history.on_read(read.began, read.key, applied, value)?;
            }
        }
    }

    // The state machine.

    fn on_apply(&mut self, node: usize, run: u32) -> Run {
        if self.nodes[node].run != run || self.nodes[node].process.is_none() {
            return Ok(());
        }
        let process = self.process(node);
        while let Some(work) = process.work.pop_front() {
            let machine = &mut process.machine;
            match work {
                Work::Restore(index, state) => {
                    *machine = super::machine::Machine::new(state, index);
                }
                Work::Commit(Committed { position, content }) => {
                    match content {
                        CommittedContent::Empty | CommittedContent::Members { .. } => {}
                        CommittedContent::Publish => machine.publish(position.index)?,
                        CommittedContent::Apply(data) => {
                            machine.apply(&Effects::decode(data.payload))?;
                        }
                    }
                    machine.applied = position.index;
                }
            }
        }
        process.replica.applied(process.machine.applied);
        self.acknowledge(node)?;
        self.do_output(node)?;
        self.store_snapshot(node);
        Ok(())
    }

    /// Replies to the writes whose entries are applied.
    fn acknowledge(&mut self, node: usize) -> Run {
        let process = self.process(node);
        let applied = process.machine.applied;
        let batches = std::mem::take(&mut process.committed);
        let (applied, rest): (BTreeMap<_, _>, BTreeMap<_, _>) =
            batches.into_iter().partition(|(position, _)| position.index <= applied);
        process.committed = rest;
        for (position, writes) in applied {
            for (offset, PendingWrite { operation, began, reply }) in writes.into_iter().enumerate()
            {
                if !self.ended[operation] {
                    self.ended[operation] = true;
                    self.history.on_written(began, position, offset, reply)?;
                }
            }
        }
        Ok(())
    }

    /// Stores a snapshot, and compacts the log.
    fn store_snapshot(&mut self, node: usize) {
        let keep = self.random.below(SNAPSHOT_ENTRIES);
        let mode = self.mode;
        let Node { disk, process, compacted, .. } = &mut self.nodes[node];
        let Some(process) = process else { return };
        let described = process.replica.describe_state();
        let applied = process.machine.applied;
        // While a snapshot of the leader is written, there is nothing else to store.
        if described.position.index != applied || applied < *compacted + SNAPSHOT_ENTRIES {
            return;
        }
        *compacted = applied;
        if mode != LogMode::Memory {
            disk.compact(described, process.machine.published().clone());
            disk.sync();
        }
        process.replica.compact(applied.saturating_sub(keep));
    }

    // Clients.

    fn on_client(&mut self, client: usize) -> Run {
        let think = self.random.between(MILLISECOND, 20 * MILLISECOND);
        self.after(think, Event::Client { client });
        if self.quiet {
            return Ok(());
        }
        let Client { operation, deadline } = self.clients[client];
        let busy = operation.is_some_and(|operation| !self.ended[operation]);
        if busy && self.now < deadline {
            return Ok(());
        }
        let node = self.random.below(self.nodes.len() as u64) as usize;
        let operation = match self.random.percent(35) {
            true => self.read(node)?,
            false => self.write(node)?,
        };
        self.clients[client] = Client { operation, deadline: self.now + CLIENT_TIMEOUT };
        Ok(())
    }

    fn new_operation(&mut self) -> OperationId {
        self.ended.push(false);
        self.operations += 1;
        self.operations - 1
    }

    fn read(&mut self, node: usize) -> Run<Option<OperationId>> {
        if self.nodes[node].process.is_none() || self.suspended_node(node) {
            return Ok(None);
        }
        let (operation, began) = (self.new_operation(), self.history.begin());
        let key = self.random.below(KEYS) as u8;
        let process = self.process(node);
        let number = process.replica.read();
        process.reads.push_back(PendingRead { number, operation, began, key });
        self.do_output(node)?;
        Ok(Some(operation))
    }

    fn suspended_node(&self, node: usize) -> bool {
        self.nodes[node].suspended_until > self.now
    }

    /// Evaluates a batch, and proposes it now or later. Returns its last operation.
    fn write(&mut self, node: usize) -> Run<Option<OperationId>> {
        let leader = self.nodes.iter().position(|node| {
            let process = node.process.as_ref();
            process.is_some_and(|process| process.replica.begin_evaluation().is_ok())
        });
        let node = if self.random.percent(80) { leader.unwrap_or(node) } else { node };
        let Some(process) = &self.nodes[node].process else { return Ok(None) };
        if process.evaluated.is_some() || self.suspended_node(node) {
            return Ok(None);
        }
        let Ok(permission) = process.replica.begin_evaluation() else { return Ok(None) };
        let count = self.random.between(1, 4);
        let commands: Vec<_> = (0..count).map(|_| self.command(node)).collect();
        let process = self.process(node);
        let (effects, replies) = process.machine.evaluate(&commands);
        let began = self.history.begin();
        let pending = |reply| PendingWrite { operation: self.new_operation(), began, reply };
        let writes: Vec<_> = replies.into_iter().map(pending).collect();
        let last = writes.last().map(|write| write.operation);
        let payload = effects.encode();
        let evaluated = Evaluated { permission, commands, payload, writes };
        self.process(node).evaluated = Some(evaluated);
        let run = self.nodes[node].run;
        match self.random.percent(30) {
            true => {
                // Sometimes long enough for another leader in between.
                let limit = if self.random.percent(10) { 600 } else { 20 };
                let delay = self.random.below(limit * MILLISECOND);
                self.after(delay, Event::Propose { node, run });
            }
            false => self.on_propose(node, run)?,
        }
        Ok(last)
    }

    fn command(&mut self, node: usize) -> Command {
        let key = self.random.below(KEYS) as u8;
        self.values += 1;
        let value = self.values;
        if self.random.percent(50) {
            return Command::Put { key, value };
        }
        // Usually what a client would have read before.
        let expected = self.process(node).machine.published().get(key);
        let expected = if self.random.percent(80) { expected } else { 0 };
        Command::CompareAndPut { key, expected, value }
    }

    fn on_propose(&mut self, node: usize, run: u32) -> Run {
        if self.nodes[node].run != run {
            return Ok(());
        }
        let Some(process) = &mut self.nodes[node].process else { return Ok(()) };
        let Some(evaluated) = process.evaluated.take() else { return Ok(()) };
        let Evaluated { permission, commands, payload, writes } = evaluated;
        match process.replica.propose(permission, payload.clone()) {
            Ok(position) => {
                process.machine.proposed(position.index)?;
                process.proposed.insert(position, writes);
                self.history.on_proposed(position, &commands, payload);
            }
            Err(_) => {
                process.machine.undo_unproposed();
                self.counts.stale += 1;
                writes.iter().for_each(|write| self.ended[write.operation] = true);
            }
        }
        self.do_output(node)
    }

    // Checks.

    /// The logs of two members are equal up to each entry that both have with the same term.
    pub(super) fn check_logs(&self) -> Run {
        let logs: Vec<(MemberId, BTreeMap<u64, Entry>)> = self
            .nodes
            .iter()
            .filter_map(|node| node.process.as_ref())
            .map(|process| {
                let entries = process.replica.log().into_iter();
                (process.id, entries.map(|entry| (entry.position.index, entry)).collect())
            })
            .collect();
        for (i, (id, log)) in logs.iter().enumerate() {
            for (other_id, other) in &logs[i + 1..] {
                let common = log
                    .values()
                    .filter_map(|entry| Some((entry, other.get(&entry.position.index)?)));
                let common: Vec<_> = common.collect();
                let same = common.iter().rposition(|(a, b)| a.position == b.position);
                let checked = &common[..same.map_or(0, |same| same + 1)];
                if let Some((entry, _)) = checked.iter().find(|(a, b)| a != b) {
                    let position = entry.position;
                    return Err(format!("{id} and {other_id} have different logs at {position:?}"));
                }
            }
        }
        Ok(())
    }

    /// Whether all members run, and have applied all committed entries.
    pub(super) fn is_settled(&self) -> bool {
        let membership = self.history.membership();
        let running = |id: MemberId| {
            let node = self.owners.get(&id).map(|node| &self.nodes[*node])?;
            node.process.as_ref().filter(|process| process.id == id)
        };
        !membership.is_joint()
            && membership.members().all(|member| {
                running(member.id).is_some_and(|process| {
                    let status = process.replica.status();
                    process.machine.applied == self.history.last()
                        && process.work.is_empty()
                        && process.evaluated.is_none()
                        && status.last_index == status.applied
                })
            })
    }

    /// The states of all members are equal to that of a single machine.
    pub(super) fn check_states(&self) -> Run {
        let membership = self.history.membership();
        let processes = self.nodes.iter().filter_map(|node| node.process.as_ref());
        for process in processes.filter(|process| membership.get(process.id).is_some()) {
            let state = process.machine.published();
            if state != self.history.state() {
                let expected = self.history.state();
                return Err(format!("{} has the state {state:?}, not {expected:?}", process.id));
            }
        }
        Ok(())
    }

    /// Whether the voters that have not lost their log are a majority. `without` counts as lost.
    /// Members act on what they know to be committed, so the majority is needed in the
    /// configuration that each of them knows. One that knows the newest one tells it to the others when they vote,
    /// unless it forgets it in a crash without losing its log.
    pub(super) fn has_quorum(&self, without: Option<usize>) -> bool {
        let membership = self.history.membership();
        let has_log = |id: &MemberId| {
            let Some(node) = self.owners.get(id).copied().filter(|node| Some(*node) != without)
            else {
                return false;
            };
            let node = &self.nodes[node];
            match &node.process {
                Some(process) => process.id == *id,
                None => {
                    identity(node.disk.identity(), Some(&node.boot_id()), *id)
                        == Identity::Kept(*id)
                }
            }
        };
        let running = self.nodes.iter().enumerate().filter(|(node, _)| Some(*node) != without);
        let running = running.filter_map(|(_, node)| node.process.as_ref());
        let voters = running.filter(|process| membership.is_voter(process.id));
        let known: Vec<_> = voters.map(|process| process.replica.membership()).collect();
        let has_majority = |membership: &Membership| {
            membership.configurations().all(|voters| {
                let left = voters.iter().filter(|&id| has_log(id)).count();
                voters.is_empty() || left * 2 > voters.len()
            })
        };
        let is_told = self.mode == LogMode::Memory && known.contains(&membership);
        has_majority(membership) && (is_told || known.into_iter().all(has_majority))
    }

    /// Describes the cluster, for the message of a failure.
    pub(super) fn describe(&self) -> String {
        let mut text = format!("{:?}, {:?}", self.mode, self.history.membership());
        for node in &self.nodes {
            let Some(process) = &node.process else { continue };
            let status = process.replica.status();
            let (role, applied) = (status.role, process.machine.applied);
            text += &format!(
                "\n  {} {}: {:?} of term {}, last {}, committed {}, applied {} and {applied}, {:?}",
                node.name,
                process.id,
                role.role,
                role.term,
                status.last_index,
                status.commit,
                status.applied,
                process.replica.membership().voters()
            );
        }
        text
    }

    pub(super) fn trace(&self) -> u64 {
        self.trace.finish()
    }

    pub(super) fn finish_counts(&mut self) -> Counts {
        self.counts.writes = self.history.writes;
        self.counts.reads = self.history.reads;
        self.counts.terms = self.history.terms() as u64;
        self.counts.clone()
    }
}
