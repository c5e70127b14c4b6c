//! The kind and namespace of the Kubernetes object that is stored under a key.

/// The kind and namespace of the objects that a key or a prefix refers to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Object<'a> {
    /// The kind in the spelling of the key: `pods`, `services/specs`, `minions`,
    /// `apiextensions.k8s.io/customresourcedefinitions`. For a key without `/registry/`, the
    /// first path segment.
    pub kind: &'a str,
    /// The namespace, if the key contains one.
    pub namespace: Option<&'a str>,
}

/// The API server's default `--etcd-prefix`, with slashes.
const ROOT: &str = "/registry/";
/// First segments of kinds that have two segments although they are not in an API group. (A
/// segment with a dot is an API group.)
const TWO_SEGMENT_KINDS: [&str; 2] = ["services/", "ranges/"];
/// Kinds without namespaces. The segment after the kind is not a namespace, even if further
/// segments follow.
const CLUSTER_SCOPED_KINDS: [&str; 3] = ["ranges/", "masterleases", "peerserverleases"];

/// The object that `key` refers to; `None` if the key is not UTF-8.
pub fn object_of_key(key: &[u8]) -> Option<Object<'_>> {
    let text = std::str::from_utf8(key).ok()?;
    let Some(at) = text.find(ROOT) else {
        let first = text.trim_start_matches('/').split('/').next().unwrap_or_default();
        return Some(Object { kind: first, namespace: None });
    };
    let path = &text[at + ROOT.len()..];
    let (first, rest) = path.split_once('/').unwrap_or((path, ""));
    let has_two_segments =
        first.contains('.') || TWO_SEGMENT_KINDS.iter().any(|kind| path.starts_with(kind));
    let (kind, rest) = match has_two_segments && !rest.is_empty() {
        false => (first, rest),
        true => {
            let (second, rest) = rest.split_once('/').unwrap_or((rest, ""));
            (&path[..first.len() + 1 + second.len()], rest)
        }
    };
    let is_cluster_scoped = CLUSTER_SCOPED_KINDS.iter().any(|start| path.starts_with(start));
    let namespace = rest.split_once('/').map(|(namespace, _)| namespace);
    Some(Object {
        kind,
        namespace: namespace.filter(|name| !is_cluster_scoped && !name.is_empty()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_namespaces_of_kubernetes_keys() {
        for (key, kind, namespace) in [
            ("/registry/pods/default/a", "pods", Some("default")),
            ("/registry/pods/default/", "pods", Some("default")),
            ("/registry/pods/", "pods", None),
            ("/registry/pods", "pods", None),
            ("/registry/minions/node-1", "minions", None),
            ("/registry/leases/kube-node-lease/node-1", "leases", Some("kube-node-lease")),
            ("/registry/services/specs/default/kubernetes", "services/specs", Some("default")),
            ("/registry/services/endpoints/", "services/endpoints", None),
            ("/registry/ranges/serviceips", "ranges/serviceips", None),
            ("/registry/masterleases/10.0.0.1", "masterleases", None),
            (
                "/registry/apiextensions.k8s.io/customresourcedefinitions/a.example.com",
                "apiextensions.k8s.io/customresourcedefinitions",
                None,
            ),
            ("/registry/example.com/widgets/ns/name", "example.com/widgets", Some("ns")),
            ("/registry/example.com/widgets/", "example.com/widgets", None),
            ("/registry/health", "health", None),
            ("/4711/registry/events/ns/e.1", "events", Some("ns")),
            ("compact_rev_key", "compact_rev_key", None),
            ("/other/a/b", "other", None),
            ("", "", None),
        ] {
            assert_eq!(object_of_key(key.as_bytes()), Some(Object { kind, namespace }), "{key}");
        }
        assert_eq!(object_of_key(b"\xff"), None);
    }
}
