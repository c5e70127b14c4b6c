//! Requests.

use bytes::Bytes;
use http2::Fields;

/// What kubelet accepts.
const ACCEPT: &str = "application/vnd.kubernetes.protobuf,application/json";
/// Bytes of the names and of the constant values of the fields, about.
const FIELDS_BYTES: usize = 320;
/// Fields of a request, at most.
const MAX_FIELDS: usize = 9;

/// A method of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Reads an object, or watches.
    Get,
    /// Creates an object.
    Post,
    /// Replaces an object.
    Put,
    /// Changes an object.
    Patch,
    /// Deletes an object.
    Delete,
}

/// The body of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// No body.
    None,
    /// An object in protobuf.
    Protobuf(Bytes),
    /// A strategic merge patch in JSON.
    StrategicMergePatch(Bytes),
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The method.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// The body.
    pub body: Body,
}

/// The header fields that all requests of an endpoint have in common.
#[derive(Clone, Debug)]
pub struct CommonFields {
    /// Host and port of the server.
    pub authority: String,
    /// The name of this program and its version.
    pub user_agent: String,
    /// The value of `authorization`, if the client has a token.
    pub authorization: Option<String>,
}

impl Method {
    /// The name in HTTP.
    pub fn name(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Patch => "PATCH",
            Method::Delete => "DELETE",
        }
    }
}

impl Request {
    /// A request without a body.
    pub fn get(path: String) -> Request {
        Request { method: Method::Get, path, body: Body::None }
    }

    /// Header fields, and the body if there is one.
    pub(super) fn into_parts(self, common: &CommonFields) -> (Fields, Option<Bytes>) {
        let mut fields = Fields::with_capacity(MAX_FIELDS, FIELDS_BYTES + self.path.len());
        fields.push(b":method", self.method.name().as_bytes());
        fields.push(b":scheme", b"https");
        fields.push(b":authority", common.authority.as_bytes());
        fields.push(b":path", self.path.as_bytes());
        fields.push(b"accept", ACCEPT.as_bytes());
        fields.push(b"user-agent", common.user_agent.as_bytes());
        if let Some(authorization) = &common.authorization {
            fields.push(b"authorization", authorization.as_bytes());
        }
        let (content_type, body) = match self.body {
            Body::None => return (fields, None),
            Body::Protobuf(body) => ("application/vnd.kubernetes.protobuf", body),
            Body::StrategicMergePatch(body) => ("application/strategic-merge-patch+json", body),
        };
        fields.push(b"content-type", content_type.as_bytes());
        fields.push(b"content-length", body.len().to_string().as_bytes());
        (fields, Some(body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_fields_of_a_kubelet() {
        let common = CommonFields {
            authority: "127.0.0.1:6443".into(),
            user_agent: "node-sim/1".into(),
            authorization: Some("Bearer x".into()),
        };
        let body = Body::Protobuf(Bytes::from_static(b"k8s"));
        let request = Request { method: Method::Put, path: "/apis".into(), body };
        let (fields, body) = request.into_parts(&common);
        assert_eq!(fields.get(b":method"), Some(&b"PUT"[..]));
        assert_eq!(fields.get(b":path"), Some(&b"/apis"[..]));
        assert_eq!(fields.get(b"authorization"), Some(&b"Bearer x"[..]));
        assert_eq!(fields.get(b"content-length"), Some(&b"3"[..]));
        assert_eq!(body.unwrap(), &b"k8s"[..]);
        let (fields, body) = Request::get("/x".into()).into_parts(&common);
        assert!(fields.get(b"content-type").is_none() && body.is_none());
    }
}
