//! What is watched.

/// A resource that kubelet watches (`pkg/kubelet/kubelet.go` and `config/apiserver.go`), or that nodes
/// without watches of their own read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Pods.
    Pods,
    /// Nodes.
    Nodes,
    /// Services.
    Services,
    /// CSIDrivers.
    CsiDrivers,
    /// RuntimeClasses.
    RuntimeClasses,
    /// PodCertificateRequests.
    PodCertificateRequests,
    /// Leases of nodes, which are read once.
    Leases,
    /// CSINodes, which are read once.
    CsiNodes,
    /// ConfigMaps, each of which has a watch of its own.
    ConfigMaps,
    /// Secrets, each of which has a watch of its own.
    Secrets,
}

/// What is read once: the watch ends when the state of now is complete.
pub const READ_ONCE: [Resource; 2] = [Resource::Leases, Resource::CsiNodes];

/// All resources that a kubelet watches, without the ConfigMaps and Secrets of its pods.
pub const ALL: [Resource; 6] = [
    Resource::Pods,
    Resource::Nodes,
    Resource::Services,
    Resource::CsiDrivers,
    Resource::RuntimeClasses,
    Resource::PodCertificateRequests,
];

impl Resource {
    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Resource::Pods => "pods",
            Resource::Nodes => "nodes",
            Resource::Services => "services",
            Resource::CsiDrivers => "csidrivers",
            Resource::RuntimeClasses => "runtimeclasses",
            Resource::PodCertificateRequests => "podcertificaterequests",
            Resource::Leases => "leases",
            Resource::CsiNodes => "csinodes",
            Resource::ConfigMaps => "configmaps",
            Resource::Secrets => "secrets",
        }
    }

    /// Path and field selector of the watch of a node, or of the watch that all nodes share.
    fn selection(self, node: Option<&str>) -> (&'static str, String) {
        let of_node = |field: &str| node.map(|node| format!("&fieldSelector={field}%3D{node}"));
        match self {
            Resource::Pods => {
                let shared = || "&fieldSelector=spec.nodeName%21%3D".to_owned();
                ("/api/v1/pods", of_node("spec.nodeName").unwrap_or_else(shared))
            }
            Resource::Nodes => ("/api/v1/nodes", of_node("metadata.name").unwrap_or_default()),
            Resource::Services => {
                ("/api/v1/services", "&fieldSelector=spec.clusterIP%21%3DNone".to_owned())
            }
            Resource::CsiDrivers => ("/apis/storage.k8s.io/v1/csidrivers", String::new()),
            Resource::RuntimeClasses => ("/apis/node.k8s.io/v1/runtimeclasses", String::new()),
            Resource::PodCertificateRequests => (
                "/apis/certificates.k8s.io/v1/podcertificaterequests",
                of_node("spec.nodeName").unwrap_or_default(),
            ),
            Resource::Leases => {
                ("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", String::new())
            }
            Resource::CsiNodes => ("/apis/storage.k8s.io/v1/csinodes", String::new()),
            Resource::ConfigMaps => ("/api/v1/configmaps", String::new()),
            Resource::Secrets => ("/api/v1/secrets", String::new()),
        }
    }

    /// Path and query of a watch as client-go's reflector makes it: from a version, or from the
    /// beginning with the state of now.
    pub fn watch_path(self, node: Option<&str>, version: Option<u64>, seconds: u32) -> String {
        let (path, selector) = self.selection(node);
        format!("{path}?{}", query(&selector, version, seconds))
    }

    /// Path and query of the watch of one object in a namespace.
    pub fn object_path(
        self,
        namespace: &str,
        name: &str,
        version: Option<u64>,
        seconds: u32,
    ) -> String {
        let selector = format!("&fieldSelector=metadata.name%3D{name}");
        let query = query(&selector, version, seconds);
        format!("/api/v1/namespaces/{namespace}/{}?{query}", self.name())
    }
}

fn query(selector: &str, version: Option<u64>, seconds: u32) -> String {
    let start = match version {
        Some(version) => format!("resourceVersion={version}"),
        None => "resourceVersionMatch=NotOlderThan&sendInitialEvents=true".to_owned(),
    };
    let (minutes, rest) = (seconds / 60, seconds % 60);
    // client-go writes an hour as 1h0m0s.
    let (hours, minutes) = (minutes / 60, minutes % 60);
    let hours = if hours > 0 { format!("{hours}h") } else { String::new() };
    format!(
        "allowWatchBookmarks=true{selector}&{start}&timeout={hours}{minutes}m{rest}s\
         &timeoutSeconds={seconds}&watch=true"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_select_as_those_of_kubelet() {
        assert_eq!(
            Resource::Pods.watch_path(Some("node-1"), Some(7), 301),
            "/api/v1/pods?allowWatchBookmarks=true&fieldSelector=spec.nodeName%3Dnode-1\
             &resourceVersion=7&timeout=5m1s&timeoutSeconds=301&watch=true"
        );
        assert_eq!(
            Resource::Nodes.watch_path(None, None, 600),
            "/api/v1/nodes?allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan\
             &sendInitialEvents=true&timeout=10m0s&timeoutSeconds=600&watch=true"
        );
        assert_eq!(
            Resource::Secrets.object_path("default", "key", None, 3600),
            "/api/v1/namespaces/default/secrets?allowWatchBookmarks=true\
             &fieldSelector=metadata.name%3Dkey&resourceVersionMatch=NotOlderThan\
             &sendInitialEvents=true&timeout=1h0m0s&timeoutSeconds=3600&watch=true"
        );
    }
}
