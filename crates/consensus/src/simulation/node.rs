//! A simulated member: a process with its replica and its state, and a disk that outlives it.

use std::collections::{BTreeMap, VecDeque};

use super::disk::Disk;
use super::history::Began;
use super::machine::{Command, Key, Machine, Reply, State};
use crate::Replica;
use crate::evaluation::Evaluation;
use crate::id::{Index, MemberId, Position};
use crate::membership::MemberInfo;
use crate::output::Committed;
use crate::reads::ReadNumber;

/// The number of an operation of a client.
pub(super) type OperationId = usize;

/// A write that waits for its batch to be committed.
pub(super) struct PendingWrite {
    pub(super) operation: OperationId,
    pub(super) began: Began,
    pub(super) reply: Reply,
}

/// A read that waits for its confirmation.
pub(super) struct PendingRead {
    pub(super) number: ReadNumber,
    pub(super) operation: OperationId,
    pub(super) began: Began,
    pub(super) key: Key,
}

/// A batch that is evaluated and not proposed.
pub(super) struct Evaluated {
    pub(super) permission: Evaluation,
    pub(super) commands: Vec<Command>,
    pub(super) payload: bytes::Bytes,
    pub(super) writes: Vec<PendingWrite>,
}

/// What the replica wants the state machine to do, in order.
pub(super) enum Work {
    Restore(Index, State),
    Commit(Committed),
}

pub(super) struct Process {
    pub(super) id: MemberId,
    pub(super) replica: Replica,
    pub(super) machine: Machine,
    pub(super) work: VecDeque<Work>,
    /// The contents of received snapshots.
    pub(super) received: Vec<(Position, State)>,
    pub(super) evaluated: Option<Evaluated>,
    /// Proposed batches whose outcome is not known.
    pub(super) proposed: BTreeMap<Position, Vec<PendingWrite>>,
    /// Committed batches that are not applied.
    pub(super) committed: BTreeMap<Position, Vec<PendingWrite>>,
    pub(super) reads: VecDeque<PendingRead>,
}

#[derive(Default)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) process: Option<Process>,
    /// The identity of a process without state that waits until the cluster knows it.
    pub(super) waiting: Option<MemberId>,
    pub(super) disk: Disk,
    /// Counts processes. Events of an earlier process are void.
    pub(super) run: u32,
    /// Counts starts of the machine.
    pub(super) boot: u64,
    /// Microseconds between two ticks: clocks are not equally fast.
    pub(super) tick: u64,
    /// The last entry in the last stored snapshot.
    pub(super) compacted: Index,
    /// Until when the process is suspended.
    pub(super) suspended_until: u64,
}

impl Node {
    pub(super) fn info(&self, id: MemberId) -> MemberInfo {
        let peer_urls = vec![format!("https://{}:2380", self.name)];
        MemberInfo { id, name: self.name.clone(), peer_urls, client_urls: Vec::new() }
    }

    /// Describes a member that is added before its process begins.
    pub(super) fn unnamed(&self, id: MemberId) -> MemberInfo {
        MemberInfo { name: String::new(), ..self.info(id) }
    }

    pub(super) fn boot_id(&self) -> Vec<u8> {
        self.boot.to_le_bytes().to_vec()
    }
}

impl Process {
    pub(super) fn new(id: MemberId, replica: Replica, state: State, applied: Index) -> Process {
        Process {
            id,
            replica,
            machine: Machine::new(state, applied),
            work: VecDeque::new(),
            received: Vec::new(),
            evaluated: None,
            proposed: BTreeMap::new(),
            committed: BTreeMap::new(),
            reads: VecDeque::new(),
        }
    }
}
