//! Which objects a request selects.

use super::object::{Object, Traits};

/// The selectors that kubelet and kube-proxy use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Selector {
    /// `spec.nodeName=NAME`.
    Node(Box<[u8]>),
    /// `metadata.name=NAME`.
    Name(Box<[u8]>),
    /// All objects that have none of these traits.
    Without(Traits),
}

impl Selector {
    /// Whether it selects an object.
    pub fn selects(&self, object: &Object) -> bool {
        match self {
            Selector::Node(node) => object.node() == &node[..],
            Selector::Name(name) => object.name() == &name[..],
            Selector::Without(excluded) => !object.traits().overlap(*excluded),
        }
    }
}
