//! Messages that are sent: a prefix, which contains the length, and the protobuf
//! encoding.

use bytes::{BufMut, Bytes, BytesMut};
use http2::Data;
use prost::Message;

use crate::assembler::PREFIX_BYTES;

/// An encoded message with its prefix. Several payloads may share the second part of
/// their messages.
pub struct Payload {
    /// The prefix and the first part of the message.
    head: Bytes,
    /// The second part of the message.
    shared: Bytes,
    /// The last part of the message, which is encoded while it is sent.
    rest: Option<Data>,
}

impl Payload {
    /// Encodes `message`.
    pub fn encode(message: &impl Message) -> Self {
        Payload::concatenated(message, Bytes::new())
    }

    /// Encodes `message` and appends the encoded fields `shared`. In protobuf, the
    /// concatenation of two encodings is the encoding of the merged message.
    pub fn concatenated(message: &impl Message, shared: Bytes) -> Self {
        let len = message.encoded_len();
        let mut head = BytesMut::with_capacity(PREFIX_BYTES + len);
        head.put_u8(0);
        head.put_u32((len + shared.len()) as u32);
        message.encode_raw(&mut head);
        Payload { head: head.freeze(), shared, rest: None }
    }

    /// Creates a payload from the pieces of an encoded message, which have `len` bytes in
    /// total. `held_bytes` is the approximate memory of `pieces` until it is dropped. A piece is
    /// produced just before it is sent, so that a large response neither occupies much memory nor
    /// takes long to free. If `pieces` ends early, the call is reset.
    pub fn in_pieces(
        len: usize,
        held_bytes: usize,
        pieces: impl Iterator<Item = Bytes> + Send + 'static,
    ) -> Self {
        let mut head = BytesMut::with_capacity(PREFIX_BYTES);
        head.put_u8(0);
        head.put_u32(len as u32);
        let rest = Some(Data::Lazy { len, held_bytes, chunks: Box::new(pieces) });
        Payload { head: head.freeze(), shared: Bytes::new(), rest }
    }

    /// Size in bytes, including the prefix.
    pub fn len(&self) -> usize {
        let rest = self.rest.as_ref().map_or(0, Data::len);
        self.head.len() + self.shared.len() + rest
    }

    /// Always false, because every payload has a prefix.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The parts in order.
    pub(crate) fn into_data(self) -> impl Iterator<Item = Data> {
        [self.head.into(), self.shared.into()].into_iter().chain(self.rest)
    }
}

/// The reply of a handler: a message, or an [`Encoded`] one.
pub trait Reply: Send + 'static {
    /// Size of the message in bytes if it is not encoded yet; 0 if it is. A large message is
    /// encoded only when the connection may hold it.
    fn unencoded_len(&self) -> usize;

    /// Converts the reply to the payload to send.
    fn into_payload(self) -> Payload;
}

impl<M: Message + 'static> Reply for M {
    fn unencoded_len(&self) -> usize {
        self.encoded_len()
    }

    fn into_payload(self) -> Payload {
        Payload::encode(&self)
    }
}

/// A reply that the handler has encoded.
pub struct Encoded(pub Payload);

impl Reply for Encoded {
    fn unencoded_len(&self) -> usize {
        0
    }

    fn into_payload(self) -> Payload {
        self.0
    }
}

impl Encoded {
    /// Encodes `message` on the current thread.
    pub fn new(message: &impl Message) -> Self {
        Encoded(Payload::encode(message))
    }
}
