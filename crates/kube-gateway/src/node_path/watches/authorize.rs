//! Who may read what.
//!
//! A kubelet may read what the Node authorizer allows it, with the selectors of
//! `AuthorizeNodeWithSelectors` (`plugin/pkg/auth/authorizer/node` in k8s.io/kubernetes): the pods and
//! PodCertificateRequests of its node, its Node, all Services, CSIDrivers and RuntimeClasses, and each
//! ConfigMap and Secret to which a pod of its node refers. For anybody else RBAC decides. It must allow
//! all objects of the request's namespace, or of all namespaces, whatever the selector. ConfigMaps and Secrets are
//! for kubelets only.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use super::kind::Kind;
use super::recognize::Read;
use super::selector::Selector;
use super::shared::SharedCache;
use crate::identity::IdentityFields;
use crate::node_path::review::Access;
use crate::node_path::reviews::{Reviews, Verdict};

/// What users of RBAC must be allowed, by the position of the resource.
static LISTS: LazyLock<[Access; Kind::COUNT]> = LazyLock::new(|| accesses("list"));
static WATCHES: LazyLock<[Access; Kind::COUNT]> = LazyLock::new(|| accesses("watch"));

fn accesses(verb: &'static str) -> [Access; Kind::COUNT] {
    Kind::ALL.map(|kind| {
        let names = kind.names();
        Access { verb, group: names.group, resource: names.resource, namespace: Cow::Borrowed("") }
    })
}

/// Whether somebody may do this. `pods` knows what pods refer to. Must be called in a runtime.
pub fn may_read(
    reviews: &Arc<Reviews>,
    pods: Option<&SharedCache>,
    identity: &Arc<IdentityFields>,
    read: &Read,
) -> Verdict {
    match may_read_without_rbac(pods, identity, read) {
        Some(true) => Verdict::Allowed,
        Some(false) => Verdict::Refused,
        None => reviewed(reviews, identity, read),
    }
}

/// What a review says.
fn reviewed(reviews: &Arc<Reviews>, identity: &Arc<IdentityFields>, read: &Read) -> Verdict {
    let accesses = if read.verb.name() == "list" { &LISTS } else { &WATCHES };
    let access = &accesses[read.kind.index()];
    match &read.selector {
        // A role in this namespace is enough.
        Selector::Namespace(namespace) => {
            let namespace = String::from_utf8_lossy(namespace).into_owned().into();
            reviews.verdict(identity, &Access { namespace, ..access.clone() })
        }
        _ => reviews.verdict(identity, access),
    }
}

/// Whether somebody certainly may do this; `None` if RBAC decides.
fn may_read_without_rbac(
    pods: Option<&SharedCache>,
    identity: &IdentityFields,
    read: &Read,
) -> Option<bool> {
    match identity.node() {
        Some(node) => Some(node_may_read(node, pods, read)),
        // What a user of RBAC may read is not asked for each object.
        None if read.kind.is_referenced() => Some(false),
        None => None,
    }
}

