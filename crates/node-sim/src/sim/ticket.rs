//! What leaves the simulation, and how answers find their way back.

use crate::client::Request;

use super::references::ObjectKind;

/// Identifies a request of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The slot of the node.
    pub node: u32,
    /// The epoch of the slot.
    pub epoch: u16,
    /// The request.
    pub call: Call,
}

/// A request of a node, by its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// POST of the Node.
    CreateNode,
    /// GET of the Node.
    GetNode,
    /// DELETE of all ResourceSlices of the node.
    DeleteSlices,
    /// GET of the Lease.
    GetLease,
    /// POST of the Lease.
    CreateLease,
    /// PUT of the Lease.
    RenewLease,
    /// GET of the CSINode.
    GetCsiNode,
    /// POST of the CSINode.
    CreateCsiNode,
    /// GET of all pods of the node.
    ListPods,
    /// PATCH of the status of the Node.
    PatchNode,
    /// GET of a pod.
    GetPod(PodId),
    /// PATCH of the status of a pod.
    PatchPod(PodId),
    /// DELETE of a pod.
    DeletePod(PodId),
    /// POST of the request of a token of a pod, which has this number.
    CreateToken(PodId, u16),
    /// POST of an Event.
    CreateEvent,
}

/// Identifies a pod: its slot, and how often the slot was used before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodId {
    /// The slot.
    pub index: u32,
    /// How often the slot was used before.
    pub generation: u32,
}

/// What the simulation wants to happen.
#[derive(Debug)]
pub enum Output {
    /// Send a request.
    Request(Ticket, Request),
    /// Read the Leases and CSINodes that exist.
    ReadExisting,
    /// Open the connection of a node and start its watches.
    Open(u32),
    /// Close the connection of a node.
    Close(u32),
    /// Watch an object over the connection of a node.
    Watch(u32, WatchedObject),
    /// End the watch with this number of an object over the connection of a node.
    Unwatch(u32, u32),
}

/// A ConfigMap or a Secret that a node watches.
#[derive(Clone, Debug)]
pub struct WatchedObject {
    /// The number of the watch, which is not 0.
    pub id: u32,
    /// The kind.
    pub kind: ObjectKind,
    /// The namespace.
    pub namespace: Box<str>,
    /// The name.
    pub name: Box<str>,
}

impl Call {
    /// The verb and the resource in metrics.
    pub fn labels(self) -> (&'static str, &'static str) {
        match self {
            Call::CreateNode => ("create", "nodes"),
            Call::GetNode => ("get", "nodes"),
            Call::DeleteSlices => ("deletecollection", "resourceslices"),
            Call::GetLease => ("get", "leases"),
            Call::CreateLease => ("create", "leases"),
            Call::RenewLease => ("update", "leases"),
            Call::GetCsiNode => ("get", "csinodes"),
            Call::CreateCsiNode => ("create", "csinodes"),
            Call::ListPods => ("list", "pods"),
            Call::PatchNode => ("patch", "nodes/status"),
            Call::GetPod(_) => ("get", "pods"),
            Call::PatchPod(_) => ("patch", "pods/status"),
            Call::DeletePod(_) => ("delete", "pods"),
            Call::CreateToken(..) => ("create", "serviceaccounts/token"),
            Call::CreateEvent => ("create", "events"),
        }
    }
}
