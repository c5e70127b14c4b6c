//! Recognizes the watches and lists that are served, by the head of a request.
//!
//! A request with anything that is not known is forwarded: kube-apiserver may do something else with it.

use std::time::Duration;

use http::header::{ACCEPT, ACCEPT_ENCODING, HeaderName, HeaderValue, USER_AGENT};
use http::{HeaderMap, Method, Request};
use percent_encoding::percent_decode_str;

use super::cache::Start;
use super::kind::Kind;
use super::object::Traits;
use super::reason::Reason;
use super::selector::{Selector, is_name};

/// What clients accept that prefer protobuf: kubelets, others, and components that configure only a content type,
/// such as kube-proxy and kube-controller-manager. Tables and metadata have parameters.
const ACCEPTED: [&[u8]; 3] = [
    b"application/vnd.kubernetes.protobuf,application/json",
    b"application/vnd.kubernetes.protobuf",
    b"application/vnd.kubernetes.protobuf, */*",
];
/// The fields that a request may have. No answer is compressed: the client need not have it so.
const FIELDS: [HeaderName; 3] = [ACCEPT, ACCEPT_ENCODING, USER_AGENT];
/// Time of a watch without `timeoutSeconds`: kube-apiserver's `--min-request-timeout`, which it prolongs
/// by a random share.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1800);

/// A request for a resource that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// The resource.
    pub kind: Kind,
    /// The objects.
    pub selector: Selector,
    /// Whether they are listed or watched.
    pub verb: Verb,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// It lists, at this version or later.
    List(u64),
    /// It watches.
    Watch {
        /// From where on.
        start: Start,
        /// Whether bookmarks are wanted.
        bookmarks: bool,
        /// For how long, if the client says so.
        timeout: Option<Duration>,
    },
    /// It watches, for this time, from the state of now on. Bookmarks are wanted.
    WatchList(Option<Duration>),
}

impl Verb {
    /// The name in Kubernetes.
    pub fn name(self) -> &'static str {
        match self {
            Verb::List(_) => "list",
            Verb::Watch { .. } | Verb::WatchList(_) => "watch",
        }
    }
}

/// Reads the head of a client's request. Returns `None` if it is not a GET of objects of a resource that
/// is served; the error has the resource.
pub fn recognize(request: &Request<()>) -> Option<Result<Read, (Kind, Reason)>> {
    let (kind, namespace) = Kind::of_path(request.uri().path())?;
    if request.method() != Method::GET {
        return None;
    }
    let read = || {
        if !is_plain(request.headers()) {
            return Err(Reason::Form);
        }
        let query = Query::parse(request.uri().query().unwrap_or_default()).ok_or(Reason::Form)?;
        let selector = query.selector(kind, namespace).ok_or(Reason::Form)?;
        Ok(Read { kind, selector, verb: query.verb()? })
    };
    Some(read().map_err(|reason| (kind, reason)))
}

fn is_plain(fields: &HeaderMap) -> bool {
    fields.keys().all(|field| FIELDS.contains(field))
        // No field occurs twice.
        && fields.len() == fields.keys_len()
        && fields.get(ACCEPT).map(HeaderValue::as_bytes).is_some_and(|it| ACCEPTED.contains(&it))
}

/// The parameters of a request.
#[derive(Default)]
struct Query {
    watch: bool,
    bookmarks: Option<bool>,
    initial_events: Option<bool>,
    fields: String,
    labels: String,
    /// `None` if absent or empty, which is the same.
    version: Option<u64>,
    not_older_than: bool,
    limit: bool,
    timeout: Option<u32>,
    /// Whether there is a deadline for the request. kube-apiserver ignores that of a watch.
    deadline: bool,
}

