//! What a LIST looks like. The sizes of answers are learned by it.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};

use http::header::{ACCEPT, ACCEPT_ENCODING};
use http::{HeaderMap, Method, Uri};

use super::user_agent;
use crate::request_info::{RequestInfo, query_flag, query_values};

/// The pattern of a LIST as hashes, so that its memory does not depend on what a client writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// All of the pattern, with the namespace and the User-Agent, of which there can be any number.
    pub exact: u64,
    /// The pattern without them. Its number is bounded by the resources of the cluster.
    pub general: u64,
    /// Whether the selector chooses one object, or the pods of one node.
    pub few: bool,
}

/// Bytes of a User-Agent's product that belong to the pattern.
const MAX_PRODUCT: usize = 64;

impl Shape {
    /// Returns the pattern of a LIST, or of a WatchList, whose initial events are a LIST. `None` for
    /// all other requests.
    pub fn of(
        info: &RequestInfo,
        method: &Method,
        uri: &Uri,
        fields: &HeaderMap,
        hasher: &RandomState,
    ) -> Option<Shape> {
        let lists = match info.verb {
            "list" => *method == Method::GET && !info.resource.is_empty(),
            "watch" => query_flag(uri, "sendInitialEvents"),
            _ => false,
        };
        if !lists {
            return None;
        }
        let field_selector = FieldSelector::of(uri);
        let mut general = hasher.build_hasher();
        (&info.group, version(uri), &info.resource, info.verb).hash(&mut general);
        namespace_class(&info.namespace).hash(&mut general);
        field_selector.hash(&mut general);
        LabelSelector::of(uri).hash(&mut general);
        (limit_class(uri), version_mode(uri), encoding(fields)).hash(&mut general);
        let mut exact = general.clone();
        let product = user_agent::product(fields);
        (&info.namespace, &product[..product.len().min(MAX_PRODUCT)]).hash(&mut exact);
        Some(Shape {
            exact: exact.finish(),
            general: general.finish(),
            few: matches!(field_selector, FieldSelector::Name | FieldSelector::Node),
        })
    }
}

/// The version of the API: `v1` in `/api/v1/pods` and in `/apis/apps/v1/deployments`.
fn version(uri: &Uri) -> &str {
    let mut parts = uri.path().split('/').filter(|part| !part.is_empty());
    let version = if parts.next() == Some("api") { parts.next() } else { parts.nth(1) };
    version.unwrap_or_default()
}

