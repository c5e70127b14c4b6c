//! Validation of requests, responses and trailers (RFC 9113, sections 8.2 and 8.3).

use crate::config::{ConnectMethod, Limits, Role};

/// The size of a field is that of its name and value plus this many bytes (RFC 9113,
/// 6.5.2).
pub(crate) const FIELD_OVERHEAD_BYTES: usize = 32;

/// Builds a request from its header fields, which the connection passes to it one by one. A
/// client's connection builds responses with it.
///
/// The connection validates each field before it passes it on. It discards the builder if
/// the request is malformed.
pub trait RequestBuilder: Default {
    /// Data that the builder needs to interpret fields, such as a routing table.
    type Context: ?Sized;
    /// The type of the built request.
    type Request;

    /// Adds a field. Pseudo-header fields (`:method`, `:path`, …) come first. Each occurs
    /// at most once, and its name includes the colon. A response has `:status`, which has three
    /// digits.
    fn field(&mut self, context: &Self::Context, name: &[u8], value: &[u8]);

    /// Returns the request, after the last field.
    fn build(self, context: &Self::Context) -> Self::Request;
}

/// A request, or a response, whose header fields are being decoded.
pub(crate) struct HeadDecoder<B> {
    pub(crate) builder: B,
    role: Role,
    limits: Limits,
    seen: PseudoFields,
    /// Whether a field that is not a pseudo-header field has been decoded.
    regular_seen: bool,
    content_length: Option<u64>,
    /// Size of the fields so far, as SETTINGS_MAX_HEADER_LIST_SIZE counts it.
    pub(crate) bytes: usize,
    malformed: bool,
}

/// Which pseudo-header fields a request has.
#[derive(Default)]
struct PseudoFields {
    method: bool,
    /// Whether the method is CONNECT.
    connect: bool,
    path: bool,
    scheme: bool,
    authority: bool,
    protocol: bool,
    /// Of a response.
    status: Option<u16>,
}

/// A request or a response whose header fields are valid.
pub(crate) struct DecodedHead<B> {
    pub(crate) builder: B,
    /// Of a response, otherwise 0.
    pub(crate) status: u16,
    pub(crate) content_length: Option<u64>,
    pub(crate) fields_too_large: bool,
}

impl<B: RequestBuilder> HeadDecoder<B> {
    /// Creates a decoder for what a program with this role receives.
    pub(crate) fn new(role: Role, limits: Limits) -> Self {
        HeadDecoder {
            builder: B::default(),
            role,
            limits,
            seen: PseudoFields::default(),
            regular_seen: false,
            content_length: None,
            bytes: 0,
            malformed: false,
        }
    }

    /// Validates a field and passes it to the builder. When the fields exceed the size
    /// limit, ignores this and all later fields. Returns whether more fields may follow.
    pub(crate) fn field(&mut self, context: &B::Context, name: &[u8], value: &[u8]) -> bool {
        self.bytes += name.len() + value.len() + FIELD_OVERHEAD_BYTES;
        if self.bytes > self.limits.fields_bytes {
            return self.bytes <= self.limits.decoded_bytes();
        }
        let valid = match name.strip_prefix(b":") {
            Some(name) => {
                !self.regular_seen
                    && match self.role {
                        Role::Server => self.seen.note(name, value),
                        Role::Client => self.seen.note_status(name, value),
                    }
            }
            None => {
                self.regular_seen = true;
                self.note_regular_field(name, value)
            }
        };
        match valid {
            true => self.builder.field(context, name, value),
            false => self.malformed = true,
        }
        true
    }

    /// Notes a field that is not a pseudo-header field. Returns whether it is valid.
    fn note_regular_field(&mut self, name: &[u8], value: &[u8]) -> bool {
        match name {
            b"content-length" => {
                let length = parse_length(value);
                let conflict = self.content_length.is_some_and(|before| Some(before) != length);
                self.content_length = length;
                length.is_some() && !conflict
            }
            b"te" => value == b"trailers",
            _ => is_regular_field(name, value),
        }
    }