impl Query {
    /// Reads the parameters; `None` if there is one that is not known, twice, or not in the form in which
    /// client-go writes it.
    fn parse(text: &str) -> Option<Query> {
        let mut query = Query::default();
        let mut seen = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=')?;
            if seen.contains(&name) || value.contains('+') {
                return None;
            }
            seen.push(name);
            query.set(name, &percent_decode_str(value).decode_utf8().ok()?)?;
        }
        Some(query)
    }

    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "watch" => self.watch = flag(value)?,
            "allowWatchBookmarks" => self.bookmarks = Some(flag(value)?),
            "sendInitialEvents" => self.initial_events = Some(flag(value)?),
            "fieldSelector" => value.clone_into(&mut self.fields),
            "labelSelector" => value.clone_into(&mut self.labels),
            "resourceVersion" if value.is_empty() => {}
            "resourceVersion" => self.version = Some(number(value)?),
            "resourceVersionMatch" => {
                self.not_older_than = (value == "NotOlderThan").then_some(true)?
            }
            "limit" => self.limit = number::<u32>(value)? > 0,
            "timeoutSeconds" => self.timeout = Some(number(value)?),
            // Informers of client-go send both.
            "timeout" => self.deadline = true,
            _ => return None,
        }
        Some(())
    }

    fn selector(&self, kind: Kind, namespace: &str) -> Option<Selector> {
        let name = |prefix| self.fields.strip_prefix(prefix).filter(|name| is_name(name));
        match kind {
            Kind::Pods | Kind::PodCertificateRequests if self.labels.is_empty() => {
                Some(Selector::Node(name("spec.nodeName=")?.as_bytes().into()))
            }
            Kind::Nodes if self.labels.is_empty() => {
                Some(Selector::Name(name("metadata.name=")?.as_bytes().into()))
            }
            Kind::ConfigMaps | Kind::Secrets if self.labels.is_empty() && is_name(namespace) => {
                let name = name("metadata.name=")?.as_bytes().into();
                Some(Selector::Object { namespace: namespace.as_bytes().into(), name })
            }
            Kind::Leases if !namespace.is_empty() => {
                let is_whole = self.fields.is_empty() && self.labels.is_empty();
                let selector = Selector::Namespace(namespace.as_bytes().into());
                (is_whole && is_name(namespace)).then_some(selector)
            }
            Kind::Pods
            | Kind::PodCertificateRequests
            | Kind::Nodes
            | Kind::ConfigMaps
            | Kind::Secrets => None,
            _ => Some(Selector::Without(self.excluded(kind)?)),
        }
    }

    fn excluded(&self, kind: Kind) -> Option<Traits> {
        let mut excluded = Traits::default();
        match self.fields.as_str() {
            "" => {}
            "spec.clusterIP!=None" if kind == Kind::Services => excluded.no_cluster_ip = true,
            _ => return None,
        }
        let is_labelled = matches!(kind, Kind::Services | Kind::EndpointSlices);
        for term in self.labels.split(',').filter(|_| !self.labels.is_empty()) {
            match term {
                "!service.kubernetes.io/headless" if is_labelled => excluded.headless = true,
                "!service.kubernetes.io/service-proxy-name" if is_labelled => {
                    excluded.proxy_name = true;
                }
                _ => return None,
            }
        }
        Some(excluded)
    }

    fn verb(&self) -> Result<Verb, Reason> {
        match self.watch {
            true => self.watch(),
            false => self.list(),
        }
    }

    fn list(&self) -> Result<Verb, Reason> {
        let version = self.version.ok_or(Reason::Consistent)?;
        // With a version, `limit` demands exactly this version. For version 0 it is ignored.
        let is_exact = self.limit && version > 0;
        let is_other = self.bookmarks.or(self.initial_events).is_some() || self.timeout.is_some();
        if is_exact || is_other || self.deadline {
            return Err(Reason::Form);
        }
        Ok(Verb::List(version))
    }

    fn watch(&self) -> Result<Verb, Reason> {
        // kube-apiserver demands that they come together.
        if self.initial_events.is_some() != self.not_older_than || self.limit {
            return Err(Reason::Form);
        }
        let timeout = self.timeout.filter(|seconds| *seconds > 0);
        let timeout = timeout.map(|seconds| Duration::from_secs(seconds.into()));
        let bookmarks = self.bookmarks.unwrap_or(false);
        let Some(version) = self.version else {
            let is_marked = bookmarks && self.initial_events != Some(false);
            return is_marked.then_some(Verb::WatchList(timeout)).ok_or(Reason::Consistent);
        };
        let start = match (version, self.initial_events) {
            (_, Some(true)) | (0, None) => Start::State { at_least: version, marked: bookmarks },
            (0, Some(false)) => Start::Now,
            (version, _) => Start::After(version),
        };
        Ok(Verb::Watch { start, bookmarks, timeout })
    }
}

fn flag(value: &str) -> Option<bool> {
    match value {
        "true" | "1" => Some(true),
        "false" | "0" => Some(false),
        _ => None,
    }
}

