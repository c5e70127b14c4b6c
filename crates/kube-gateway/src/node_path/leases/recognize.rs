//! Recognizes renewals by the head of a request.
//!
//! A request with anything that is not known to be harmless is no renewal: kube-apiserver may do
//! something else with it.

use http::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, USER_AGENT,
};
use http::request::Parts;
use http::{HeaderMap, Method};

use super::Reason;

/// The URL of the Lease of a node, without its name.
const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/";
const PROTOBUF: &[u8] = b"application/vnd.kubernetes.protobuf";
/// What client-go accepts if it prefers protobuf.
const PROTOBUF_OR_JSON: &[u8] = b"application/vnd.kubernetes.protobuf,application/json";
/// The fields that a renewal may have. `Accept-Encoding` means nothing for an answer of this size,
/// which kube-apiserver does not compress.
const FIELDS: [HeaderName; 5] = [ACCEPT, ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, USER_AGENT];
/// Bytes of a Lease. That of a kubelet has less than one KiB.
pub const MAX_BODY: usize = 16 << 10;
/// Characters of the longest name of an object.
const MAX_NAME: usize = 253;

/// A request that is a renewal if its body is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The name of the Lease in the URL.
    pub name: Box<[u8]>,
    /// The manager as kube-apiserver reads it from the User-Agent.
    pub manager: Box<[u8]>,
    /// Bytes of the body.
    pub length: usize,
}

/// Reads the head of a client's request. Returns `None` if it does not update the Lease of a node.
pub fn recognize(parts: &Parts) -> Option<Result<Candidate, Reason>> {
    let name = parts.uri.path().strip_prefix(PATH)?;
    if parts.method != Method::PUT {
        return None;
    }
    Some(candidate(name, parts))
}

fn candidate(name: &str, parts: &Parts) -> Result<Candidate, Reason> {
    let fields = &parts.headers;
    let accept = fields.get(ACCEPT).map(HeaderValue::as_bytes);
    let is_plain = is_name(name)
        && parts.uri.query().is_none_or(is_timeout)
        && fields.keys().all(|field| FIELDS.contains(field))
        // No field occurs twice.
        && fields.len() == fields.keys_len()
        && fields.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes() == PROTOBUF)
        && (accept == Some(PROTOBUF_OR_JSON) || accept == Some(PROTOBUF));
    if !is_plain {
        return Err(Reason::Form);
    }
    let length = fields.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let length = length.filter(|length| (1..=MAX_BODY).contains(length)).ok_or(Reason::Body)?;
    let manager = manager(fields).ok_or(Reason::Form)?;
    Ok(Candidate { name: name.as_bytes().into(), manager: manager.into(), length })
}

/// Returns what kube-apiserver takes as the name of the field manager (`prefixFromUserAgent` in
/// k8s.io/apiserver), if it takes it unchanged.
fn manager(fields: &HeaderMap) -> Option<&[u8]> {
    let agent = fields.get(USER_AGENT)?.as_bytes();
    let prefix = agent.split(|byte| *byte == b'/').next()?;
    let unchanged = prefix.iter().all(|byte| matches!(byte, b' '..=b'~')) && prefix.len() <= 128;
    (unchanged && !prefix.is_empty()).then_some(prefix)
}

/// Whether the last part of the URL is a name, written without escapes.
fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= MAX_NAME
        && bytes.iter().copied().all(allowed)
        && ends(bytes.first())
        && ends(bytes.last())
}