fn node_may_read(node: &[u8], pods: Option<&SharedCache>, read: &Read) -> bool {
    // kube-apiserver allows nothing to a node without a name.
    if node.is_empty() {
        return false;
    }
    match (read.kind, &read.selector) {
        (Kind::Pods | Kind::PodCertificateRequests, Selector::Node(selected))
        | (Kind::Nodes, Selector::Name(selected)) => &selected[..] == node,
        (Kind::ConfigMaps | Kind::Secrets, Selector::Object { namespace, name }) => {
            pods.is_some_and(|pods| pods.lock().refers(node, read.kind, namespace, name))
        }
        (Kind::Services | Kind::CsiDrivers | Kind::RuntimeClasses, _) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::identity::{FieldNames, User};
    use crate::node_path::watches::cache::{Cache, Change};
    use crate::node_path::watches::frame::EventType;
    use crate::node_path::watches::object::Object;
    use crate::node_path::watches::object::sample::pod;
    use crate::node_path::watches::recognize::Verb;
    use crate::node_path::watches::references::sample::{WAYS, parsed};

    /// A cache of pods that serves.
    fn pods(objects: Vec<Object>) -> SharedCache {
        let cache = SharedCache::new(Kind::Pods, Cache::with_references(), None);
        let bookmark = pod("", "", "", 10, "k8s.io/initial-events-end");
        cache.replace(objects, Object::parse(Kind::Pods, bookmark).unwrap()).unwrap();
        cache.lock().serve(true);
        cache.lock().set_connected(true);
        cache
    }

    fn read(kind: Kind, namespace: &str, name: &str) -> Read {
        let (namespace, name) = (namespace.as_bytes().into(), name.as_bytes().into());
        Read { kind, selector: Selector::Object { namespace, name }, verb: Verb::List(0) }
    }

    #[test]
    fn a_node_reads_what_its_pods_refer_to() {
        for (way, (kind, _)) in WAYS.into_iter().enumerate() {
            let pods = pods(vec![parsed("p", "a", 1, &[(way, "x")]), parsed("q", "b", 2, &[])]);
            let may = |node: &str, read: Read| node_may_read(node.as_bytes(), Some(&pods), &read);
            assert!(may("a", read(kind, "ns", "x")));
            assert!(!may("b", read(kind, "ns", "x")), "another node");
            assert!(!may("", read(kind, "ns", "x")), "a node without a name");
            assert!(!may("a", read(kind, "other", "x")), "another namespace");
            assert!(!may("a", read(kind, "ns", "y")), "another name");
            let [first, second] = Kind::REFERENCED;
            let other = if kind == first { second } else { first };
            assert!(!may("a", read(other, "ns", "x")), "another resource");
        }
    }

    #[test]
    fn secrets_are_for_kubelets_only() {
        let pods = pods(vec![parsed("p", "a", 1, &[(0, "x")])]);
        let may = |name: &str, group: &str, kind| {
            let (name, uid, credential_id) = (name.into(), None, "X509SHA256=00".into());
            let user = User { name, uid, groups: vec![group.into()], credential_id };
            let identity = FieldNames::default().encode(&user).unwrap();
            may_read_without_rbac(Some(&pods), &identity, &read(kind, "ns", "x"))
        };
        assert_eq!(may("system:node:a", "system:nodes", Kind::Secrets), Some(true));
        for (name, group) in [
            ("system:node:b", "system:nodes"),
            ("system:node:", "system:nodes"),
            ("system:node:a", "others"),
            ("a", "system:nodes"),
            ("admin", "system:masters"),
            ("system:kube-controller-manager", ""),
        ] {
            for kind in Kind::REFERENCED {
                assert_eq!(may(name, group, kind), Some(false), "{name}");
            }
        }
        for kind in [Kind::Services, Kind::Leases] {
            assert_eq!(may("a", "", kind), None, "RBAC decides");
        }
        assert_eq!(may("system:node:a", "system:nodes", Kind::Leases), Some(false));
    }

    #[test]
    fn references_end_with_the_pod_and_its_node() {
        let pods = pods(vec![parsed("p", "a", 1, &[(0, "x")]), parsed("q", "a", 2, &[(0, "x")])]);
        let may = |node: &str, name: &str| {
            node_may_read(node.as_bytes(), Some(&pods), &read(Kind::Secrets, "ns", name))
        };
        let apply = |event, object| {
            pods.lock().apply(Change { event, object }, Instant::now()).unwrap();
        };
        apply(EventType::Deleted, parsed("p", "a", 11, &[(0, "x")]));
        assert!(may("a", "x"), "another pod refers to it");
        apply(EventType::Deleted, parsed("q", "a", 12, &[(0, "x")]));
        assert!(!may("a", "x"));
        apply(EventType::Added, parsed("p", "", 13, &[(0, "x")]));
        assert!(!may("a", "x") && !may("", "x"), "a pod without a node");
        apply(EventType::Modified, parsed("p", "a", 14, &[(0, "x")]));
        assert!(may("a", "x") && !may("b", "x"));
        apply(EventType::Modified, parsed("p", "b", 15, &[(0, "x"), (3, "y")]));
        assert!(!may("a", "x") && may("b", "x") && may("b", "y"));
    }

    #[test]
    fn nothing_is_allowed_while_the_pods_may_be_old() {
        let pods = pods(vec![parsed("p", "a", 1, &[(0, "x")])]);
        let may = || node_may_read(b"a", Some(&pods), &read(Kind::Secrets, "ns", "x"));
        assert!(may());
        pods.lock().set_connected(false);
        assert!(!may(), "there is no source");
        pods.lock().set_connected(true);
        assert!(may());
        pods.lock().serve(false);
        assert!(!may(), "the cache does not serve");
        pods.clear();
        assert!(!may());
        let unasked = SharedCache::new(Kind::Pods, Cache::new(Kind::Pods), None);
        assert!(!node_may_read(b"a", Some(&unasked), &read(Kind::Secrets, "ns", "x")));
        assert!(!node_may_read(b"a", None, &read(Kind::Secrets, "ns", "x")));
    }

    #[test]
    fn a_node_reads_its_own_objects() {
        let pods = pods(Vec::new());
        let may = |kind, selector| {
            node_may_read(b"a", Some(&pods), &Read { kind, selector, verb: Verb::List(0) })
        };
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
        for kind in [Kind::EndpointSlices, Kind::Leases, Kind::ConfigMaps, Kind::Secrets] {
            assert!(!may(kind, Selector::Without(Default::default())));
        }
        assert!(!may(Kind::Leases, Selector::Namespace(name(b"kube-node-lease"))));
        let selector = Selector::Node((*b"").into());
        let read = Read { kind: Kind::Pods, selector, verb: Verb::List(0) };
        assert!(!node_may_read(b"", Some(&pods), &read), "a node without a name");
    }

    #[test]
    fn reviews_name_the_resource() {
        for kind in Kind::ALL {
            let access = &WATCHES[kind.index()];
            assert_eq!((access.verb, access.resource), ("watch", kind.names().resource));
        }
    }
}
