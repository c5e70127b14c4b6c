//! The state of one node.

use std::rc::Rc;

use crate::api::Uid;
use crate::selector::Labels;
use crate::time::Ticks;

/// A time that never comes.
pub const NEVER: Ticks = Ticks::MAX;

/// A simulated node. With its Lease, which is the largest part, it has about 700 bytes.
pub struct Node {
    /// The name, shared with the index of all names.
    pub name: Rc<str>,
    /// The UID; that of no object until it is known.
    pub uid: Uid,
    /// The Lease of the last answer, encoded; empty until there is one.
    pub lease: Box<[u8]>,
    /// Labels without the host name, shared by nodes that have the same ones.
    pub labels: Rc<Labels>,
    /// The slots of the pods on the node.
    pub pods: Vec<u32>,
    /// When the Lease is renewed, or the start goes on.
    pub lease_due: Ticks,
    /// When the status is reported.
    pub status_due: Ticks,
    /// How much later everything happens, because the node is slow.
    pub delay: Ticks,
    /// How often the slot was used before.
    pub epoch: u16,
    /// What the node does.
    pub state: State,
    /// Attempts that failed in a row, for the back-off.
    pub failures: u8,
    /// Renewals that failed in a row.
    pub tries: u8,
    /// Which requests are in flight, and what the next ones must do.
    pub flags: Flags,
}

impl Node {
    /// A node about which nothing is known but its name.
    pub fn waiting(name: Rc<str>) -> Node {
        Node {
            name,
            uid: Uid::default(),
            lease: Box::default(),
            labels: Rc::default(),
            pods: Vec::new(),
            lease_due: NEVER,
            status_due: NEVER,
            delay: 0,
            epoch: 0,
            state: State::Waiting,
            failures: 0,
            tries: 0,
            flags: Flags::default(),
        }
    }
}

/// Facts about a node.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flags {
    /// Whether the node has a connection of its own.
    pub is_wire: bool,
    /// Whether the Node exists, as far as the simulation knows.
    pub exists: bool,
    /// Whether its status has a capacity.
    pub has_capacity: bool,
    /// Whether a request for the Lease, or of the start, is in flight.
    pub lease_busy: bool,
    /// Whether the Node was ready when it was last seen.
    pub is_ready: bool,
    /// Whether a report of the status is in flight.
    pub status_busy: bool,
    /// Whether the Lease must be read before it is renewed.
    pub must_read_lease: bool,
    /// Whether renewals have failed before and after the Lease was read.
    pub is_second_round: bool,
    /// Whether the Node was not ready when the report in flight, which says that it is, was sent. The
    /// watch may show the report before its answer comes.
    pub becomes_ready: bool,
    /// Whether the next report has the complete status.
    pub reports_all: bool,
    /// Whether the Node was seen to be not ready while a report was in flight.
    pub must_correct: bool,
    /// Whether the pods of the node must be read, because the shared watch does not show them again.
    pub must_list_pods: bool,
    /// Whether its Lease was read before its first start.
    pub has_lease: bool,
    /// Whether its CSINode was seen before its first start.
    pub has_csi_node: bool,
    /// Whether its Node had the status that the node reports, before its first start.
    pub is_reported: bool,
    /// Whether the last watch from the beginning has shown the node.
    pub is_seen: bool,
}

/// How a node flaps.
#[derive(Clone, Copy, Debug)]
pub struct Flap {
    /// For how long it does nothing.
    pub down: Ticks,
    /// For how long it runs.
    pub up: Ticks,
    /// When it stops or starts.
    pub due: Ticks,
}

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The slot has no node.
    Free,
    /// Waits until fewer nodes start.
    Waiting,
    /// Takes a step of its start.
    Starting(Step),
    /// Runs.
    Running,
    /// Does nothing, because of a fault.
    Stopped,
}

/// A step of the start of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Creates the Node.
    Register,
    /// Reads the Node, because it exists.
    Read,
    /// Deletes the ResourceSlices of the node, as the drivers of devices are not known yet.
    Slices,
    /// Reads, creates or renews the Lease.
    Lease,
    /// Reads or creates the CSINode.
    CsiNode,
    /// Reads the pods of the node, which the shared watch may have shown before.
    Pods,
    /// Reports that the node is ready.
    Status,
}

impl State {
    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            State::Free => "free",
            State::Waiting => "waiting",
            State::Starting(_) => "starting",
            State::Running => "running",
            State::Stopped => "stopped",
        }
    }
}
