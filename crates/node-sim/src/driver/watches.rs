//! The watches: those that nodes share, and those of nodes with a connection of their own.

use std::rc::Rc;
use std::time::{Duration, Instant};

use rand::RngExt as _;

use crate::client::{Link, Request, WatchEnd};
use crate::sim::{Existing, NodeChange, Simulation, WatchedObject};

use super::dispatch::Driver;
use super::reflector::{Reflector, Seen};
use super::resource::{ALL, READ_ONCE, Resource};
use super::tag::{Tag, WatchId};

/// A reflector of client-go ends a watch after a random time between these, in seconds.
const SECONDS: std::ops::Range<u32> = 300..600;
/// The same of the watches of ConfigMaps and Secrets.
const OBJECT_SECONDS: std::ops::Range<u32> = 1800..3600;
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
        let Some((link, path)) = self.watch_request(id, version) else { return };
        self.metrics.watches.with_label_values(&[resource.name()]).inc();
        link.watch(Tag::Watch(id), Request::get(path));
        self.apply(id, seen);
    }

    /// The connection and the path of a watch; `None` if the connection was closed.
    fn watch_request(&self, id: WatchId, version: Option<u64>) -> Option<(Rc<Link<Tag>>, String)> {
        let is_object = id.object != 0;
        let seconds = if is_object { OBJECT_SECONDS } else { SECONDS };
        let seconds = rand::rng().random_range(seconds);
        let Some(node) = id.node else {
            return Some((self.watch_link.clone(), id.resource.watch_path(None, version, seconds)));
        };
        let link = self.wires.borrow().link(node)?;
        let path = match is_object {
            true => self.wires.borrow().object_path(id, version, seconds)?,
            false => {
                let name = self.simulation.borrow().node_name(node);
                id.resource.watch_path(Some(&name), version, seconds)
            }
        };
        Some((link, path))
    }

    /// Watches a ConfigMap or a Secret over the connection of a node.
    pub(super) fn watch_object(&self, node: u32, object: WatchedObject) {
        let id = self.wires.borrow_mut().add_object(node, object);
        id.into_iter().for_each(|id| self.open_watch(id));
    }

    /// Ends the watch of a ConfigMap or a Secret.
    pub(super) fn unwatch_object(&self, node: u32, object: u32) {
        let id = self.wires.borrow_mut().remove_object(node, object);
        let link = self.wires.borrow().link(node);
        if let (Some(id), Some(link)) = (id, link) {
            link.cancel(Tag::Watch(id));
        }
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
                    Seen::Immutable => {
                        id.node.into_iter().for_each(|node| {
                            simulation.object_is_immutable(node, id.object);
                        });
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
