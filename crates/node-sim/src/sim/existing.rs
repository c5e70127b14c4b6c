//! Nodes that exist when the simulation begins. A kubelet that starts again reads its Node, its Lease and
//! its CSINode, and then writes what differs. The nodes without a connection of their own read all Leases
//! and all CSINodes with one watch each, which ends when the state of now is complete. A node whose
//! objects are as it would have left them then needs no request but the renewals of its Lease.

use crate::api::{self, ObjectMeta};

use super::node::{State, Step};
use super::simulation::Simulation;
use super::ticket::Output;

/// An event of the watches with which Leases and CSINodes are read.
#[derive(Debug)]
pub enum Existing {
    /// A Lease, encoded.
    Lease(Box<[u8]>),
    /// The metadata of a CSINode.
    CsiNode(Box<ObjectMeta>),
    /// All Leases, or all CSINodes, were read, or cannot be read.
    Complete,
}

/// The objects that are read: Leases and CSINodes.
const KINDS: u8 = 2;

impl Simulation {
    /// Reads the Leases and CSINodes of nodes that exist, if they have no connection of their own. No node
    /// starts until then.
    pub(super) fn read_existing(&mut self) {
        if self.waiting.iter().any(|id| self.may_run_at_once(*id)) {
            self.unread = KINDS;
            self.put_output(Output::ReadExisting);
        }
    }

    /// Whether the objects of a node are read together with those of others.
    fn may_run_at_once(&self, id: u32) -> bool {
        let node = self.node(id);
        node.state == State::Waiting && node.flags.exists && !node.flags.is_wire
    }

    /// Handles an event of the watches of Leases and CSINodes.
    pub fn existing_changed(&mut self, change: Existing) {
        match change {
            Existing::Lease(lease) => self.lease_exists(&lease),
            Existing::CsiNode(metadata) => {
                let id = self.names.get(&*metadata.name).copied();
                if let Some(id) = id.filter(|id| self.may_run_at_once(*id)) {
                    self.node_mut(id).flags.has_csi_node = true;
                }
            }
            Existing::Complete => {
                self.unread = self.unread.saturating_sub(1);
                self.admit();
            }
        }
    }

    /// Keeps a Lease, if the node holds it.
    fn lease_exists(&mut self, lease: &[u8]) {
        let Some(decoded) = api::decode::<api::Lease>(lease) else { return };
        let name = decoded.metadata.unwrap_or_default().name;
        let holder = decoded.spec.unwrap_or_default().holder_identity;
        let Some(id) = self.names.get(&*name).copied() else { return };
        if !self.may_run_at_once(id) || holder != Some(name) || !self.is_usable(lease) {
            return;
        }
        self.keep_lease(id, lease);
        self.node_mut(id).flags.has_lease = true;
    }

    /// Lets a node run whose objects are as it would have left them. Returns whether they are. Its first
    /// renewal and its first report come at random times, so that nodes do not send them together.
    pub(super) fn runs_at_once(&mut self, id: u32) -> bool {
        let flags = &mut self.node_mut(id).flags;
        let is_complete = flags.has_lease && flags.has_csi_node && flags.is_reported;
        if flags.is_wire || flags.must_list_pods || !is_complete {
            return false;
        }
        (flags.must_read_lease, flags.is_second_round) = (false, false);
        self.forget_existing(id);
        let renewal = self.random_part(self.settings.lease_interval);
        let report = self.random_part(self.settings.status_frequency);
        self.schedule_lease(id, renewal);
        self.schedule_status(id, report);
        self.set_state(id, State::Running);
        self.resume_pods_of(id);
        true
    }

    /// The step after the Lease. What was read before the start of the node is not read again.
    pub(super) fn step_after_lease(&mut self, id: u32) -> Step {
        match std::mem::take(&mut self.node_mut(id).flags.has_csi_node) {
            true => self.step_after_csi_node(id),
            false => Step::CsiNode,
        }
    }

    /// What was read is valid once: a node that is stopped and started again reads it itself.
    pub(super) fn forget_existing(&mut self, id: u32) {
        let flags = &mut self.node_mut(id).flags;
        (flags.has_lease, flags.has_csi_node, flags.is_reported) = (false, false, false);
    }
}
