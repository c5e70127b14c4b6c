//! What the shared watch of nodes shows.

use std::rc::Rc;

use crate::api::{self, Uid};
use crate::selector::Labels;

use super::node_status;
use super::simulation::Simulation;

/// The label that differs for each node, so that sets of labels without it can be shared.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// An event of the watch of nodes.
#[derive(Debug)]
pub enum NodeChange {
    /// The watch begins with the state of all nodes.
    Began,
    /// A node was created or changed.
    Set(Box<api::Node>),
    /// A node was deleted.
    Deleted(Box<api::Node>),
    /// The state with which the watch began is complete.
    Synced,
}

impl Simulation {
    /// Handles an event of the watch of nodes.
    pub fn node_changed(&mut self, change: NodeChange) {
        match change {
            NodeChange::Began => {
                self.nodes.iter_mut().for_each(|node| node.flags.is_seen = !node.flags.exists);
            }
            NodeChange::Set(node) => self.node_was_set(*node),
            NodeChange::Deleted(node) => self.node_was_deleted(*node),
            NodeChange::Synced => self.nodes_synced(),
        }
    }

    fn node_was_set(&mut self, node: api::Node) {
        let is_ready = node.is_ready();
        let status = node.status.unwrap_or_default();
        let has_capacity = !status.capacity.is_empty();
        let metadata = node.metadata.unwrap_or_default();
        let Ok(uid) = metadata.uid.parse::<Uid>() else { return };
        let is_managed = self.is_managed(&metadata);
        let labels = self.share_labels(metadata.labels);
        let known = self.names.get(&*metadata.name).copied();
        let id = match known {
            Some(id) if !self.is_another(id, uid) => id,
            other => {
                // A Node that was deleted and created again is a new one. Its pods are read.
                other.into_iter().for_each(|id| self.remove_node(id));
                if !is_managed {
                    return;
                }
                let id = self.add_node(&metadata.name, uid, labels);
                // The shared watch of pods begins when the nodes are known. A node with watches of
                // its own sees its pods when it starts.
                let must_list_pods = self.is_synced && !self.is_wire(id);
                let is_reported = node_status::is_reported(&metadata.name, &status, &self.settings);
                let flags = &mut self.node_mut(id).flags;
                (flags.is_reported, flags.is_ready) = (is_reported, is_ready);
                (flags.has_capacity, flags.must_list_pods) = (has_capacity, must_list_pods);
                return self.admit();
            }
        };
        let node = self.node_mut(id);
        node.labels = labels;
        (node.flags.is_seen, node.flags.is_ready) = (true, is_ready);
        // Something has changed the Node before its start: the complete status is reported.
        node.flags.is_reported &= is_ready;
        node.flags.has_capacity |= has_capacity;
        // A Node that is ready by now needs no correction after the report in flight.
        node.flags.must_correct &= !is_ready;
        if !is_ready {
            self.correct_status(id);
        }
    }

    /// Whether a node that is new is simulated here.
    fn is_managed(&self, metadata: &api::ObjectMeta) -> bool {
        let is_annotated = self.settings.manage.as_ref().is_some_and(|annotation| {
            metadata.annotations.get(&annotation.key) == Some(&annotation.value)
        });
        let number = self.settings.names.number(&metadata.name);
        let is_wanted = is_annotated || number.is_some_and(|number| number < self.settings.nodes);
        is_wanted && self.settings.shard.contains(number, &metadata.name)
    }

    fn node_was_deleted(&mut self, node: api::Node) {
        let metadata = node.metadata.unwrap_or_default();
        let Some(id) = self.names.get(&*metadata.name).copied() else { return };
        // The event may be about a Node that existed before under the same name.
        if metadata.uid.parse() == Ok(self.node(id).uid) {
            self.remove_node(id);
        }
    }

    /// Nodes that were not shown do not exist. At the first time, missing ones are registered.
    fn nodes_synced(&mut self) {
        let is_missing = |id: &u32| !self.node(*id).flags.is_seen;
        let missing: Vec<u32> = self.names.values().copied().filter(is_missing).collect();
        missing.into_iter().for_each(|id| self.remove_node(id));
        if std::mem::replace(&mut self.is_synced, true) {
            return;
        }
        for number in 0..self.settings.nodes {
            let name = self.settings.names.name(number);
            let is_own = self.settings.shard.contains(Some(number), &name);
            if is_own && !self.names.contains_key(&*name) {
                self.add_node(&name, Uid::default(), Rc::default());
            }
        }
        tracing::info!(nodes = self.names.len(), "simulated nodes are known");
        self.read_existing();
        self.admit();
    }

    /// Whether the simulated nodes are known, and all of them have been started.
    pub fn is_ready(&self) -> bool {
        self.is_synced && self.waiting.is_empty() && self.starting == 0
    }

    /// Returns the set of these labels that all nodes with them share.
    pub(super) fn share_labels(&mut self, mut labels: Labels) -> Rc<Labels> {
        labels.remove(HOSTNAME);
        if let Some(shared) = self.labels.get(&labels) {
            return shared.clone();
        }
        let shared = Rc::new(labels);
        self.labels.insert(shared.clone());
        shared
    }
}