/// Reads a number in its shortest form.
fn number<T: std::str::FromStr>(value: &str) -> Option<T> {
    let is_plain = value.bytes().all(|byte| byte.is_ascii_digit());
    let is_shortest = value == "0" || !value.starts_with('0');
    value.parse().ok().filter(|_| is_plain && is_shortest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PODS: &str = "/api/v1/pods?fieldSelector=spec.nodeName%3Dn";

    fn request(url: &str, change: Option<(&str, &str)>) -> Request<()> {
        let mut request = Request::get(url).body(()).unwrap();
        for (name, value) in [
            ("accept", "application/vnd.kubernetes.protobuf,application/json"),
            ("accept-encoding", "gzip"),
            ("user-agent", "kubelet/v1.37.1"),
        ]
        .into_iter()
        .chain(change)
        {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        request
    }

    fn verb(query: &str) -> Result<Verb, Reason> {
        let recognized = recognize(&request(&format!("{PODS}{query}"), None)).unwrap();
        recognized.map(|read| read.verb).map_err(|(_, reason)| reason)
    }

    fn selector(url: &str) -> Option<Selector> {
        let read = recognize(&request(&format!("{url}&resourceVersion=0"), None)).unwrap();
        read.ok().map(|read| read.selector)
    }

    #[test]
    fn lists_have_a_version() {
        assert_eq!(verb("&resourceVersion=0"), Ok(Verb::List(0)));
        assert_eq!(verb("&limit=500&resourceVersion=0"), Ok(Verb::List(0)));
        assert_eq!(verb("&resourceVersion=7"), Ok(Verb::List(7)));
        let match_ = "&resourceVersionMatch=NotOlderThan";
        assert_eq!(verb(&format!("&resourceVersion=7{match_}")), Ok(Verb::List(7)));
        assert_eq!(verb(""), Err(Reason::Consistent));
        assert_eq!(verb("&resourceVersion="), Err(Reason::Consistent));
        for query in [
            "&limit=500&resourceVersion=7",
            "&resourceVersion=7&resourceVersionMatch=Exact",
            "&resourceVersion=07",
            "&resourceVersion=%2B7",
            "&resourceVersion=+7",
            "&resourceVersion=7&resourceVersion=8",
            "&resourceVersion=7&continue=x",
            "&resourceVersion=7&timeout=10s",
            "&resourceVersion=7&allowWatchBookmarks=true",
            "&resourceVersion=7&pretty=true",
            "&resourceVersion=7&r%65sourceVersion=8",
            "&resourceVersion=7&watch=x",
            "&resourceVersion=7&watch",
        ] {
            assert_eq!(verb(query), Err(Reason::Form), "{query}");
        }
    }

    #[test]
    fn watches_begin_where_kube_apiserver_would_begin() {
        let initial = |flag| format!("&sendInitialEvents={flag}&resourceVersionMatch=NotOlderThan");
        let watch = |start, bookmarks| Ok(Verb::Watch { start, bookmarks, timeout: None });
        let state = |at_least, marked| Start::State { at_least, marked };
        for (query, expected) in [
            ("&resourceVersion=7".into(), watch(Start::After(7), false)),
            ("&allowWatchBookmarks=true&resourceVersion=7".into(), watch(Start::After(7), true)),
            ("&resourceVersion=0".into(), watch(state(0, false), false)),
            ("&allowWatchBookmarks=1&resourceVersion=0".into(), watch(state(0, true), true)),
            (format!("&resourceVersion=0{}", initial(true)), watch(state(0, false), false)),
            (format!("&resourceVersion=7{}", initial(true)), watch(state(7, false), false)),
            (format!("&resourceVersion=7{}", initial(false)), watch(Start::After(7), false)),
            (format!("&resourceVersion=0{}", initial(false)), watch(Start::Now, false)),
            (format!("&allowWatchBookmarks=true{}", initial(true)), Ok(Verb::WatchList(None))),
            (
                "&allowWatchBookmarks=true&resourceVersion=&timeout=9s&timeoutSeconds=9".into(),
                Ok(Verb::WatchList(Some(Duration::from_secs(9)))),
            ),
            (format!("&allowWatchBookmarks=true{}", initial(false)), Err(Reason::Consistent)),
            (initial(true), Err(Reason::Consistent)),
            (initial(false), Err(Reason::Consistent)),
            (String::new(), Err(Reason::Consistent)),
            ("&resourceVersion=7&sendInitialEvents=true".into(), Err(Reason::Form)),
            ("&resourceVersion=7&resourceVersionMatch=NotOlderThan".into(), Err(Reason::Form)),
            ("&resourceVersion=7&limit=5".into(), Err(Reason::Form)),
            ("&resourceVersion=7&timeoutSeconds=-1".into(), Err(Reason::Form)),
        ] {
            assert_eq!(verb(&format!("&watch=true{query}")), expected, "{query}");
        }
        let Ok(Verb::Watch { timeout, .. }) = verb("&watch=1&resourceVersion=1&timeoutSeconds=431")
        else {
            panic!("not a watch")
        };
        assert_eq!(timeout, Some(Duration::from_secs(431)));
    }

    #[test]
    fn selectors_are_those_of_kubelet_and_kube_proxy() {
        let node = Some(Selector::Node((*b"n-1.a").into()));
        assert_eq!(selector("/api/v1/pods?fieldSelector=spec.nodeName%3Dn-1.a"), node);
        let requests = "/apis/certificates.k8s.io/v1/podcertificaterequests";
        assert_eq!(selector(&format!("{requests}?fieldSelector=spec.nodeName%3Dn-1.a")), node);
        let name = Some(Selector::Name((*b"n").into()));
        assert_eq!(selector("/api/v1/nodes?fieldSelector=metadata.name%3Dn"), name);
        for resource in ["configmaps", "secrets"] {
            let object = Selector::Object { namespace: (*b"a").into(), name: (*b"n-1.b").into() };
            let url =
                format!("/api/v1/namespaces/a/{resource}?fieldSelector=metadata.name%3Dn-1.b");
            assert_eq!(selector(&url), Some(object));
        }
        let all = Some(Selector::Without(Traits::default()));
        for url in ["/apis/storage.k8s.io/v1/csidrivers", "/apis/node.k8s.io/v1/runtimeclasses"] {
            assert_eq!(selector(&format!("{url}?")), all);
        }
        let leases = "/apis/coordination.k8s.io/v1/leases?";
        assert_eq!(selector(leases), all);
        let namespace = Some(Selector::Namespace((*b"kube-system").into()));
        let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases?";
        assert_eq!(selector(leases), namespace);
        let traits = Traits { no_cluster_ip: true, proxy_name: true, headless: false };
        let labels = "labelSelector=%21service.kubernetes.io%2Fservice-proxy-name";
        let services = format!("/api/v1/services?fieldSelector=spec.clusterIP%21%3DNone&{labels}");
        assert_eq!(selector(&services), Some(Selector::Without(traits)));
        for url in [
            "/api/v1/pods?",
            "/api/v1/pods?fieldSelector=spec.nodeName%3D",
            "/api/v1/pods?fieldSelector=spec.nodeName%3D%3Dn",
            "/api/v1/pods?fieldSelector=spec.nodeName%21%3Dn",
            "/api/v1/pods?fieldSelector=spec.nodeName%3Dn,status.phase%3DRunning",
            "/api/v1/pods?fieldSelector=spec.nodeName%3DN",
            "/api/v1/pods?fieldSelector=spec.nodeName%3Dn&labelSelector=a",
            "/api/v1/nodes?fieldSelector=spec.nodeName%3Dn",
            "/api/v1/services?fieldSelector=metadata.name%3Dn",
            "/api/v1/services?labelSelector=a",
            "/api/v1/nodes?fieldSelector=metadata.name%3D..",
            "/api/v1/namespaces/a/secrets?",
            "/api/v1/namespaces/a/secrets?fieldSelector=metadata.name%3D",
            "/api/v1/namespaces/a/secrets?fieldSelector=metadata.name%3D.",
            "/api/v1/namespaces/a/secrets?fieldSelector=metadata.name%3D..",
            "/api/v1/namespaces/a/secrets?fieldSelector=metadata.name%3Db%2Fc",
            "/api/v1/namespaces/a/secrets?fieldSelector=metadata.name%3D%3Db",
            "/api/v1/namespaces/a/secrets?fieldSelector=metadata.name%21%3Db",
            "/api/v1/namespaces/a/secrets?fieldSelector=metadata.name%3Db,metadata.namespace%3Da",
            "/api/v1/namespaces/a/secrets?fieldSelector=metadata.name%3Db,type%3DOpaque",
            "/api/v1/namespaces/a/secrets?fieldSelector=metadata.namespace%3Da",
            "/api/v1/namespaces/a/secrets?fieldSelector=metadata.name%3Db&labelSelector=c",
            "/api/v1/namespaces/A/secrets?fieldSelector=metadata.name%3Db",
            "/api/v1/namespaces/%61/secrets?fieldSelector=metadata.name%3Db",
            "/api/v1/namespaces//secrets?fieldSelector=metadata.name%3Db",
            "/api/v1/namespaces/../secrets?fieldSelector=metadata.name%3Db",
            "/apis/storage.k8s.io/v1/csidrivers?labelSelector=%21service.kubernetes.io%2Fheadless",
            "/apis/coordination.k8s.io/v1/leases?fieldSelector=metadata.name%3Da",
            "/apis/coordination.k8s.io/v1/leases?labelSelector=a",
            "/apis/coordination.k8s.io/v1/namespaces/a/leases?fieldSelector=metadata.name%3Da",
            "/apis/coordination.k8s.io/v1/namespaces/a/leases?labelSelector=a",
            "/apis/coordination.k8s.io/v1/namespaces/A/leases?",
            "/apis/coordination.k8s.io/v1/namespaces/../leases?",
        ] {
            assert_eq!(selector(url), None, "{url}");
        }
    }

    #[test]
    fn kubelets_read_the_objects_of_their_pods() {
        let object = Selector::Object { namespace: (*b"a").into(), name: (*b"b").into() };
        let timeout = Some(Duration::from_secs(1872));
        let one = "fieldSelector=metadata.name%3Db";
        let initial = "resourceVersionMatch=NotOlderThan&sendInitialEvents=true";
        let time = "timeout=31m12s&timeoutSeconds=1872&watch=true";
        let start = Start::After(7);
        for (query, verb) in [
            (format!("{one}&limit=500&resourceVersion=0"), Verb::List(0)),
            (format!("allowWatchBookmarks=true&{one}&{initial}&{time}"), Verb::WatchList(timeout)),
            (
                format!("allowWatchBookmarks=true&{one}&resourceVersion=7&{time}"),
                Verb::Watch { start, bookmarks: true, timeout },
            ),
        ] {
            for kind in Kind::REFERENCED {
                let url = format!("/api/v1/namespaces/a/{}?{query}", kind.names().resource);
                let expected = Read { kind, selector: object.clone(), verb };
                assert_eq!(recognize(&request(&url, None)), Some(Ok(expected)), "{url}");
            }
        }
    }

    #[test]
    fn every_form_of_protobuf_is_recognized() {
        let url = format!("{PODS}&resourceVersion=0");
        for accept in ACCEPTED {
            let accept = std::str::from_utf8(accept).unwrap();
            let recognized = recognize(&request(&url, Some(("accept", accept))));
            assert!(matches!(recognized, Some(Ok(_))), "{accept}: {recognized:?}");
        }
    }

    #[test]
    fn other_requests_are_not_recognized() {
        for url in [
            "/api/v1/namespaces/a/pods?resourceVersion=0",
            "/api/v1/pods/?resourceVersion=0",
            "/api/v1/watch/pods",
            "/apis/storage.k8s.io/v1beta1/csidrivers",
            "/api/v1/configmaps",
            "/api/v1/secrets?fieldSelector=metadata.name%3Da",
            "/api/v1/namespaces/a/secrets/b?resourceVersion=0",
            "/api/v1/namespaces/a/endpoints?resourceVersion=0",
            "/api/v1/watch/namespaces/a/secrets/b",
        ] {
            assert_eq!(recognize(&request(url, None)), None, "{url}");
        }
        let mut post = request(PODS, None);
        *post.method_mut() = Method::POST;
        assert_eq!(recognize(&post), None);
        for change in [
            ("accept", "application/json"),
            ("accept", "*/*"),
            ("accept", "*/*, application/vnd.kubernetes.protobuf"),
            ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io"),
            ("accept", "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1"),
            ("authorization", "Bearer a"),
            ("impersonate-user", "a"),
            ("x-remote-user", "a"),
            ("upgrade", "websocket"),
        ] {
            let url = format!("{PODS}&resourceVersion=0");
            let recognized = recognize(&request(&url, Some(change)));
            assert_eq!(recognized, Some(Err((Kind::Pods, Reason::Form))), "{change:?}");
        }
    }
}
