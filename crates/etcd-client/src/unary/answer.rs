//! The answer to a unary call.

use bytes::{Buf, Bytes, BytesMut};
use http2::{Fields, RequestBuilder};

use super::error::CallError;

/// Bytes before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// What has arrived of an answer's body.
#[derive(Default)]
pub struct Answer(Bytes);

impl Answer {
    /// Adds bytes. Most answers come in one piece.
    pub fn push(&mut self, bytes: Bytes) {
        if self.0.is_empty() {
            self.0 = bytes;
            return;
        }
        let mut all = BytesMut::with_capacity(self.0.len() + bytes.len());
        all.extend_from_slice(&self.0);
        all.extend_from_slice(&bytes);
        self.0 = all.freeze();
    }

    /// The message, which must be the only one and complete.
    pub fn message(self) -> Result<Bytes, CallError> {
        let mut bytes = self.0;
        let length = bytes.first_chunk::<PREFIX>().filter(|prefix| prefix[0] == 0).map(|prefix| {
            u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize
        });
        if length.is_none_or(|length| bytes.len() != PREFIX + length) {
            return Err(CallError::Broken("the answer is not one message".into()));
        }
        bytes.advance(PREFIX);
        Ok(bytes)
    }
}

/// The head of an answer: why it has no message, if it says so.
#[derive(Default)]
pub struct Head {
    http_status: Option<String>,
    code: Option<String>,
    message: String,
}

impl RequestBuilder for Head {
    type Context = ();
    type Request = Option<CallError>;

    fn field(&mut self, (): &(), name: &[u8], value: &[u8]) {
        let text = || String::from_utf8_lossy(value).into_owned();
        match name {
            b":status" if value != b"200" => self.http_status = Some(text()),
            b"grpc-status" if value != b"0" => self.code = Some(text()),
            b"grpc-message" => self.message = text(),
            _ => {}
        }
    }

    fn build(self, (): &()) -> Option<CallError> {
        let Head { http_status, code, message } = self;
        let status = code.map(|code| status(&code, &message));
        status.or_else(|| {
            http_status.map(|code| CallError::Broken(format!("the HTTP status is {code}")))
        })
    }
}

/// Fails if trailers have a status other than OK, or none.
pub fn check_trailers(fields: &Fields) -> Result<(), CallError> {
    let text = |name| String::from_utf8_lossy(fields.get(name).unwrap_or_default()).into_owned();
    match fields.get(b"grpc-status") {
        Some(b"0") => Ok(()),
        Some(_) => Err(status(&text(b"grpc-status"), &text(b"grpc-message"))),
        None => Err(CallError::Broken("the answer has no status".into())),
    }
}

fn status(code: &str, message: &str) -> CallError {
    CallError::Status(format!("code {code}: {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&str, &str)]) -> Fields {
        pairs.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect()
    }

    fn head(pairs: &[(&str, &str)]) -> Option<CallError> {
        let mut head = Head::default();
        pairs.iter().for_each(|(name, value)| head.field(&(), name.as_bytes(), value.as_bytes()));
        head.build(&())
    }

    #[test]
    fn a_message_may_come_in_any_pieces() {
        let whole = [&[0, 0, 0, 1, 4][..], &[7; 260]].concat();
        for size in [1, 4, 5, 100, 1000] {
            let mut answer = Answer::default();
            whole.chunks(size).for_each(|piece| answer.push(Bytes::copy_from_slice(piece)));
            assert_eq!(answer.message().unwrap(), [7; 260][..]);
        }
    }

    #[test]
    fn anything_else_than_one_message_is_refused() {
        for bytes in [&b""[..], b"\0\0\0\0", b"\0\0\0\0\x01", b"\0\0\0\0\x00x", b"\x01\0\0\0\x01x"]
        {
            let mut answer = Answer::default();
            answer.push(Bytes::from_static(bytes));
            assert!(matches!(answer.message(), Err(CallError::Broken(_))), "{bytes:?}");
        }
    }

    #[test]
    fn statuses_are_those_of_the_server() {
        let ok = [(":status", "200"), ("content-type", "application/grpc")];
        assert_eq!(head(&ok), None);
        let refused = CallError::Status("code 7: no".into());
        let error = [("grpc-status", "7"), ("grpc-message", "no")];
        assert_eq!(head(&[&ok[..], &error].concat()), Some(refused.clone()));
        assert!(matches!(head(&[(":status", "503")]), Some(CallError::Broken(_))));
        assert_eq!(check_trailers(&fields(&[("grpc-status", "0")])), Ok(()));
        assert_eq!(check_trailers(&fields(&error)), Err(refused));
        assert!(matches!(check_trailers(&fields(&[])), Err(CallError::Broken(_))));
    }
}