    /// Returns the request, or `None` if it is malformed.
    pub(crate) fn finish(self, connect: ConnectMethod) -> Option<DecodedHead<B>> {
        let complete = match self.role {
            Role::Server => self.seen.is_complete(connect),
            Role::Client => self.seen.status.is_some(),
        };
        if self.malformed || !complete {
            return None;
        }
        Some(DecodedHead {
            builder: self.builder,
            status: self.seen.status.unwrap_or_default(),
            content_length: self.content_length,
            fields_too_large: self.bytes > self.limits.fields_bytes,
        })
    }
}

impl PseudoFields {
    /// Notes a field. Returns false if it is unknown, repeated or has an invalid value.
    fn note(&mut self, name: &[u8], value: &[u8]) -> bool {
        let seen = match name {
            b"method" => {
                self.connect = value == b"CONNECT";
                &mut self.method
            }
            b"path" => &mut self.path,
            b"scheme" => &mut self.scheme,
            b"authority" => &mut self.authority,
            b"protocol" => &mut self.protocol,
            _ => return false,
        };
        let repeated = std::mem::replace(seen, true);
        let valid = match name {
            b"method" => is_token(value),
            b"path" => {
                let text = value.is_ascii() || std::str::from_utf8(value).is_ok();
                !value.is_empty() && text && is_field_value(value)
            }
            _ => is_field_value(value),
        };
        valid && !repeated
    }

    /// Notes a field of a response. Returns false if it is unknown, repeated or invalid.
    fn note_status(&mut self, name: &[u8], value: &[u8]) -> bool {
        let digits = value.len() == 3 && value.iter().all(u8::is_ascii_digit);
        let status = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        let repeated = self.status.is_some();
        self.status = status.filter(|status| digits && *status >= 100);
        name == b"status" && !repeated && self.status.is_some()
    }

    /// Whether the pseudo-header fields form a valid request, and `connect` allows it.
    fn is_complete(&self, connect: ConnectMethod) -> bool {
        if !self.method || (self.protocol && !self.connect) {
            return false;
        }
        let accepted = match connect {
            ConnectMethod::Reject => false,
            ConnectMethod::DeliverPlain => !self.protocol,
            ConnectMethod::Deliver => true,
        };
        if self.connect && !accepted {
            return false;
        }
        if self.connect && !self.protocol {
            return self.authority && !self.scheme && !self.path;
        }
        self.scheme && self.path
    }
}

/// Returns the value of a content-length, or `None` if it does not consist of digits or is
/// too large.
fn parse_length(value: &[u8]) -> Option<u64> {
    // The parser of the standard library also accepts a sign.
    let digits = value.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(value).ok().filter(|_| digits)?.parse().ok()
}

/// Whether a field is valid in any request, and as a trailer: neither a pseudo-header field
/// nor a connection-specific field of HTTP/1.1 (RFC 9113, section 8.2.2).
pub(crate) fn is_regular_field(name: &[u8], value: &[u8]) -> bool {
    match name {
        b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade" => {
            false
        }
        _ => is_field_name(name) && is_field_value(value),
    }
}

fn is_field_name(name: &[u8]) -> bool {
    /// Whether a byte is allowed in the name of a field: visible ASCII, neither upper case
    /// nor a colon.
    static ALLOWED: [bool; 256] = {
        let mut allowed = [false; 256];
        let mut byte = b'!';
        while byte <= b'~' {
            allowed[byte as usize] = byte != b':' && !byte.is_ascii_uppercase();
            byte += 1;
        }
        allowed
    };
    !name.is_empty() && name.iter().all(|byte| ALLOWED[usize::from(*byte)])
}

