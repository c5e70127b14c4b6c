//! The simulation: a state machine of all nodes and their pods, without I/O.
//!
//! ```text
//!  time ───────────▶ advance     ─┐
//!  answers ────────▶ answered     ├─▶ Simulation ─▶ take_output: requests, and connections of
//!  watched objects ▶ node_*, pod_*│                 nodes that are opened and closed
//!  faults ─────────▶ inject      ─┘
//! ```
//!
//! # Invariants
//! - A node has at most one request for its Lease and one for its status in flight, and a pod at most
//!   one request of its own and one for each of its tokens.
//! - A timer is what the wheel holds and the node or pod expects: `lease_due`, `status_due`, `due`. An
//!   entry of the wheel with another time is stale and has no effect. So nothing is ever removed from
//!   the wheel.
//! - A node that is stopped makes no request. What becomes due meanwhile happens when it starts again.
//! - A slot of a node or a pod is reused. Tickets have the epoch of the slot, so that a late answer
//!   has no effect on its next user.
//!
//! # Reading order
//! `wheel`, `node`, `simulation`; then the life of a node: `start`, `lease`, `status`, `node_status`,
//! `watched_nodes`, `existing`, `adoption`;
//! the life of a pod: `pod`, `references`, `pods`, `token`, `tokens`, `node_objects`, `object_watches`, `progress`, `report`, `pod_status`, `reconcile`; and `faults`.

mod addresses;
mod adoption;
mod events;
mod existing;
mod faults;
mod lease;
mod names;
mod node;
mod node_objects;
mod node_status;
mod object_watches;
mod pod;
mod pod_status;
mod pods;
mod progress;
mod reconcile;
mod references;
mod report;
mod requests;
mod settings;
mod shard;
mod simulation;
mod start;
mod status;
#[cfg(test)]
mod tests;
mod ticket;
mod token;
mod tokens;
mod watched_nodes;
mod wheel;

pub use addresses::Network;
pub use existing::Existing;
pub use faults::{Fault, Selection};
pub use names::NameFormat;
pub use pods::PodChange;
pub use references::ObjectKind;
pub use settings::{Annotation, Capacity, Settings, WireNodes};
pub use shard::Shard;
pub use simulation::Simulation;
pub use ticket::{Call, Output, Ticket, WatchedObject};
pub use watched_nodes::NodeChange;