/// Whether a query is the timeout that client-go sends.
fn is_timeout(query: &str) -> bool {
    let Some(text) = query.strip_prefix("timeout=") else { return false };
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    (1..=6).contains(&digits)
        && !text.starts_with('0')
        && matches!(&text[digits..], "s" | "ms" | "m")
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    const URL: &str =
        "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-1?timeout=10s";

    fn request(method: &str, url: &str, changes: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method(method).uri(url).body(()).unwrap();
        let fields = request.headers_mut();
        for (name, value) in [
            ("accept", "application/vnd.kubernetes.protobuf,application/json"),
            ("accept-encoding", "gzip"),
            ("content-type", "application/vnd.kubernetes.protobuf"),
            ("content-length", "300"),
            ("user-agent", "kubelet/v1.37.1 (linux/amd64) kubernetes/abc"),
        ] {
            fields.insert(name, value.parse().unwrap());
        }
        for (name, value) in changes {
            let name = HeaderName::from_bytes(name.trim_start_matches('+').as_bytes()).unwrap();
            match value {
                &"" => drop(fields.remove(name)),
                value if changes[0].0.starts_with('+') => {
                    fields.append(name, value.parse().unwrap());
                }
                value => drop(fields.insert(name, value.parse().unwrap())),
            }
        }
        request.into_parts().0
    }

    #[test]
    fn the_request_of_a_kubelet_is_recognized() {
        let expected =
            Candidate { name: (*b"node-1").into(), manager: (*b"kubelet").into(), length: 300 };
        let accept = ("accept", "application/vnd.kubernetes.protobuf");
        for changes in [&[][..], &[accept], &[("accept-encoding", "")]] {
            assert_eq!(recognize(&request("PUT", URL, changes)), Some(Ok(expected.clone())));
        }
        let plain = URL.split_once('?').unwrap().0;
        assert_eq!(recognize(&request("PUT", plain, &[])), Some(Ok(expected)));
    }

    #[test]
    fn other_requests_are_not() {
        for (method, url) in [
            ("GET", URL.into()),
            ("PATCH", URL.into()),
            ("PUT", URL.replace("kube-node-lease", "default")),
            ("PUT", URL.replace("leases", "pods")),
            ("PUT", URL.replace("/v1/", "/v1beta1/")),
            ("PUT", format!("/{URL}")),
        ] {
            assert_eq!(recognize(&request(method, &url, &[])), None, "{method} {url}");
        }
    }

    #[test]
    fn what_kube_apiserver_may_treat_differently_is_forwarded() {
        for url in [
            URL.replace("node-1", "node-1/status"),
            URL.replace("node-1", "node%2d1"),
            URL.replace("node-1", "Node"),
            URL.replace("node-1", ""),
            URL.replace("node-1", "-a"),
            URL.replace("node-1", &"a".repeat(254)),
            URL.replace("10s", "0s"),
            URL.replace("10s", "10"),
            URL.replace("10s", "1e3s"),
            URL.replace("10s", "10s&dryRun=All"),
            URL.replace("timeout=10s", "fieldManager=a"),
            URL.replace("timeout=10s", ""),
        ] {
            let recognized = recognize(&request("PUT", &url, &[]));
            assert_eq!(recognized, Some(Err(Reason::Form)), "{url}");
        }
        for (change, reason) in [
            (("accept", "application/json"), Reason::Form),
            (("accept", ""), Reason::Form),
            (("accept", "application/json,application/vnd.kubernetes.protobuf"), Reason::Form),
            (("content-type", "application/json"), Reason::Form),
            (("content-encoding", "gzip"), Reason::Form),
            (("impersonate-user", "a"), Reason::Form),
            (("authorization", "Bearer a"), Reason::Form),
            (("x-remote-user", "a"), Reason::Form),
            (("connection", "accept"), Reason::Form),
            (("audit-id", "a"), Reason::Form),
            (("traceparent", "a"), Reason::Form),
            (("+user-agent", "kubectl/1"), Reason::Form),
            (("user-agent", ""), Reason::Form),
            (("user-agent", "/v1"), Reason::Form),
            (("user-agent", "a\tb/v1"), Reason::Form),
            (("content-length", ""), Reason::Body),
            (("content-length", "0"), Reason::Body),
            (("content-length", "16385"), Reason::Body),
            (("content-length", "-1"), Reason::Body),
        ] {
            let recognized = recognize(&request("PUT", URL, &[change]));
            assert_eq!(recognized, Some(Err(reason)), "{change:?}");
        }
    }
}