/// Whether `value` contains no NUL, CR or LF (RFC 9113, section 8.2.1). If a proxy
/// converted such a value to HTTP/1.1, CR and LF would start a new field.
fn is_field_value(value: &[u8]) -> bool {
    // Control characters are rare, and eight bytes are searched for them at once.
    let (words, rest) = value.as_chunks::<8>();
    let control =
        words.iter().any(|word| has_control(*word)) || rest.iter().any(|byte| *byte < b' ');
    !control || !value.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n'))
}

/// Whether a byte of `word` is less than 0x20.
fn has_control(word: [u8; 8]) -> bool {
    let word = u64::from_ne_bytes(word);
    // The subtraction sets the top bit of a byte if the byte is less than 0x20 (or at least
    // 0xa0, which `!word` excludes). A borrow can only come from such a byte.
    word.wrapping_sub(u64::from_ne_bytes([b' '; 8])) & !word & u64::from_ne_bytes([0x80; 8]) != 0
}

/// Whether `value` is a token (RFC 9110, section 5.6.2), as methods are.
fn is_token(value: &[u8]) -> bool {
    let allowed = |byte: &u8| {
        byte.is_ascii_alphanumeric()
            || matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~')
    };
    !value.is_empty() && value.iter().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::Fields;

    fn is_accepted(list: &[(&str, &str)], connect: ConnectMethod) -> bool {
        let mut request = HeadDecoder::<Fields>::new(Role::Server, Limits::default());
        for (name, value) in list {
            assert!(request.field(&(), name.as_bytes(), value.as_bytes()));
        }
        request.finish(connect).is_some()
    }

    #[test]
    fn malformed_requests_are_rejected() {
        let get = [(":method", "GET"), (":scheme", "http"), (":path", "/")];
        let with = |more: (&'static str, &'static str)| {
            is_accepted(&[&get[..], &[more]].concat(), ConnectMethod::Reject)
        };
        assert!(with(("accept", "text/plain")));
        assert!(!with((":path", "/again")), "repeated");
        assert!(!with((":status", "200")), "pseudo-header field of responses");
        assert!(!with(("connection", "close")));
        assert!(!with(("Accept", "text/plain")), "upper case");
        assert!(!with(("te", "gzip")));
        assert!(!with(("accept", "a\r\nx-remote-user: admin")));
        assert!(!with(("a:b", "c")));
        assert!(!with(("content-length", "x")));
        assert!(!is_accepted(&get[1..], ConnectMethod::Reject), "no method");
    }

    #[test]
    fn connect_is_delivered_only_if_configured() {
        let tunnel = [(":method", "CONNECT"), (":authority", "host:443")];
        let extended = [
            (":method", "CONNECT"),
            (":protocol", "websocket"),
            (":scheme", "https"),
            (":path", "/exec"),
            (":authority", "host"),
        ];
        for list in [&tunnel[..], &extended] {
            assert!(is_accepted(list, ConnectMethod::Deliver));
            assert!(!is_accepted(list, ConnectMethod::Reject));
        }
        assert!(is_accepted(&tunnel, ConnectMethod::DeliverPlain));
        assert!(!is_accepted(&extended, ConnectMethod::DeliverPlain));
    }

    #[test]
    fn field_values_may_contain_all_but_three_bytes() {
        for at in 0..20 {
            for byte in 0..=255_u8 {
                for fill in [b'a', 0xff, b' '] {
                    let mut value = [fill; 20];
                    value[at] = byte;
                    let forbidden = matches!(byte, 0 | b'\r' | b'\n');
                    assert_eq!(is_field_value(&value), !forbidden, "{byte:#x} at {at}");
                }
            }
        }
    }

    #[test]
    fn tokens_have_the_bytes_of_rfc_9110() {
        for byte in 0..=255_u8 {
            let allowed = byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            assert_eq!(is_token(&[b'G', byte]), allowed, "{byte:#x}");
        }
        assert!(!is_token(b""));
    }
}
