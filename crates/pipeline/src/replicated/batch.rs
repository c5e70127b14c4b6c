//! Several messages between members in one: a message has costs of its own on both sides. Each of them is
//! preceded by its length of 4 bytes.

use bytes::{Buf, BufMut, Bytes};

use super::wire_format::WireError;

/// A batch of about this size in bytes is sent, so that the first of its messages do not wait for the others.
const FULL_BYTES: usize = 256 << 10;

/// Messages that are sent together.
#[derive(Default)]
pub(super) struct Batch(Vec<u8>);

impl Batch {
    /// Adds a message, which `write` appends to the buffer.
    pub(super) fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let Batch(buf) = self;
        if buf.is_empty() {
            buf.push(BATCH);
        }
        let start = buf.len();
        buf.put_u32_le(0);
        write(buf);
        let length = u32::try_from(buf.len() - start - 4).expect("a message is shorter than 4 GiB");
        buf[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }

    /// Whether the batch should be sent before more is added.
    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= FULL_BYTES
    }

    /// Takes the message with all of them; `None` if there are none.
    pub(super) fn take(&mut self) -> Option<Bytes> {
        let buf = std::mem::take(&mut self.0);
        (!buf.is_empty()).then(|| buf.into())
    }
}

/// The kind of a message that contains others. It never changes.
pub(super) const BATCH: u8 = 8;

/// The messages of a batch, or a single message.
pub(super) struct Messages {
    single: Option<Bytes>,
    rest: Bytes,
}

impl Messages {
    /// Returns the messages in `body`.
    pub(super) fn of(mut body: Bytes) -> Messages {
        match body.first() {
            Some(&BATCH) => {
                body.advance(1);
                Messages { single: None, rest: body }
            }
            _ => Messages { single: Some(body), rest: Bytes::new() },
        }
    }
}

impl Iterator for Messages {
    type Item = Result<Bytes, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(single) = self.single.take() {
            return Some(Ok(single));
        }
        if self.rest.is_empty() {
            return None;
        }
        let length = self.rest.try_get_u32_le().ok().map(|length| length as usize);
        Some(match length.filter(|length| *length <= self.rest.len()) {
            Some(length) => Ok(self.rest.split_to(length)),
            None => {
                self.rest.clear();
                Err(WireError::Truncated)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_written_and_nothing_else_is() {
        let mut batch = Batch::default();
        assert!(batch.take().is_none());
        let messages = [&b"first"[..], b"", b"third"];
        messages.iter().for_each(|message| batch.push(|buf| buf.extend_from_slice(message)));
        let body = batch.take().unwrap();
        assert!(batch.take().is_none());
        let read: Vec<_> = Messages::of(body.clone()).map(Result::unwrap).collect();
        assert_eq!(read, messages);
        for cut in 2..body.len() {
            let read: Vec<_> = Messages::of(body.slice(..cut)).collect();
            assert!(read.len() <= messages.len());
            let complete =
                read.iter().flatten().zip(messages).all(|(read, message)| read == message);
            assert!(complete, "{cut}");
        }
        let single: Vec<_> = Messages::of(b"single".to_vec().into()).map(Result::unwrap).collect();
        assert_eq!(single, [&b"single"[..]]);
        batch.push(|buf| buf.resize(buf.len() + FULL_BYTES, 7));
        assert!(batch.is_full());
    }
}