/// Namespaces that the system fills are not like those of users.
fn namespace_class(namespace: &str) -> u8 {
    match namespace {
        "" => 0,
        "default" => 1,
        "kube-node-lease" => 2,
        _ if namespace.starts_with("kube-") => 3,
        _ => 4,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum FieldSelector {
    None,
    /// One object.
    Name,
    /// The objects of one node.
    Node,
    Other,
}

impl FieldSelector {
    fn of(uri: &Uri) -> FieldSelector {
        let mut values = query_values(uri, "fieldSelector");
        let (first, second) = (values.next(), values.next());
        let selects = |part: &str, field: &str| {
            let value = part.strip_prefix(field).and_then(|rest| rest.strip_prefix('='));
            value.is_some_and(|value| !value.trim_start_matches('=').is_empty())
        };
        match (first, second) {
            (None, _) => FieldSelector::None,
            (Some(first), None) if first.is_empty() => FieldSelector::None,
            (Some(first), None) if first.split(',').any(|part| selects(part, "metadata.name")) => {
                FieldSelector::Name
            }
            (Some(first), None) if first.split(',').any(|part| selects(part, "spec.nodeName")) => {
                FieldSelector::Node
            }
            _ => FieldSelector::Other,
        }
    }
}

#[derive(PartialEq, Eq, Hash)]
enum LabelSelector {
    None,
    /// Up to three requirements; more are like three.
    Equal(usize),
    Sets,
}

impl LabelSelector {
    fn of(uri: &Uri) -> LabelSelector {
        match query_values(uri, "labelSelector").next() {
            None => LabelSelector::None,
            Some(text) if text.is_empty() => LabelSelector::None,
            Some(text) if text.contains('(') => LabelSelector::Sets,
            Some(text) => LabelSelector::Equal(text.split(',').count().min(3)),
        }
    }
}

/// The number of objects of a page in powers of two; 0 without a limit.
fn limit_class(uri: &Uri) -> u32 {
    let limit = query_values(uri, "limit").next().and_then(|text| text.parse::<u64>().ok());
    limit.map_or(0, |limit| u64::BITS - limit.leading_zeros())
}

/// From where the API server takes the objects.
fn version_mode(uri: &Uri) -> u8 {
    if query_values(uri, "continue").next().is_some_and(|text| !text.is_empty()) {
        return 0;
    }
    let exact = query_values(uri, "resourceVersionMatch").next().is_some_and(|m| m == "Exact");
    match query_values(uri, "resourceVersion").next().as_deref() {
        None | Some("") => 1,
        Some("0") => 2,
        Some(_) if exact => 3,
        Some(_) => 4,
    }
}

/// The encoding that a client prefers.
fn encoding(fields: &HeaderMap) -> (u8, u8, bool) {
    let text = |name| fields.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let accept = text(ACCEPT).split(',').next().unwrap_or_default();
    let media = match accept.split(';').next().unwrap_or_default().trim() {
        "application/vnd.kubernetes.protobuf" => 1,
        "application/cbor" => 2,
        "application/yaml" => 3,
        _ => 0,
    };
    let kind = if accept.contains("as=Table") {
        1
    } else {
        2 * u8::from(accept.contains("as=PartialObjectMetadata"))
    };
    (media, kind, text(ACCEPT_ENCODING).contains("gzip"))
}

#[cfg(test)]
mod tests {
    use http::header::USER_AGENT;

    use super::*;

    fn shape(hasher: &RandomState, url: &str, agent: &str, accept: &str) -> Option<Shape> {
        let uri: Uri = url.parse().unwrap();
        let mut fields = HeaderMap::new();
        fields.insert(USER_AGENT, agent.parse().unwrap());
        fields.insert(ACCEPT, accept.parse().unwrap());
        let info = RequestInfo::new(&Method::GET, &uri);
        Shape::of(&info, &Method::GET, &uri, &fields, hasher)
    }

    #[test]
    fn only_lists_have_a_shape() {
        let hasher = RandomState::new();
        let lists = |url: &str| shape(&hasher, url, "a", "b").is_some();
        for url in [
            "/api/v1/pods",
            "/apis/apps/v1/namespaces/a/deployments?limit=5",
            "/api/v1/pods?watch=1&sendInitialEvents=true",
            "/api/v1/pods?watch=1&send%49nitialEvents",
        ] {
            assert!(lists(url), "{url}");
        }
        for url in [
            "/api/v1/namespaces/a/pods/b",
            "/api/v1/pods?watch=1",
            "/api/v1/pods?watch=1&sendInitialEvents=false",
            "/api/v1",
            "/apis/apps/v1",
            "/version",
        ] {
            assert!(!lists(url), "{url}");
        }
    }

    #[test]
    fn patterns_are_general_without_what_clients_choose_freely() {
        let hasher = RandomState::new();
        let of = |url: &str, agent: &str, accept: &str| shape(&hasher, url, agent, accept).unwrap();
        let url = "/api/v1/namespaces/a/pods?labelSelector=a%3Db";
        let first = of(url, "x/1", "application/json");
        assert_eq!(first, of(&url.replace("%3Db", "%3Dc"), "x/2 (y)", "application/json"));
        let other = of(&url.replace("namespaces/a", "namespaces/b"), "y", "application/json");
        assert!(first.general == other.general && first.exact != other.exact);
        for (different, accept) in [
            ("/api/v1/pods?labelSelector=a%3Db", "application/json"),
            ("/api/v2/namespaces/a/pods?labelSelector=a%3Db", "application/json"),
            ("/api/v1/namespaces/a/pods", "application/json"),
            ("/api/v1/namespaces/a/pods?labelSelector=a+in+(b)", "application/json"),
            ("/api/v1/namespaces/a/pods?labelSelector=a%3Db&limit=500", "application/json"),
            ("/api/v1/namespaces/a/pods?labelSelector=a%3Db&resourceVersion=0", "application/json"),
            (url, "application/vnd.kubernetes.protobuf,application/json"),
            (url, "application/json;as=Table;v=v1;g=meta.k8s.io"),
        ] {
            assert_ne!(first.general, of(different, "x", accept).general, "{different} {accept}");
        }
    }

    #[test]
    fn selectors_of_one_object_or_node_are_few() {
        let hasher = RandomState::new();
        let few = |selector: &str| {
            let url = format!("/api/v1/pods?fieldSelector={selector}");
            shape(&hasher, &url, "a", "b").unwrap().few
        };
        assert!(few("spec.nodeName%3Dn1") && few("metadata.name==a") && few("a=b,spec.nodeName=n"));
        assert!(!few("spec.nodeName%3D") && !few("spec.nodeName!=n") && !few("status.phase=x"));
        assert!(!few("") && !few("status.phase=x&fieldSelector=metadata.name=a"));
    }
}
