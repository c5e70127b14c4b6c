//! What an answer belongs to.

use crate::sim::Ticket;

use super::resource::{ALL, Resource};

/// What an answer belongs to.
#[derive(Clone, Copy, Debug)]
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
    /// The resource, by its place in [`ALL`].
    resource: u8,
}

impl WatchId {
    /// A watch of a connection of a node.
    pub fn of_node(node: u32, session: u32, resource: Resource) -> WatchId {
        WatchId { node: Some(node), session, resource: number(resource) }
    }

    /// A watch that all nodes share.
    pub fn shared(resource: Resource) -> WatchId {
        WatchId { node: None, session: 0, resource: number(resource) }
    }

    /// The resource.
    pub fn resource(self) -> Resource {
        ALL[usize::from(self.resource)]
    }

    /// The place of the resource in [`ALL`].
    pub fn place(self) -> usize {
        usize::from(self.resource)
    }
}

/// The place of a resource in [`ALL`].
fn number(resource: Resource) -> u8 {
    ALL.iter().position(|it| *it == resource).unwrap_or_default() as u8
}
