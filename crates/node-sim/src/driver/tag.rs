//! What an answer belongs to.

use crate::sim::Ticket;

use super::resource::Resource;

/// What an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// A request of the simulation.
    Call(Ticket),
    /// A watch.
    Watch(WatchId),
}

/// Identifies a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchId {
    /// The node whose watch it is; `None` if all nodes share it.
    pub node: Option<u32>,
    /// The number of the node's connection.
    pub session: u32,
    /// The resource.
    pub resource: Resource,
    /// The number of the object that is watched; 0 if the watch is not of one ConfigMap or Secret.
    pub object: u32,
}

impl WatchId {
    /// A watch of a connection of a node.
    pub fn of_node(node: u32, session: u32, resource: Resource) -> WatchId {
        WatchId { node: Some(node), session, resource, object: 0 }
    }

    /// A watch that all nodes share.
    pub fn shared(resource: Resource) -> WatchId {
        WatchId { node: None, session: 0, resource, object: 0 }
    }
}
