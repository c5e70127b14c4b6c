//! The watches: those that nodes share, and those of nodes with a connection of their own.

use std::time::{Duration, Instant};

use rand::RngExt as _;

use crate::client::{Request, WatchEnd};
use crate::sim::{Existing, NodeChange, Simulation};

use super::dispatch::Driver;
use super::reflector::{Reflector, Seen};
use super::resource::{ALL, READ_ONCE, Resource};
use super::tag::{Tag, WatchId};

/// A reflector of client-go ends a watch after a random time between these, in seconds.
const SECONDS: std::ops::Range<u32> = 300..600;
/// The user of the kubeconfig must not watch a resource.
const FORBIDDEN: u16 = 403;

impl Driver {
    /// Opens the watch of all nodes, with which everything begins.
    pub(super) fn open_node_watch(&self) {
        self.open_watch(WatchId::shared(Resource::Nodes));
    }

    /// Opens the watch of all pods when the nodes are known. Pods on nodes that are not known would be
    /// lost.
    fn open_pod_watch(&self) {
        let was_open = self.shared.borrow_mut().open_pods();
        if !was_open {
            self.open_watch(WatchId::shared(Resource::Pods));
        }
    }

    /// Reads the Leases and CSINodes that exist, with watches that end when they are complete.
    pub(super) fn read_existing(&self) {
        self.shared.borrow_mut().add_read_once();
        READ_ONCE.into_iter().for_each(|resource| self.open_watch(WatchId::shared(resource)));
    }

    /// Ends a watch of what is read once.
    fn end_read_once(&self, id: WatchId) {
        self.shared.borrow_mut().remove_read_once(id.resource);
        self.watch_link.cancel(Tag::Watch(id));
    }

    /// Runs a function with a watch. Returns `None` if the watch was replaced.
    fn with_reflector<R>(&self, id: WatchId, run: impl FnOnce(&mut Reflector) -> R) -> Option<R> {
        match id.node {
            None => self.shared.borrow_mut().get(id.resource).map(run),
            Some(node) => self.wires.borrow_mut().reflector(node, id).map(run),
        }
    }

    /// Opens a watch where it was.
    pub(super) fn open_watch(&self, id: WatchId) {
        let now = Instant::now();
        let opened = self.with_reflector(id, |it| (it.resource(), it.open(now)));
        let Some((resource, (version, seen))) = opened else { return };
        let (name, link) = match id.node {
            None => (None, Some(self.watch_link.clone())),
            Some(node) => {
                let name = self.simulation.borrow().node_name(node);
                (Some(name), self.wires.borrow().link(node))
            }
        };
        let Some(link) = link else { return };
        let seconds = rand::rng().random_range(SECONDS);
        let path = resource.watch_path(name.as_deref(), version, seconds);
        self.metrics.watches.with_label_values(&[resource.name()]).inc();
        link.watch(Tag::Watch(id), Request::get(path));
        self.apply(id, seen);
    }

    pub(super) fn on_watch_bytes(&self, id: WatchId, bytes: &[u8]) {
        let received = self.with_reflector(id, |it| (it.resource(), it.receive(bytes)));
        let Some((resource, result)) = received else { return };
        match result {
            Ok((seen, events)) => {
                self.metrics.watch_events.with_label_values(&[resource.name()]).inc_by(events);
                self.apply(id, seen);
            }
            Err(_) => {
                let resource = resource.name();
                tracing::error!(resource, "a watch sent something that is no event in protobuf");
            }
        }
    }

    fn apply(&self, id: WatchId, seen: impl IntoIterator<Item = Seen>) {
        let (mut is_synced, mut is_complete) = (false, false);
        let mut seen = seen.into_iter().peekable();
        if seen.peek().is_none() {
            return;
        }
        self.with_simulation(|simulation: &mut Simulation| {
            for it in seen {
                match it {
                    Seen::Pod(change) => simulation.pod_changed(id.node, change),
                    Seen::Node(change) => {
                        is_synced |= matches!(change, NodeChange::Synced);
                        simulation.node_changed(change);
                    }
                    Seen::Existing(change) => {
                        is_complete |= matches!(change, Existing::Complete);
                        simulation.existing_changed(change);
                    }
                }
            }
        });
        if is_synced {
            self.open_pod_watch();
        }
        if is_complete {
            self.end_read_once(id);
        }
    }

    pub(super) fn on_watch_end(&self, id: WatchId, end: WatchEnd) {
        let resource = id.resource.name();
        self.metrics.watches.with_label_values(&[resource]).dec();
        if end.status == Some(FORBIDDEN) && READ_ONCE.contains(&id.resource) {
            tracing::warn!(resource, "not permitted; each node reads its own objects");
            return self.apply(id, [Seen::Existing(Existing::Complete)]);
        }
        let delay = self.with_reflector(id, |it| it.ended(end, Instant::now()));
        let Some(delay) = delay else { return };
        if delay > Duration::ZERO {
            let status = end.status;
            tracing::debug!(resource, ?status, ?delay, "a watch failed, retrying");
        }
        let Some(driver) = self.me.upgrade() else { return };
        tokio::task::spawn_local(async move {
            tokio::time::sleep(delay).await;
            driver.open_watch(id);
        });
    }

    /// Opens the connection of a node, with its watches.
    pub(super) fn open_wire(&self, node: u32) {
        let name = self.simulation.borrow().node_name(node);
        let opened = self.wires.borrow_mut().open(node, &name);
        let session = match opened {
            Ok(session) => session,
            Err(error) => return self.warn("failed to open the connection of a node", &error),
        };
        let link = self.wires.borrow().link(node);
        link.iter().for_each(|link| self.spawn(link));
        for resource in ALL {
            self.open_watch(WatchId::of_node(node, session, resource));
        }
    }
}
