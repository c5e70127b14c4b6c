//! Who may read what.
//!
//! A kubelet may read what the Node authorizer allows it, with the selectors of
//! `AuthorizeNodeWithSelectors` (`plugin/pkg/auth/authorizer/node` in k8s.io/kubernetes): the pods and
//! PodCertificateRequests of its node, its Node, and all Services, CSIDrivers and RuntimeClasses. For
//! anybody else RBAC decides. It must allow all objects, whatever the selector of the request.

use std::sync::{Arc, LazyLock};

use super::kind::Kind;
use super::recognize::Read;
use super::selector::Selector;
use crate::identity::IdentityFields;
use crate::node_path::review::Access;
use crate::node_path::reviews::Reviews;

/// The only user who gets a thinned watch of Leases. It needs to know whether a Lease was renewed, not
/// each renewal.
const CONTROLLER_MANAGER: &[u8] = b"system:kube-controller-manager";

/// What users of RBAC must be allowed, by the position of the resource.
static LISTS: LazyLock<[Access; 8]> = LazyLock::new(|| accesses("list"));
static WATCHES: LazyLock<[Access; 8]> = LazyLock::new(|| accesses("watch"));

fn accesses(verb: &'static str) -> [Access; 8] {
    Kind::ALL.map(|kind| {
        let names = kind.names();
        Access { verb, group: names.group, resource: names.resource, namespace: "" }
    })
}

/// Whether somebody certainly may do this. Must be called in a runtime.
pub fn may_read(reviews: &Arc<Reviews>, identity: &Arc<IdentityFields>, read: &Read) -> bool {
    match identity.node() {
        Some(node) => node_may_read(node, read),
        // Others may need each event.
        None if read.kind == Kind::Leases && identity.user() != CONTROLLER_MANAGER => false,
        None => {
            let accesses = if read.verb.name() == "list" { &LISTS } else { &WATCHES };
            reviews.allows(identity, &accesses[read.kind.index()])
        }
    }
}

fn node_may_read(node: &[u8], read: &Read) -> bool {
    // kube-apiserver allows nothing to a node without a name.
    if node.is_empty() {
        return false;
    }
    match (read.kind, &read.selector) {
        (Kind::Pods | Kind::PodCertificateRequests, Selector::Node(selected))
        | (Kind::Nodes, Selector::Name(selected)) => &selected[..] == node,
        (Kind::Services | Kind::CsiDrivers | Kind::RuntimeClasses, _) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_path::watches::recognize::Verb;

    #[test]
    fn a_node_reads_its_own_objects() {
        let may =
            |kind, selector| node_may_read(b"a", &Read { kind, selector, verb: Verb::List(0) });
        let name = |text: &[u8]| Box::<[u8]>::from(text);
        let (own, other) = (name(b"a"), name(b"b"));
        for kind in [Kind::Pods, Kind::PodCertificateRequests] {
            assert!(may(kind, Selector::Node(own.clone())));
            assert!(!may(kind, Selector::Node(other.clone())));
            assert!(!may(kind, Selector::Name(own.clone())));
            assert!(!may(kind, Selector::Without(Default::default())));
        }
        assert!(may(Kind::Nodes, Selector::Name(own.clone())));
        assert!(!may(Kind::Nodes, Selector::Name(other)));
        assert!(!may(Kind::Nodes, Selector::Without(Default::default())));
        for kind in [Kind::Services, Kind::CsiDrivers, Kind::RuntimeClasses] {
            assert!(may(kind, Selector::Without(Default::default())));
        }
        for kind in [Kind::EndpointSlices, Kind::Leases] {
            assert!(!may(kind, Selector::Without(Default::default())));
        }
        let selector = Selector::Node((*b"").into());
        let read = Read { kind: Kind::Pods, selector, verb: Verb::List(0) };
        assert!(!node_may_read(b"", &read), "a node without a name");
    }

    #[test]
    fn reviews_name_the_resource() {
        for kind in Kind::ALL {
            let access = &WATCHES[kind.index()];
            assert_eq!((access.verb, access.resource), ("watch", kind.names().resource));
        }
    }
}
