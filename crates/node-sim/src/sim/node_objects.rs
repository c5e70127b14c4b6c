//! The ConfigMaps and Secrets to which the pods of a node refer.

use crate::time::Ticks;

use super::node::NEVER;
use super::references::ObjectKind;
use super::ticket::WatchedObject;

/// The objects of a node.
pub struct NodeObjects {
    /// The objects.
    pub objects: Vec<Object>,
    /// When objects that are not read are looked for.
    pub due: Ticks,
}

/// An object to which pods of a node refer.
pub struct Object {
    /// What is watched.
    pub watched: WatchedObject,
    /// The pods that refer to it.
    pub pods: u32,
    /// Those of them that read it again and again.
    pub frequent: u32,
    /// When a container was started with it.
    pub used: Ticks,
    /// Whether it is watched.
    pub state: Watch,
}

/// Whether an object is watched.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    /// It is watched.
    Open,
    /// Closed because nobody reads the object.
    Idle,
    /// Closed because the object does not change.
    Immutable,
}

impl Default for NodeObjects {
    fn default() -> Self {
        NodeObjects { objects: Vec::new(), due: NEVER }
    }
}

impl NodeObjects {
    /// Finds the place of an object.
    pub fn find(&mut self, kind: ObjectKind, namespace: &str, name: &str) -> Option<usize> {
        self.objects.iter().position(|it| {
            let WatchedObject { kind: known, namespace: space, name: called, .. } = &it.watched;
            *known == kind && **space == *namespace && **called == *name
        })
    }
}

impl Object {
    /// Notes that the object is read. Returns what must be watched, if its watch is closed. Each watch has another
    /// number: `last` is that of the last one.
    pub fn read(&mut self, now: Ticks, last: &mut u32) -> Option<WatchedObject> {
        self.used = now;
        if self.state != Watch::Idle {
            return None;
        }
        *last = last.wrapping_add(1).max(1);
        (self.watched.id, self.state) = (*last, Watch::Open);
        Some(self.watched.clone())
    }
}
