//! The resources that are served.

/// What the URLs of ConfigMaps and Secrets begin with, which are in a namespace.
const NAMESPACES: &str = "/api/v1/namespaces/";
/// What the URLs of the Leases in a namespace begin with.
const LEASE_NAMESPACES: &str = "/apis/coordination.k8s.io/v1/namespaces/";

/// A resource that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Pods.
    Pods,
    /// Nodes.
    Nodes,
    /// Services.
    Services,
    /// EndpointSlices.
    EndpointSlices,
    /// CSIDrivers.
    CsiDrivers,
    /// RuntimeClasses.
    RuntimeClasses,
    /// PodCertificateRequests.
    PodCertificateRequests,
    /// Leases.
    Leases,
    /// ConfigMaps.
    ConfigMaps,
    /// Secrets.
    Secrets,
}

/// How a resource is addressed and encoded.
pub struct Names {
    /// The API group.
    pub group: &'static str,
    /// The name of the resource in URLs.
    pub resource: &'static str,
    /// The URL of all objects.
    pub path: &'static str,
    /// `apiVersion` of an object and of a list.
    pub api_version: &'static str,
    /// `kind` of a list.
    pub list: &'static str,
}

impl Kind {
    /// The number of resources.
    pub const COUNT: usize = 10;
    /// All resources. The position is [`Kind::index`].
    pub const ALL: [Kind; Kind::COUNT] = [
        Kind::Pods,
        Kind::Nodes,
        Kind::Services,
        Kind::EndpointSlices,
        Kind::CsiDrivers,
        Kind::RuntimeClasses,
        Kind::PodCertificateRequests,
        Kind::Leases,
        Kind::ConfigMaps,
        Kind::Secrets,
    ];

    /// The position in [`Kind::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// The resource with this URL, and the namespace, or "" if the URL is that of all objects.
    pub fn of_path(path: &str) -> Option<(Kind, &str)> {
        if let Some(rest) = path.strip_prefix(LEASE_NAMESPACES) {
            let (namespace, resource) = rest.split_once('/')?;
            let is_lease = resource == Kind::Leases.names().resource && !namespace.is_empty();
            return is_lease.then_some((Kind::Leases, namespace));
        }
        if let Some(rest) = path.strip_prefix(NAMESPACES) {
            let (namespace, resource) = rest.split_once('/')?;
            let kind =
                Kind::REFERENCED.into_iter().find(|kind| kind.names().resource == resource)?;
            return Some((kind, namespace));
        }
        let is_at = |kind: &Kind| kind.names().path == path && !kind.is_referenced();
        Kind::ALL.into_iter().find(is_at).map(|kind| (kind, ""))
    }

    /// The resources to which pods refer. They are read one object at a time.
    pub const REFERENCED: [Kind; 2] = [Kind::ConfigMaps, Kind::Secrets];

    /// Whether the objects come from the store, and not from an API server.
    pub fn is_stored(self) -> bool {
        self == Kind::Leases
    }

    /// Whether pods refer to objects of this resource.
    pub fn is_referenced(self) -> bool {
        Kind::REFERENCED.contains(&self)
    }

    /// How the resource is addressed and encoded. The versions are those that kubelet, kube-proxy and
    /// kube-controller-manager 1.37 use.
    pub fn names(self) -> &'static Names {
        macro_rules! names {
            ($group:literal, $api_version:literal, $prefix:literal, $resource:literal, $kind:literal) => {
                &Names {
                    group: $group,
                    resource: $resource,
                    path: concat!($prefix, $resource),
                    api_version: $api_version,
                    list: concat!($kind, "List"),
                }
            };
        }
        match self {
            Kind::Pods => names!("", "v1", "/api/v1/", "pods", "Pod"),
            Kind::Nodes => names!("", "v1", "/api/v1/", "nodes", "Node"),
            Kind::Services => names!("", "v1", "/api/v1/", "services", "Service"),
            Kind::EndpointSlices => names!(
                "discovery.k8s.io",
                "discovery.k8s.io/v1",
                "/apis/discovery.k8s.io/v1/",
                "endpointslices",
                "EndpointSlice"
            ),
            Kind::CsiDrivers => names!(
                "storage.k8s.io",
                "storage.k8s.io/v1",
                "/apis/storage.k8s.io/v1/",
                "csidrivers",
                "CSIDriver"
            ),
            Kind::RuntimeClasses => names!(
                "node.k8s.io",
                "node.k8s.io/v1",
                "/apis/node.k8s.io/v1/",
                "runtimeclasses",
                "RuntimeClass"
            ),
            Kind::PodCertificateRequests => names!(
                "certificates.k8s.io",
                "certificates.k8s.io/v1",
                "/apis/certificates.k8s.io/v1/",
                "podcertificaterequests",
                "PodCertificateRequest"
            ),
            Kind::Leases => names!(
                "coordination.k8s.io",
                "coordination.k8s.io/v1",
                "/apis/coordination.k8s.io/v1/",
                "leases",
                "Lease"
            ),
            Kind::ConfigMaps => names!("", "v1", "/api/v1/", "configmaps", "ConfigMap"),
            Kind::Secrets => names!("", "v1", "/api/v1/", "secrets", "Secret"),
        }
    }

    /// The number of the field `nodeName` in the spec, if objects belong to a node.
    pub fn node_field(self) -> Option<u64> {
        match self {
            Kind::Pods => Some(10),
            Kind::PodCertificateRequests => Some(6),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_found_by_their_urls() {
        for (index, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), index);
            let found = (!kind.is_referenced()).then_some((kind, ""));
            assert_eq!(Kind::of_path(kind.names().path), found);
            assert!(kind.names().path.ends_with(kind.names().resource));
        }
        let secrets = Kind::of_path("/api/v1/namespaces/a/secrets");
        assert_eq!(secrets, Some((Kind::Secrets, "a")));
        let leases = Kind::of_path("/apis/coordination.k8s.io/v1/namespaces/a/leases");
        assert_eq!(leases, Some((Kind::Leases, "a")));
        for path in [
            "/api/v1/namespaces/a/pods",
            "/api/v1/namespaces/a",
            "/api/v1/namespaces/a/secrets/",
            "/api/v1/namespaces/a/secrets/b",
            "/api/v1/namespaces/secrets",
            "/api/v2/namespaces/a/secrets",
            "/api/v1/namespaces/a/leases",
            "/apis/coordination.k8s.io/v1/namespaces/a/leases/b",
            "/apis/coordination.k8s.io/v1/namespaces/leases",
            "/apis/coordination.k8s.io/v1/namespaces//leases",
            "/apis/coordination.k8s.io/v1/namespaces/a/leasecandidates",
            "/apis/coordination.k8s.io/v1beta1/namespaces/a/leases",
        ] {
            assert_eq!(Kind::of_path(path), None, "{path}");
        }
    }
}
