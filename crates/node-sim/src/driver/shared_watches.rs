//! The watches that nodes share.

use super::reflector::Reflector;
use super::resource::Resource;

/// The watches that nodes share.
pub struct SharedWatches {
    nodes: Reflector,
    pods: Option<Reflector>,
    pods_are_open: bool,
}

impl SharedWatches {
    /// Watches that were not opened. Pods are watched if some nodes have no watches of their own.
    pub fn new(has_pods: bool) -> SharedWatches {
        SharedWatches {
            nodes: Reflector::new(Resource::Nodes, true),
            pods: has_pods.then(|| Reflector::new(Resource::Pods, true)),
            pods_are_open: false,
        }
    }

    /// The watch of a resource.
    pub fn get(&mut self, resource: Resource) -> Option<&mut Reflector> {
        match resource {
            Resource::Nodes => Some(&mut self.nodes),
            Resource::Pods => self.pods.as_mut(),
            _ => None,
        }
    }

    /// Notes that pods are watched now. Returns whether they were before.
    pub fn open_pods(&mut self) -> bool {
        std::mem::replace(&mut self.pods_are_open, true)
    }
}
