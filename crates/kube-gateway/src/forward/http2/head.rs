//! Heads of requests and answers: from the fields of HTTP/2 to those of the crate `http`, and back.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http::{Method, Request, StatusCode, Version};
use http2::{Fields, RequestBuilder};

/// Bytes of pseudo-header fields besides the path, about.
const PSEUDO_BYTES: usize = 64;
/// Room for the fields of most answers of kube-apiserver, and for the bytes of their names and values.
const ANSWER_FIELDS: usize = 10;
const ANSWER_BYTES: usize = 400;

/// Builds the head of a client's request; `None` if a part of it is malformed.
#[derive(Default)]
pub struct RequestHead {
    method: Option<Method>,
    scheme: Option<Scheme>,
    authority: Option<Authority>,
    path: Option<PathAndQuery>,
    fields: HeaderMap,
    /// Whether a field has a name or value that the crate `http` does not accept, such as a control
    /// character, or there are more fields than it can hold.
    malformed: bool,
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

    fn regular_field(&mut self, name: &[u8], value: &[u8]) -> Option<()> {
        let name = HeaderName::from_bytes(name).ok()?;
        let value = HeaderValue::from_bytes(value).ok()?;
        self.fields.try_append(name, value).ok().map(drop)
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
            self.malformed |= self.pseudo_field(name, value).is_none();
        } else {
            self.malformed |= self.regular_field(name, value).is_none();
        }
    }

    fn build(mut self, (): &()) -> Option<Parts> {
        let uri = self.uri()?;
        if self.malformed {
            return None;
        }
        let (mut parts, ()) = Request::new(()).into_parts();
        parts.method = self.method?;
        parts.uri = uri;
        parts.version = Version::HTTP_2;
        parts.headers = self.fields;
        Some(parts)
    }
}

/// Builds the head of an API server's answer, without the fields that belong to the connection.
/// Those that HTTP/2 forbids have ended the stream before.
pub struct AnswerHead {
    status: StatusCode,
    fields: Fields,
}

impl Default for AnswerHead {
    fn default() -> AnswerHead {
        let fields = Fields::with_capacity(ANSWER_FIELDS, ANSWER_BYTES);
        AnswerHead { status: StatusCode::OK, fields }
    }
}

impl RequestBuilder for AnswerHead {
    type Context = ();
    type Request = (StatusCode, Fields);

    fn field(&mut self, (): &(), name: &[u8], value: &[u8]) {
        match name {
            // It has three digits.
            b":status" => self.status = StatusCode::from_bytes(value).unwrap_or(self.status),
            b"te" | b"trailer" | b"proxy-authenticate" | b"proxy-authorization" => {}
            _ => self.fields.push(name, value),
        }
    }

    fn build(self, (): &()) -> (StatusCode, Fields) {
        (self.status, self.fields)
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

/// Returns the fields of an answer of the gateway itself.
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
    fn an_answer_has_a_status_and_the_fields_that_are_forwarded() {
        let mut head = AnswerHead::default();
        let list = [(":status", "409"), ("audit-id", "x"), ("trailer", "y"), ("audit-id", "z")];
        list.iter().for_each(|(name, value)| head.field(&(), name.as_bytes(), value.as_bytes()));
        let (status, fields) = head.build(&());
        assert_eq!(status, StatusCode::CONFLICT);
        let values: Vec<_> = fields.iter().map(|(_, value)| value).collect();
        assert_eq!(values, [b"x", b"z"]);
    }
}
