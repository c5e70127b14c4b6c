//! Which objects a request selects.

use super::object::{Object, Traits};

/// Characters of the longest name of an object.
const MAX_NAME: usize = 253;

/// The selectors that kubelet and kube-proxy use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Selector {
    /// `spec.nodeName=NAME`.
    Node(Box<[u8]>),
    /// `metadata.name=NAME`.
    Name(Box<[u8]>),
    /// All objects in a namespace.
    Namespace(Box<[u8]>),
    /// `metadata.name=NAME` in a namespace.
    Object {
        /// The namespace.
        namespace: Box<[u8]>,
        /// The name.
        name: Box<[u8]>,
    },
    /// All objects that have none of these traits.
    Without(Traits),
}

impl Selector {
    /// Whether it selects an object.
    pub fn selects(&self, object: &Object) -> bool {
        match self {
            Selector::Node(node) => object.node() == &node[..],
            Selector::Name(name) => object.name() == &name[..],
            Selector::Namespace(namespace) => object.namespace() == &namespace[..],
            Selector::Object { namespace, name } => {
                object.namespace() == &namespace[..] && object.name() == &name[..]
            }
            Selector::Without(excluded) => !object.traits().overlap(*excluded),
        }
    }
}

/// Whether a text is a name that needs no escapes in a selector. To kube-apiserver `.` and `..` are no
/// names of objects: it takes a request with them as one for all objects.
pub fn is_name(text: &str) -> bool {
    if matches!(text, "." | "..") {
        return false;
    }
    let allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
    !text.is_empty() && text.len() <= MAX_NAME && text.bytes().all(allowed)
}
