//! The state of the simulation, and what enters it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::api::Uid;
use crate::client::{Outcome, Request};
use crate::metrics::Metrics;
use crate::selector::Labels;
use crate::time::{Moment, Ticks, ticks};

use super::addresses::Addresses;
use super::node::{Flags, Flap, NEVER, Node, State};
use super::node_objects::NodeObjects;
use super::pod::Pods;
use super::settings::{Settings, WireNodes};
use super::ticket::{Call, Output, Ticket};
use super::wheel::{Timer, Wheel};

/// All nodes and pods.
pub struct Simulation {
    pub(super) settings: Settings,
    pub(super) metrics: Arc<Metrics>,
    pub(super) random: StdRng,
    pub(super) now: Moment,
    pub(super) wheel: Wheel,
    pub(super) nodes: Vec<Node>,
    pub(super) free_nodes: Vec<u32>,
    pub(super) names: HashMap<Rc<str>, u32>,
    /// Sets of labels that nodes share.
    pub(super) labels: HashSet<Rc<Labels>>,
    /// Nodes that wait until fewer nodes start.
    pub(super) waiting: VecDeque<u32>,
    /// Nodes that start.
    pub(super) starting: usize,
    pub(super) wire_nodes: u32,
    /// Whether the state of all nodes was seen, so that missing ones are known.
    pub(super) is_synced: bool,
    /// Watches of Leases and CSINodes that exist, as far as they are not complete. No node starts before.
    pub(super) unread: u8,
    /// Whether a Lease that cannot be renewed was logged.
    pub(super) has_warned_of_lease: bool,
    pub(super) flaps: HashMap<u32, Flap>,
    pub(super) pods: Pods,
    /// The ConfigMaps and Secrets of pods on nodes with a connection of their own.
    pub(super) objects: HashMap<u32, NodeObjects>,
    /// The number of the last watch of such an object.
    pub(super) next_object: u32,
    /// Nodes whose pods are read.
    pub(super) listing: usize,
    /// Pods that were deleted meanwhile.
    pub(super) deleted_pods: HashSet<Uid>,
    pub(super) addresses: Addresses,
    output: Vec<Output>,
}

impl Simulation {
    /// A simulation without nodes. `seed` decides what is random.
    pub fn new(settings: Settings, metrics: Arc<Metrics>, seed: u64) -> Simulation {
        Simulation {
            addresses: Addresses::new(settings.pod_network),
            settings,
            metrics,
            random: StdRng::seed_from_u64(seed),
            now: Moment::default(),
            wheel: Wheel::new(),
            nodes: Vec::new(),
            free_nodes: Vec::new(),
            names: HashMap::new(),
            labels: HashSet::new(),
            waiting: VecDeque::new(),
            starting: 0,
            wire_nodes: 0,
            is_synced: false,
            unread: 0,
            has_warned_of_lease: false,
            flaps: HashMap::new(),
            pods: Pods::default(),
            objects: HashMap::new(),
            next_object: 0,
            listing: 0,
            deleted_pods: HashSet::new(),
            output: Vec::new(),
        }
    }

    /// Sets the time of what follows.
    pub fn set_now(&mut self, now: Moment) {
        self.now = now;
    }

    /// Does what is due now.
    pub fn advance(&mut self) {
        for (due, timer) in self.wheel.take_due(self.now.tick) {
            match timer {
                Timer::Lease(node) => self.on_lease_timer(node, due),
                Timer::Status(node) => self.on_status_timer(node, due),
                Timer::Flap(node) => self.on_flap_timer(node, due),
                Timer::Pod(pod) => self.on_pod_timer(pod, due),
                Timer::Report(pod) => self.on_report_timer(pod, due),
                Timer::Sync(pod) => self.on_sync_timer(pod, due),
                Timer::Token(pod) => self.request_tokens(pod),
                Timer::Objects(node) => self.on_objects_timer(node, due),
            }
        }
    }

    /// Handles the outcome of a request.
    pub fn answered(&mut self, ticket: Ticket, outcome: Outcome<'_>) {
        let id = ticket.node;
        if self.nodes.get(id as usize).is_none_or(|node| node.epoch != ticket.epoch) {
            return;
        }
        match ticket.call {
            Call::CreateNode => self.on_node_created(id, outcome),
            Call::GetNode => self.on_node_read(id, outcome),
            Call::DeleteSlices => self.on_slices_deleted(id, outcome),
            Call::GetLease => self.on_lease_read(id, outcome),
            Call::CreateLease => self.on_lease_created(id, outcome),
            Call::RenewLease => self.on_lease_renewed(id, outcome),
            Call::GetCsiNode => self.on_csi_node_read(id, outcome),
            Call::CreateCsiNode => self.on_csi_node_created(id, outcome),
            Call::ListPods => self.on_pods_listed(id, outcome),
            Call::PatchNode => self.on_status_reported(id, outcome),
            Call::GetPod(pod) => self.on_pod_read(pod, outcome),
            Call::PatchPod(pod) => self.on_pod_reported(pod, outcome),
            Call::DeletePod(pod) => self.on_pod_deleted(pod, outcome),
            Call::CreateToken(pod, number) => self.on_token_created(pod, number, outcome),
            // Kubelet drops Events that the server does not take.
            Call::CreateEvent => {}
        }
    }

