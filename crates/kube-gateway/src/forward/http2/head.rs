//! Heads of requests and answers: from the fields of HTTP/2 to those of the crate `http`, and back.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http::{Method, Request, StatusCode, Version};
use http2::{Fields, RequestBuilder};

/// Bytes of pseudo-header fields besides the path, about.
const PSEUDO_BYTES: usize = 64;

/// The header fields of a block.
#[derive(Default)]
struct Regular {
    fields: HeaderMap,
    /// Whether a field has a name or value that the crate `http` does not accept, such as a control
    /// character, or there are more fields than it can hold.
    malformed: bool,
}

impl Regular {
    fn append(&mut self, name: &[u8], value: &[u8]) {
        let name = HeaderName::from_bytes(name).ok();
        let value = HeaderValue::from_bytes(value).ok();
        let appended = name.zip(value).map(|(name, value)| self.fields.try_append(name, value));
        self.malformed |= !matches!(appended, Some(Ok(_)));
    }
}

/// Builds the head of a client's request; `None` if a part of it is malformed.
#[derive(Default)]
pub struct RequestHead {
    method: Option<Method>,
    scheme: Option<Scheme>,
    authority: Option<Authority>,
    path: Option<PathAndQuery>,
    regular: Regular,
}

impl RequestHead {
    fn pseudo_field(&mut self, name: &[u8], value: &[u8]) -> Option<()> {
        match name {
            b":method" => self.method = Some(Method::from_bytes(value).ok()?),
            b":scheme" => self.scheme = Some(Scheme::try_from(value).ok()?),
            b":authority" if value.is_empty() => {}
            b":authority" => self.authority = Some(Authority::try_from(value).ok()?),
            b":path" => self.path = Some(PathAndQuery::try_from(value).ok()?),
            _ => return None,
        }
        Some(())
    }

    fn uri(&mut self) -> Option<Uri> {
        let mut parts = http::uri::Parts::default();
        parts.authority = self.authority.take();
        // A URI with a path and a scheme needs an authority, and one with an authority a scheme.
        if parts.authority.is_some() && self.path.is_some() {
            parts.scheme = self.scheme.take();
        }
        parts.path_and_query = self.path.take();
        Uri::from_parts(parts).ok()
    }
}

impl RequestBuilder for RequestHead {
    type Context = ();
    type Request = Option<Parts>;

    fn field(&mut self, (): &(), name: &[u8], value: &[u8]) {
        if name.starts_with(b":") {
            self.regular.malformed |= self.pseudo_field(name, value).is_none();
        } else {
            self.regular.append(name, value);
        }
    }

    fn build(mut self, (): &()) -> Option<Parts> {
        let uri = self.uri()?;
        if self.regular.malformed {
            return None;
        }
        let (mut parts, ()) = Request::new(()).into_parts();
        parts.method = self.method?;
        parts.uri = uri;
        parts.version = Version::HTTP_2;
        parts.headers = self.regular.fields;
        Some(parts)
    }
}

/// Builds the head of an API server's answer; `None` if a part of it is malformed.
#[derive(Default)]
pub struct AnswerHead {
    status: Option<StatusCode>,
    regular: Regular,
}

impl RequestBuilder for AnswerHead {
    type Context = ();
    type Request = Option<(StatusCode, HeaderMap)>;

    fn field(&mut self, (): &(), name: &[u8], value: &[u8]) {
        if name == b":status" {
            self.status = StatusCode::from_bytes(value).ok();
        } else {
            self.regular.append(name, value);
        }
    }

    fn build(self, (): &()) -> Option<(StatusCode, HeaderMap)> {
        let status = self.status.filter(|_| !self.regular.malformed)?;
        Some((status, self.regular.fields))
    }
}

/// Returns the fields of a request for an API server, pseudo-header fields first.
pub fn request_fields(parts: &Parts) -> Fields {
    let path = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let authority = parts.uri.authority().map_or("", Authority::as_str);
    let bytes = bytes_of(&parts.headers) + path.len() + authority.len() + PSEUDO_BYTES;
    let mut fields = Fields::with_capacity(parts.headers.len() + 4, bytes);
    fields.push(b":method", parts.method.as_str().as_bytes());
    fields.push(b":scheme", b"https");
    fields.push(b":authority", authority.as_bytes());
    fields.push(b":path", path.as_bytes());
    append(&mut fields, &parts.headers);
    fields
}

/// Returns the fields of an answer for a client.
pub fn answer_fields(headers: &HeaderMap) -> Fields {
    let mut fields = Fields::with_capacity(headers.len(), bytes_of(headers));
    append(&mut fields, headers);
    fields
}

fn append(fields: &mut Fields, headers: &HeaderMap) {
    for (name, value) in headers {
        fields.push(name.as_str().as_bytes(), value.as_bytes());
    }
}

fn bytes_of(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(fields: &[(&str, &str)]) -> Option<Parts> {
        let mut head = RequestHead::default();
        fields.iter().for_each(|(name, value)| head.field(&(), name.as_bytes(), value.as_bytes()));
        head.build(&())
    }

    const GET: [(&str, &str); 3] = [(":method", "GET"), (":scheme", "https"), (":path", "/a?b=c")];

    #[test]
    fn a_request_keeps_its_parts_and_the_order_of_values() {
        let more = [(":authority", "host:6443"), ("accept", "x"), ("b", "1"), ("accept", "y")];
        let parts = parts(&[&GET[..], &more].concat()).unwrap();
        assert_eq!(parts.uri, "https://host:6443/a?b=c");
        let fields = request_fields(&parts);
        let text: Vec<_> =
            fields.iter().map(|(_, value)| std::str::from_utf8(value).unwrap()).collect();
        assert_eq!(text, ["GET", "https", "host:6443", "/a?b=c", "x", "y", "1"]);
    }

    #[test]
    fn requests_need_no_authority() {
        for more in [&[][..], &[(":authority", "")]] {
            assert_eq!(parts(&[&GET[..], more].concat()).unwrap().uri, "/a?b=c");
        }
        let tunnel = parts(&[(":method", "CONNECT"), (":authority", "host:1")]).unwrap();
        assert_eq!((tunnel.method, tunnel.uri.to_string()), (Method::CONNECT, "host:1".to_owned()));
        let all = parts(&[(":method", "OPTIONS"), (":scheme", "https"), (":path", "*")]).unwrap();
        assert_eq!(all.uri.path(), "*");
    }

    #[test]
    fn what_the_crate_http_refuses_is_malformed() {
        assert!(parts(&[&GET[..], &[("a", "b\u{1}")]].concat()).is_none(), "a control character");
        assert!(parts(&[(":method", "GET"), (":scheme", "https"), (":path", "/a b")]).is_none());
        assert!(parts(&[&GET[..], &[(":authority", "a b")]].concat()).is_none());
        let many: Vec<_> = (0..40_000).map(|number| format!("x-{number}")).collect();
        let many: Vec<_> = many.iter().map(|name| (name.as_str(), "")).collect();
        assert!(parts(&[&GET[..], &many].concat()).is_none(), "more fields than a map can hold");
    }

    #[test]
    fn an_answer_has_a_status() {
        let mut head = AnswerHead::default();
        head.field(&(), b":status", b"409");
        head.field(&(), b"audit-id", b"x");
        let (status, fields) = head.build(&()).unwrap();
        assert_eq!((status, fields.len()), (StatusCode::CONFLICT, 1));
        assert_eq!(answer_fields(&fields).get(b"audit-id"), Some(&b"x"[..]));
    }
}
