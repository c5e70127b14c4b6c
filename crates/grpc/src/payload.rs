//! Messages that are sent: a prefix with the length, and protobuf.

use bytes::{BufMut, Bytes, BytesMut};
use http2::Data;
use prost::Message;

use crate::assembler::PREFIX_BYTES;

/// An encoded message with its prefix. Several payloads may share the bytes that follow
/// the first part.
pub struct Payload {
    /// The prefix and the first part.
    head: Bytes,
    shared: Bytes,
    /// The rest of a message that is encoded while it is sent.
    rest: Option<Data>,
}

impl Payload {
    /// Encodes `message`.
    pub fn of(message: &impl Message) -> Self {
        Payload::concatenated(message, Bytes::new())
    }

    /// The message that is encoded as `message` followed by `shared`. Protobuf messages
    /// are merged by concatenation of their encodings.
    pub fn concatenated(message: &impl Message, shared: Bytes) -> Self {
        let len = message.encoded_len();
        let mut head = BytesMut::with_capacity(PREFIX_BYTES + len);
        head.put_u8(0);
        head.put_u32((len + shared.len()) as u32);
        message.encode_raw(&mut head);
        Payload { head: head.freeze(), shared, rest: None }
    }

    /// The message whose encoding is the concatenation of `pieces`, `len` bytes in all.
    /// A piece is produced when it is about to be sent, so that a large response neither
    /// occupies much memory nor takes long to free.
    pub fn in_pieces(len: usize, pieces: impl Iterator<Item = Bytes> + Send + 'static) -> Self {
        let mut head = BytesMut::with_capacity(PREFIX_BYTES);
        head.put_u8(0);
        head.put_u32(len as u32);
        let rest = Some(Data::Lazy { len, chunks: Box::new(pieces) });
        Payload { head: head.freeze(), shared: Bytes::new(), rest }
    }

    /// Size in bytes, prefix included.
    pub fn len(&self) -> usize {
        let rest = self.rest.as_ref().map_or(0, Data::len);
        self.head.len() + self.shared.len() + rest
    }

    /// Always false, because of the prefix.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The parts in order.
    pub(crate) fn into_data(self) -> impl Iterator<Item = Data> {
        [self.head.into(), self.shared.into()].into_iter().chain(self.rest)
    }
}

/// Result of a handler: a message, or one that is already encoded.
pub trait Reply: Send + 'static {
    /// The payload to send.
    fn into_payload(self) -> Payload;
}

impl<M: Message + 'static> Reply for M {
    fn into_payload(self) -> Payload {
        Payload::of(&self)
    }
}

/// A reply that the handler has encoded.
pub struct Encoded(pub Payload);

impl Reply for Encoded {
    fn into_payload(self) -> Payload {
        self.0
    }
}

impl Encoded {
    /// Encodes `message` on the current thread.
    pub fn of(message: &impl Message) -> Self {
        Encoded(Payload::of(message))
    }
}
