//! Interprets the header fields of a request, and finds its method.

use std::collections::HashMap;
use std::time::Duration;

use crate::metadata;
use crate::status::Status;

/// Error messages quote at most this many bytes of a header field. A field can be a single
/// index of HPACK, so longer quotes would let a client produce much output for a few bytes.
const MAX_QUOTED_BYTES: usize = 256;

/// Maximum size of a path that is kept, if it is not that of a known method. Error messages quote
/// parts of it.
const MAX_PATH_BYTES: usize = 2 * MAX_QUOTED_BYTES;

/// Returns the part of a header field that an error message may contain.
fn quotable(field: &str) -> &str {
    &field[..field.floor_char_boundary(MAX_QUOTED_BYTES)]
}

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
            let path = quotable(path);
            return Status::unimplemented(format!("malformed method name: {path:?}"));
        };
        let of_service =
            |path: &&str| path[1..].rsplit_once('/').is_some_and(|(s, _)| s == service);
        let is_known = self.paths.iter().any(of_service);
        let (service, method) = (quotable(service), quotable(method));
        match is_known {
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
    /// Whether only the beginning of the path was kept.
    path_is_too_long: bool,
    is_grpc: bool,
    /// The compression of the request's messages, if it is not `identity`.
    encoding: Option<String>,
    timeout: Option<Duration>,
    /// Why the timeout cannot be parsed.
    malformed_timeout: Option<String>,
    /// The fields that handlers may read, if there are any.
    metadata: Option<Box<metadata::Fields>>,
}

/// A request, classified.
#[derive(Debug)]
pub(crate) enum RequestKind {
    /// A call of a known method, the time after which the client no longer waits, and the fields
    /// that handlers may read.
    Call(MethodId, Option<Duration>, Option<Box<metadata::Fields>>),
    /// A call that the server does not support.
    Unsupported(Status),
    /// A call with a header field that cannot be parsed.
    Malformed(Status),
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
                    self.path_is_too_long = value.len() > MAX_PATH_BYTES;
                    let kept = &value[..value.len().min(MAX_PATH_BYTES)];
                    self.path = Some(String::from_utf8_lossy(kept).into_owned());
                }
            }
            b"content-type" => self.is_grpc = value.starts_with(b"application/grpc"),
            b"grpc-encoding" if value != b"identity" => {
                let value = &value[..value.len().min(MAX_QUOTED_BYTES)];
                self.encoding = Some(String::from_utf8_lossy(value).into_owned());
            }
            b"grpc-timeout" => match parse_timeout(value) {
                Ok(timeout) => self.timeout = timeout,
                Err(reason) => self.malformed_timeout = Some(reason),
            },
            _ => metadata::Fields::add(&mut self.metadata, name, value),
        }
    }

    fn build(self, methods: &Methods) -> RequestKind {
        let known_path = || self.method.map(|method| methods.path(method).to_owned());
        if !self.is_grpc || self.verb != http::Method::POST {
            // An empty path is refused as a bad request.
            let path = self.path.filter(|_| !self.path_is_too_long);
            let path = path.or_else(known_path).unwrap_or_default();
            return RequestKind::Page { verb: self.verb, path };
        }
        if let Some(encoding) = self.encoding {
            let encoding = quotable(&encoding);
            let text =
                format!("grpc: Decompressor is not installed for grpc-encoding \"{encoding}\"");
            return RequestKind::Unsupported(Status::unimplemented(text));
        }
        if let Some(reason) = self.malformed_timeout {
            let text = format!("malformed grpc-timeout: {reason}");
            return RequestKind::Malformed(Status::internal(text));
        }
        match self.method {
            Some(method) => RequestKind::Call(method, self.timeout, self.metadata),
            None => {
                let path = self.path.unwrap_or_default();
                RequestKind::Unsupported(methods.unknown_method(&path))
            }
        }
    }
}

/// Longer timeouts have no effect.
const MAX_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Parses the value of `grpc-timeout`: up to eight digits and a unit. Returns `None` if the
/// timeout is too long to matter. The errors are those of grpc-go.
fn parse_timeout(value: &[u8]) -> Result<Option<Duration>, String> {
    let error = |what: &str| {
        let text = String::from_utf8_lossy(&value[..value.len().min(MAX_QUOTED_BYTES)]);
        Err(format!("transport: timeout {what}: {text:?}"))
    };
    let (unit, digits) = match value.split_last() {
        None | Some((_, [])) => return error("string is too short"),
        Some(_) if value.len() > 9 => return error("string is too long"),
        Some(parts) => parts,
    };
    let nanos = match unit {
        b'H' => 3600 * 1_000_000_000,
        b'M' => 60 * 1_000_000_000,
        b'S' => 1_000_000_000,
        b'm' => 1_000_000,
        b'u' => 1000,
        b'n' => 1,
        _ => return error("unit is not recognized"),
    };
    if !digits.iter().all(u8::is_ascii_digit) {
        let text = String::from_utf8_lossy(digits);
        return Err(format!("strconv.ParseUint: parsing {text:?}: invalid syntax"));
    }
    let number = digits.iter().fold(0_u64, |number, digit| 10 * number + u64::from(digit - b'0'));
    let timeout = number.checked_mul(nanos).map(Duration::from_nanos);
    Ok(timeout.filter(|timeout| *timeout <= MAX_TIMEOUT))
}

#[cfg(test)]
mod tests {
    use http2::RequestBuilder;

    use super::*;

    /// A field can be a single index of HPACK, so little of it is kept.
    #[test]
    fn long_fields_are_not_kept() {
        let long = [b"/".to_vec(), vec![b'x'; 4000]].concat();
        let (mut methods, mut page) = (Methods::default(), GrpcRequest::default());
        methods.add("/a/Known", false);
        page.field(&methods, b":path", &long);
        assert!(matches!(page.build(&methods), RequestKind::Page { path, .. } if path.is_empty()));
        let call = |name: &[u8]| {
            let mut call = GrpcRequest::default();
            call.field(&methods, b":method", b"POST");
            call.field(&methods, b"content-type", b"application/grpc");
            call.field(&methods, name, &long);
            match call.build(&methods) {
                RequestKind::Unsupported(status) | RequestKind::Malformed(status) => status,
                other => panic!("{other:?}"),
            }
        };
        for name in [&b":path"[..], b"grpc-encoding", b"grpc-timeout"] {
            let status = call(name);
            assert!(status.message().len() < 400, "{status:?}");
        }
    }

    #[test]
    fn timeouts_are_parsed_as_in_grpc_go() {
        for (value, expected) in [
            ("1n", Ok(Some(Duration::from_nanos(1)))),
            ("20u", Ok(Some(Duration::from_micros(20)))),
            ("0m", Ok(Some(Duration::ZERO))),
            ("99999999m", Ok(Some(Duration::from_millis(99_999_999)))),
            ("7S", Ok(Some(Duration::from_secs(7)))),
            ("2M", Ok(Some(Duration::from_secs(120)))),
            ("1H", Ok(Some(Duration::from_secs(3600)))),
            ("99999999H", Ok(None)),
            ("", Err("transport: timeout string is too short: \"\"")),
            ("S", Err("transport: timeout string is too short: \"S\"")),
            ("123456789S", Err("transport: timeout string is too long: \"123456789S\"")),
            ("1s", Err("transport: timeout unit is not recognized: \"1s\"")),
            ("-1S", Err("strconv.ParseUint: parsing \"-1\": invalid syntax")),
        ] {
            let expected = expected.map_err(str::to_owned);
            assert_eq!(parse_timeout(value.as_bytes()), expected, "{value:?}");
        }
    }
}
