//! Interprets the header fields of a request, and finds its method.

use std::collections::HashMap;

use crate::status::Status;

/// A registered method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MethodId {
    /// Position in [`Methods::paths`] and in the handlers.
    pub(crate) index: usize,
    /// Whether the client sends a stream of messages.
    pub(crate) client_streaming: bool,
}

/// The methods of a server by path.
#[derive(Default)]
pub(crate) struct Methods {
    by_path: HashMap<&'static [u8], MethodId, foldhash::fast::RandomState>,
    paths: Vec<&'static str>,
}

impl Methods {
    /// Adds a method. Panics if the path is already registered.
    pub(crate) fn add(&mut self, path: &'static str, client_streaming: bool) {
        let method = MethodId { index: self.paths.len(), client_streaming };
        let before = self.by_path.insert(path.as_bytes(), method);
        assert!(before.is_none(), "two handlers for {path}");
        self.paths.push(path);
    }

    fn find(&self, path: &[u8]) -> Option<MethodId> {
        self.by_path.get(path).copied()
    }

    pub(crate) fn path(&self, method: MethodId) -> &'static str {
        self.paths[method.index]
    }

    /// Returns the error for an unknown path, with the text of grpc-go.
    fn unknown_method(&self, path: &str) -> Status {
        let Some((service, method)) = path.strip_prefix('/').and_then(|p| p.rsplit_once('/'))
        else {
            return Status::unimplemented(format!("malformed method name: {path:?}"));
        };
        let of_service =
            |path: &&str| path[1..].rsplit_once('/').is_some_and(|(s, _)| s == service);
        match self.paths.iter().any(of_service) {
            true => Status::unimplemented(format!("unknown method {method} for service {service}")),
            false => Status::unimplemented(format!("unknown service {service}")),
        }
    }
}

/// The header fields that the server uses. A call of a known method causes no allocation
/// here.
#[derive(Default)]
pub(crate) struct GrpcRequest {
    verb: http::Method,
    method: Option<MethodId>,
    /// The path, if it is not that of a known method.
    path: Option<String>,
    is_grpc: bool,
    /// The compression of the request's messages, if it is not `identity`.
    encoding: Option<String>,
}

/// A request, classified.
#[derive(Debug)]
pub(crate) enum RequestKind {
    /// A call of a known method.
    Call(MethodId),
    /// A call that the server does not support.
    Unsupported(Status),
    /// A request that is not gRPC.
    Page { verb: http::Method, path: String },
}

impl http2::RequestBuilder for GrpcRequest {
    type Context = Methods;
    type Request = RequestKind;

    fn field(&mut self, methods: &Methods, name: &[u8], value: &[u8]) {
        match name {
            b":method" if value == b"POST" => self.verb = http::Method::POST,
            b":method" => self.verb = http::Method::from_bytes(value).unwrap_or_default(),
            b":path" => {
                self.method = methods.find(value);
                if self.method.is_none() {
                    self.path = Some(String::from_utf8_lossy(value).into_owned());
                }
            }
            b"content-type" => self.is_grpc = value.starts_with(b"application/grpc"),
            b"grpc-encoding" if value != b"identity" => {
                self.encoding = Some(String::from_utf8_lossy(value).into_owned());
            }
            _ => {}
        }
    }

    fn build(self, methods: &Methods) -> RequestKind {
        let known_path = || self.method.map(|method| methods.path(method).to_owned());
        if !self.is_grpc || self.verb != http::Method::POST {
            let path = self.path.or_else(known_path).unwrap_or_default();
            return RequestKind::Page { verb: self.verb, path };
        }
        if let Some(encoding) = self.encoding {
            let text =
                format!("grpc: Decompressor is not installed for grpc-encoding \"{encoding}\"");
            return RequestKind::Unsupported(Status::unimplemented(text));
        }
        match self.method {
            Some(method) => RequestKind::Call(method),
            None => {
                let path = self.path.unwrap_or_default();
                RequestKind::Unsupported(methods.unknown_method(&path))
            }
        }
    }
}
