//! What a block of header fields asks for.

use crate::routes::{MethodRef, Methods};

/// The fields of a request count as this much more than their bytes.
const FIELD_OVERHEAD_BYTES: usize = 32;
/// Larger blocks of fields are refused.
pub(crate) const MAX_FIELDS_BYTES: usize = 64 << 10;

/// The head of a request, gathered field by field.
pub(crate) struct Request<'a> {
    methods: &'a Methods,
    verb: Option<http::Method>,
    method: Option<MethodRef>,
    /// The path, unless it names a method of ours.
    path: Option<String>,
    scheme: bool,
    authority: bool,
    regular: bool,
    grpc: bool,
    encoding: Option<String>,
    content_length: Option<u64>,
    bytes: usize,
    malformed: bool,
}

/// What is asked for.
pub(crate) enum Asked {
    /// A call of a method of ours.
    Call(MethodRef),
    /// A call that cannot be served, and why.
    Refused(crate::Status),
    /// Something that is not gRPC.
    Page { verb: http::Method, path: String },
}

impl<'a> Request<'a> {
    pub(crate) fn new(methods: &'a Methods) -> Self {
        Request {
            methods,
            verb: None,
            method: None,
            path: None,
            scheme: false,
            authority: false,
            regular: false,
            grpc: false,
            encoding: None,
            content_length: None,
            bytes: 0,
            malformed: false,
        }
    }

    /// Takes the next field.
    pub(crate) fn field(&mut self, name: &[u8], value: &[u8]) {
        self.bytes += name.len() + value.len() + FIELD_OVERHEAD_BYTES;
        if self.bytes > MAX_FIELDS_BYTES {
            return;
        }
        let valid = match name.strip_prefix(b":") {
            Some(name) => !self.regular && self.pseudo(name, value),
            None => {
                self.regular = true;
                self.plain(name, value)
            }
        };
        self.malformed |= !valid;
    }

    /// Takes a field of the request line; each may come once.
    fn pseudo(&mut self, name: &[u8], value: &[u8]) -> bool {
        match name {
            b"method" => {
                let verb = match value {
                    b"POST" => Some(http::Method::POST),
                    _ => http::Method::from_bytes(value).ok(),
                };
                verb.is_some() && std::mem::replace(&mut self.verb, verb).is_none()
            }
            b"path" => self.path(value),
            b"scheme" => !std::mem::replace(&mut self.scheme, true),
            b"authority" => !std::mem::replace(&mut self.authority, true),
            _ => false,
        }
    }

    fn path(&mut self, value: &[u8]) -> bool {
        if value.is_empty() || self.method.is_some() || self.path.is_some() {
            return false;
        }
        self.method = self.methods.find(value);
        if self.method.is_none() {
            self.path = std::str::from_utf8(value).ok().map(str::to_owned);
            return self.path.is_some();
        }
        true
    }

    fn plain(&mut self, name: &[u8], value: &[u8]) -> bool {
        match name {
            b"content-type" => self.grpc = value.starts_with(b"application/grpc"),
            b"grpc-encoding" if value != b"identity" => {
                self.encoding = Some(String::from_utf8_lossy(value).into_owned());
            }
            b"content-length" => {
                let length = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                if length.is_none()
                    || self.content_length.is_some_and(|before| Some(before) != length)
                {
                    return false;
                }
                self.content_length = length;
            }
            b"te" => return value == b"trailers",
            b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding"
            | b"upgrade" => return false,
            _ => return !name.is_empty() && !name.iter().any(u8::is_ascii_uppercase),
        }
        true
    }

    /// How many bytes the body has, if the client says.
    pub(crate) fn content_length(&self) -> Option<u64> {
        self.content_length
    }

    /// What the fields come to; nothing if they do not make a request.
    pub(crate) fn finish(self) -> Option<Asked> {
        let verb = self.verb.filter(|_| !self.malformed && self.scheme)?;
        if self.method.is_none() && self.path.is_none() {
            return None;
        }
        if self.bytes > MAX_FIELDS_BYTES {
            let text = "grpc: the header fields are too large";
            return Some(Asked::Refused(crate::Status::resource_exhausted(text)));
        }
        if !self.grpc || verb != http::Method::POST {
            let path =
                self.path.or_else(|| self.method.map(|m| self.methods.path(m).to_owned()))?;
            return Some(Asked::Page { verb, path });
        }
        if let Some(encoding) = self.encoding {
            let text =
                format!("grpc: Decompressor is not installed for grpc-encoding \"{encoding}\"");
            return Some(Asked::Refused(crate::Status::unimplemented(text)));
        }
        Some(match (self.method, self.path) {
            (Some(method), _) => Asked::Call(method),
            (None, path) => Asked::Refused(self.methods.unknown(&path.unwrap_or_default())),
        })
    }
}

/// Whether fields behind the body are what they may be: no longer part of the
/// request line.
pub(crate) fn is_trailer(name: &[u8]) -> bool {
    !name.starts_with(b":") && !name.is_empty() && !name.iter().any(u8::is_ascii_uppercase)
}
