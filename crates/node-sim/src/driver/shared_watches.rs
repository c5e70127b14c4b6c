//! The watches that nodes share.

use super::reflector::Reflector;
use super::resource::{READ_ONCE, Resource};

/// The watches that nodes share.
pub struct SharedWatches {
    nodes: Reflector,
    pods: Option<Reflector>,
    pods_are_open: bool,
    /// The watches of what is read once, until they are complete.
    read_once: Vec<Reflector>,
}

impl SharedWatches {
    /// Watches that were not opened. Pods are watched if some nodes have no watches of their own.
    pub fn new(has_pods: bool) -> SharedWatches {
        SharedWatches {
            nodes: Reflector::new(Resource::Nodes, true),
            pods: has_pods.then(|| Reflector::new(Resource::Pods, true)),
            pods_are_open: false,
            read_once: Vec::new(),
        }
    }

    /// The watch of a resource.
    pub fn get(&mut self, resource: Resource) -> Option<&mut Reflector> {
        match resource {
            Resource::Nodes => Some(&mut self.nodes),
            Resource::Pods => self.pods.as_mut(),
            _ => self.read_once.iter_mut().find(|it| it.resource() == resource),
        }
    }

    /// Adds the watches of what is read once.
    pub fn add_read_once(&mut self) {
        self.read_once = READ_ONCE.map(|it| Reflector::new(it, true)).into();
    }

    /// Removes a watch of what is read once.
    pub fn remove_read_once(&mut self, resource: Resource) {
        self.read_once.retain(|it| it.resource() != resource);
    }

    /// Notes that pods are watched now. Returns whether they were before.
    pub fn open_pods(&mut self) -> bool {
        std::mem::replace(&mut self.pods_are_open, true)
    }
}
