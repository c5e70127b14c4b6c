//! The watches of the ConfigMaps and Secrets that the pods of a node refer to, as kubelet's
//! `pkg/kubelet/util/manager/watch_based_manager.go` keeps them: one for each object, from the first pod
//! that refers to it to the last one.
//!
//! The watch of an object that is only in the environment of containers ends some minutes after the last
//! container has started with it, and is opened again by the next one. The watch of an object that is
//! immutable ends when the object is known. Nodes without a connection of their own have no such watches.

use std::time::Duration;

use crate::time::{Ticks, ticks};

use super::node::{NEVER, State};
use super::node_objects::{Object, Watch};
use super::simulation::Simulation;
use super::ticket::{Output, WatchedObject};
use super::wheel::Timer;

/// An object that is not read for this time is not watched any more: five times kubelet's `syncFrequency`.
const MAX_IDLE: Duration = Duration::from_secs(5 * 60);
/// How often kubelet looks for such objects.
const IDLE_PERIOD: Duration = Duration::from_secs(60);

impl Simulation {
    /// Watches the objects of a pod, if its node has a connection of its own.
    pub(super) fn register_pod(&mut self, index: u32) {
        let now = self.now.tick;
        let Some(pod) = self.pods.at(index) else { return };
        let node = pod.node;
        if pod.is_registered || pod.plan.references.is_empty() || !self.is_wire(node) {
            return;
        }
        let Some(pod) = self.pods.at(index) else { return };
        pod.is_registered = true;
        let (namespace, references) = (pod.namespace.clone(), pod.plan.references.clone());
        let mut opened = Vec::new();
        let known = self.objects.entry(node).or_default();
        for reference in references {
            let place = known.find(reference.kind, &namespace, &reference.name);
            let place = place.unwrap_or_else(|| {
                let (kind, name) = (reference.kind, reference.name);
                let watched = WatchedObject { id: 0, kind, namespace: namespace.clone(), name };
                let state = Watch::Idle;
                known.objects.push(Object { watched, pods: 0, frequent: 0, used: now, state });
                known.objects.len() - 1
            });
            let object = &mut known.objects[place];
            object.pods += 1;
            object.frequent += u32::from(reference.is_read_often);
            opened.extend(object.read(now, &mut self.next_object));
        }
        opened.into_iter().for_each(|object| self.watch_object(node, object));
        self.schedule_idle(node);
    }

    /// Ends the watches of objects to which no other pod refers.
    pub(super) fn unregister_pod(&mut self, index: u32) {
        let Some(pod) = self.pods.at(index) else { return };
        if !std::mem::take(&mut pod.is_registered) {
            return;
        }
        let node = pod.node;
        let (namespace, references) = (pod.namespace.clone(), pod.plan.references.clone());
        let Some(known) = self.objects.get_mut(&node) else { return };
        let mut closed = Vec::new();
        for reference in references {
            let Some(place) = known.find(reference.kind, &namespace, &reference.name) else {
                continue;
            };
            let object = &mut known.objects[place];
            object.pods -= 1;
            object.frequent -= u32::from(reference.is_read_often);
            if object.pods == 0 {
                let object = known.objects.swap_remove(place);
                closed.extend((object.state == Watch::Open).then_some(object.watched.id));
            }
        }
        if known.objects.is_empty() {
            self.objects.remove(&node);
        }
        closed.into_iter().for_each(|id| self.put_output(Output::Unwatch(node, id)));
    }

    /// The containers of a pod are started: they read the objects in their environment.
    pub(super) fn read_objects(&mut self, index: u32) {
        let now = self.now.tick;
        let Some(pod) = self.pods.at(index) else { return };
        if !pod.is_registered {
            return;
        }
        let node = pod.node;
        let (namespace, references) = (pod.namespace.clone(), pod.plan.references.clone());
        let Some(known) = self.objects.get_mut(&node) else { return };
        let mut opened = Vec::new();
        for reference in references {
            let Some(place) = known.find(reference.kind, &namespace, &reference.name) else {
                continue;
            };
            opened.extend(known.objects[place].read(now, &mut self.next_object));
        }
        opened.into_iter().for_each(|object| self.watch_object(node, object));
        self.schedule_idle(node);
    }

    fn watch_object(&mut self, node: u32, object: WatchedObject) {
        // A node that does not run watches its objects when it starts.
        if !matches!(self.node(node).state, State::Waiting | State::Stopped) {
            self.put_output(Output::Watch(node, object));
        }
    }

    /// Watches the objects of a node whose connection was opened.
    pub(super) fn watch_objects_of(&mut self, node: u32) {
        let Some(known) = self.objects.get(&node) else { return };
        let open = known.objects.iter().filter(|it| it.state == Watch::Open);
        let open: Vec<WatchedObject> = open.map(|it| it.watched.clone()).collect();
        open.into_iter().for_each(|object| self.put_output(Output::Watch(node, object)));
    }

    /// An object is immutable, so it is not watched any more.
    pub fn object_is_immutable(&mut self, node: u32, id: u32) {
        let objects = self.objects.get_mut(&node).map(|it| &mut it.objects);
        let object = objects.into_iter().flatten().find(|it| it.watched.id == id);
        if let Some(object) = object.filter(|it| it.state == Watch::Open) {
            object.state = Watch::Immutable;
            self.put_output(Output::Unwatch(node, id));
        }
    }

    /// Looks for objects that nobody reads after the next period, if there can be some.
    fn schedule_idle(&mut self, node: u32) {
        let due = self.now.tick + ticks(IDLE_PERIOD);
        let Some(known) = self.objects.get_mut(&node) else { return };
        let can_be_idle = |it: &Object| it.frequent == 0 && it.state == Watch::Open;
        if known.due == NEVER && known.objects.iter().any(can_be_idle) {
            known.due = due;
            self.wheel.add(due, Timer::Objects(node));
        }
    }

    /// The timer that ends the watches of objects that nobody reads.
    pub(super) fn on_objects_timer(&mut self, node: u32, due: Ticks) {
        let now = self.now.tick;
        let Some(known) = self.objects.get_mut(&node).filter(|it| it.due == due) else { return };
        known.due = NEVER;
        let mut closed = Vec::new();
        for object in &mut known.objects {
            let is_read = object.frequent > 0 || now < object.used + ticks(MAX_IDLE);
            if object.state == Watch::Open && !is_read {
                object.state = Watch::Idle;
                closed.push(object.watched.id);
            }
        }
        closed.into_iter().for_each(|id| self.put_output(Output::Unwatch(node, id)));
        self.schedule_idle(node);
    }
}