    /// Removes and returns what shall happen.
    pub fn take_output(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.output)
    }

    /// The name of a node.
    pub fn node_name(&self, id: u32) -> Rc<str> {
        self.node(id).name.clone()
    }

    /// Whether a node has a connection of its own.
    pub fn is_wire(&self, id: u32) -> bool {
        self.node(id).flags.is_wire
    }

    pub(super) fn node(&self, id: u32) -> &Node {
        &self.nodes[id as usize]
    }

    pub(super) fn node_mut(&mut self, id: u32) -> &mut Node {
        &mut self.nodes[id as usize]
    }

    /// Sends a request of a node.
    pub(super) fn send(&mut self, id: u32, call: Call, request: Request) {
        let ticket = Ticket { node: id, epoch: self.node(id).epoch, call };
        self.output.push(Output::Request(ticket, request));
    }

    pub(super) fn put_output(&mut self, output: Output) {
        self.output.push(output);
    }

    /// Adds a node that waits for its start. Its Node exists if it has a UID.
    pub(super) fn add_node(&mut self, name: &str, uid: Uid, labels: Rc<Labels>) -> u32 {
        let name: Rc<str> = name.into();
        let is_wire = match self.settings.wire {
            WireNodes::None => false,
            WireNodes::All => true,
            WireNodes::First(count) => self.wire_nodes < count,
        };
        self.wire_nodes += u32::from(is_wire);
        let exists = uid != Uid::default();
        let flags = Flags { is_wire, exists, is_seen: true, ..Flags::default() };
        let id = self.free_nodes.pop().unwrap_or(self.nodes.len() as u32);
        let epoch = self.nodes.get(id as usize).map_or(0, |node| node.epoch);
        let node = Node { uid, labels, epoch, flags, ..Node::waiting(name.clone()) };
        match self.nodes.get_mut(id as usize) {
            Some(slot) => *slot = node,
            None => self.nodes.push(node),
        }
        self.metrics.nodes.with_label_values(&[State::Waiting.name()]).inc();
        self.names.insert(name, id);
        self.waiting.push_back(id);
        id
    }

    /// Forgets a node and its pods.
    pub(super) fn remove_node(&mut self, id: u32) {
        self.forget_pods_of(id);
        self.set_state(id, State::Free);
        let node = &mut self.nodes[id as usize];
        node.epoch = node.epoch.wrapping_add(1);
        let (name, is_wire) = (node.name.clone(), node.flags.is_wire);
        node.lease = Box::default();
        (node.lease_due, node.status_due) = (NEVER, NEVER);
        if is_wire {
            self.wire_nodes -= 1;
            self.put_output(Output::Close(id));
        }
        self.names.remove(&name);
        self.flaps.remove(&id);
        self.free_nodes.push(id);
        self.admit();
    }

    /// Changes the state of a node, and counts the nodes by state.
    pub(super) fn set_state(&mut self, id: u32, state: State) {
        let before = std::mem::replace(&mut self.node_mut(id).state, state);
        self.starting -= usize::from(matches!(before, State::Starting(_)));
        self.starting += usize::from(matches!(state, State::Starting(_)));
        self.count_lists(before, state);
        if before.name() != state.name() {
            let gauge = |state: State| self.metrics.nodes.with_label_values(&[state.name()]);
            gauge(before).dec();
            if state != State::Free {
                gauge(state).inc();
            }
        }
    }

    /// Calls the timer of the Lease, or of the start, after a delay.
    pub(super) fn schedule_lease(&mut self, id: u32, delay: Ticks) {
        let due = self.now.tick + delay.max(1);
        self.node_mut(id).lease_due = due;
        self.wheel.add(due, Timer::Lease(id));
    }

    /// Calls the timer of the status after a delay.
    pub(super) fn schedule_status(&mut self, id: u32, delay: Ticks) {
        let due = self.now.tick + delay.max(1);
        self.node_mut(id).status_due = due;
        self.wheel.add(due, Timer::Status(id));
    }

    /// A random part of a duration, in ticks.
    pub(super) fn random_part(&mut self, duration: Duration) -> Ticks {
        let part: f64 = self.random.random_range(0.0..1.0);
        ticks(duration.mul_f64(part))
    }
}
