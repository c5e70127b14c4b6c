//! What a request asks for, read from its method and URL as kube-apiserver reads it
//! (`RequestInfoFactory` in k8s.io/apiserver).

use std::borrow::Cow;

use http::{Method, Uri};
use percent_encoding::percent_decode_str;

/// The verb and the resource of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    /// Kubernetes' verb, such as `list`, or the HTTP method in lower case.
    pub verb: &'static str,
    /// The API group; empty for the core group and for other URLs.
    pub group: String,
    /// The resource; empty for URLs that are not of an API.
    pub resource: String,
    /// The subresource, or empty.
    pub subresource: String,
    /// The namespace, or empty.
    pub namespace: String,
    /// The object's name, or empty.
    pub name: String,
    /// Whether the answer lasts as long as the client wants: a watch, or a tunnel.
    pub long_running: bool,
}

/// Subresources of pods that are streams.
const STREAMS: [&str; 4] = ["attach", "exec", "portforward", "proxy"];

impl RequestInfo {
    /// Reads a request line.
    pub fn new(method: &Method, uri: &Uri) -> RequestInfo {
        let mut parts = uri.path().split('/').filter(|part| !part.is_empty());
        let group = match parts.next() {
            Some("api") => Some(String::new()),
            Some("apis") => parts.next().map(str::to_owned),
            _ => None,
        };
        let version = parts.next();
        let (Some(group), Some(_)) = (group, version) else {
            return RequestInfo::other(method);
        };
        let rest: Vec<&str> = parts.collect();
        let (watch_prefix, rest) = match rest.split_first() {
            Some((&"watch", rest)) => (true, rest),
            _ => (false, &rest[..]),
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, resource, ..] if !is_namespace_part(resource) => {
                (*namespace, &rest[2..])
            }
            ["namespaces", namespace, ..] => (*namespace, rest),
            _ => ("", rest),
        };
        let part = |index: usize| rest.get(index).copied().unwrap_or_default().to_owned();
        let mut info = RequestInfo {
            verb: "",
            group,
            resource: part(0),
            subresource: part(2),
            namespace: namespace.to_owned(),
            name: part(1),
            long_running: false,
        };
        let watches = watch_prefix || asks_for_watch(uri);
        info.verb = verb(method, info.name.is_empty(), watches);
        info.long_running = info.verb == "watch"
            || STREAMS.contains(&info.subresource.as_str())
            || follows_log(&info, uri);
        info
    }

    fn other(method: &Method) -> RequestInfo {
        RequestInfo {
            verb: http_verb(method),
            group: String::new(),
            resource: String::new(),
            subresource: String::new(),
            namespace: String::new(),
            name: String::new(),
            long_running: false,
        }
    }
}

/// Whether the part after a namespace's name is a subresource of the namespace.
fn is_namespace_part(part: &str) -> bool {
    matches!(part, "status" | "finalize")
}

fn verb(method: &Method, no_name: bool, watches: bool) -> &'static str {
    match *method {
        Method::GET | Method::HEAD if watches => "watch",
        Method::GET | Method::HEAD if no_name => "list",
        Method::GET | Method::HEAD => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if no_name => "deletecollection",
        Method::DELETE => "delete",
        _ => http_verb(method),
    }
}

fn http_verb(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::HEAD => "head",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::OPTIONS => "options",
        _ => "other",
    }
}

fn asks_for_watch(uri: &Uri) -> bool {
    query_flag(uri, "watch")
}

fn follows_log(info: &RequestInfo, uri: &Uri) -> bool {
    info.subresource == "log" && query_flag(uri, "follow")
}

/// Whether a query parameter is true as kube-apiserver reads it: its first value is anything but
/// `false` and `0`.
pub fn query_flag(uri: &Uri, name: &str) -> bool {
    let first = query_values(uri, name).next();
    first.is_some_and(|value| !value.eq_ignore_ascii_case("false") && value != "0")
}

/// The values of a query parameter. Clients may write any character as `%XX`, in names too.
pub fn query_values<'a>(uri: &'a Uri, name: &'a str) -> impl Iterator<Item = Cow<'a, str>> {
    uri.query().unwrap_or_default().split('&').filter_map(move |pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let matches = key == name || (key.contains('%') && decode(key) == name);
        matches.then(|| decode(value))
    })
}

fn decode(text: &str) -> Cow<'_, str> {
    if text.contains('+') {
        return Cow::Owned(decode(&text.replace('+', " ")).into_owned());
    }
    percent_decode_str(text).decode_utf8_lossy()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(line: &str) -> RequestInfo {
        let (method, uri) = line.split_once(' ').unwrap();
        RequestInfo::new(&method.parse().unwrap(), &uri.parse().unwrap())
    }

    #[test]
    fn request_lines_are_read_as_by_kube_apiserver() {
        for (line, expected) in [
            ("GET /api/v1/pods", "list  pods   "),
            ("GET /api/v1/pods?watch=true", "watch  pods   "),
            ("GET /api/v1/watch/pods", "watch  pods   "),
            ("GET /api/v1/pods?watch=0", "list  pods   "),
            ("GET /api/v1/namespaces/a/pods/b", "get  pods a b "),
            ("GET /api/v1/namespaces/a", "get  namespaces a a "),
            ("PUT /api/v1/namespaces/a/finalize", "update  namespaces a a finalize"),
            ("GET /api/v1/namespaces/a/pods/b/exec?command=c", "get  pods a b exec"),
            (
                "PUT /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n",
                "update coordination.k8s.io leases kube-node-lease n ",
            ),
            (
                "DELETE /apis/apps/v1/namespaces/a/deployments",
                "deletecollection apps deployments a  ",
            ),
            ("GET /healthz", "get     "),
            ("GET /apis/apps/v1", "list apps    "),
        ] {
            let i = info(line);
            let text =
                [i.verb, &i.group, &i.resource, &i.namespace, &i.name, &i.subresource].join(" ");
            assert_eq!(text, expected, "{line}");
        }
        for line in [
            "GET /api/v1/pods?w%61tch=%74rue",
            "GET /api/v1/pods?watch",
            "GET /api/v1/pods?watch=x",
        ] {
            assert_eq!(info(line).verb, "watch", "{line}");
        }
        for line in ["GET /api/v1/pods?watch=False&watch=true", "GET /api/v1/pods?%77=true"] {
            assert_eq!(info(line).verb, "list", "{line}");
        }
        assert!(info("GET /api/v1/namespaces/a/pods/b/log?follow=true").long_running);
        assert!(!info("GET /api/v1/namespaces/a/pods/b/log").long_running);
    }
}
