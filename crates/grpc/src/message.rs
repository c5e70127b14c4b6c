//! Messages of gRPC: a length, and that many bytes of protobuf.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

use crate::status::{Code, Status};

/// What comes before each message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;
/// Memory that is set aside before a message's bytes are there, at most.
const EAGER_BYTES: usize = 64 << 10;

/// A message as it is sent, its prefix included. Of what follows the beginning,
/// many payloads may share the bytes.
pub struct Payload {
    pub(crate) head: Bytes,
    pub(crate) shared: Bytes,
    /// What follows them, of a message too large to be there at once.
    pub(crate) rest: Option<Pieces>,
}

/// The encoding of a large message, made piece by piece while it is sent.
pub struct Pieces {
    pub(crate) len: usize,
    pub(crate) pieces: Box<dyn Iterator<Item = Bytes> + Send>,
}

impl Payload {
    /// `message`, encoded.
    pub fn of(message: &impl Message) -> Self {
        Payload::concatenated(message, Bytes::new())
    }

    /// The message whose encoding is that of `message` followed by `shared`:
    /// protobuf lets the fields of a message be laid side by side.
    pub fn concatenated(message: &impl Message, shared: Bytes) -> Self {
        let len = message.encoded_len();
        let mut head = BytesMut::with_capacity(PREFIX_BYTES + len);
        head.put_u8(0);
        head.put_u32((len + shared.len()) as u32);
        message.encode_raw(&mut head);
        Payload { head: head.freeze(), shared, rest: None }
    }

    /// The message whose encoding is `pieces`, `len` bytes in all. Each is made when
    /// it is about to be sent, so that a large answer takes neither much memory
    /// nor, when it is given back, a long time.
    pub fn in_pieces(len: usize, pieces: impl Iterator<Item = Bytes> + Send + 'static) -> Self {
        let mut head = BytesMut::with_capacity(PREFIX_BYTES);
        head.put_u8(0);
        head.put_u32(len as u32);
        let rest = Some(Pieces { len, pieces: Box::new(pieces) });
        Payload { head: head.freeze(), shared: Bytes::new(), rest }
    }

    /// Bytes, the prefix included.
    pub fn len(&self) -> usize {
        let rest = self.rest.as_ref().map_or(0, |rest| rest.len);
        self.head.len() + self.shared.len() + rest
    }

    /// Never: there is a prefix.
    pub fn is_empty(&self) -> bool {
        false
    }
}

/// What a handler may answer with: a message, or one already encoded.
pub trait Reply: Send + 'static {
    /// The form in which it is sent.
    fn into_payload(self) -> Payload;
}

impl<M: Message + 'static> Reply for M {
    fn into_payload(self) -> Payload {
        Payload::of(&self)
    }
}

/// A reply that a handler encoded itself.
pub struct Encoded(pub Payload);

impl Reply for Encoded {
    fn into_payload(self) -> Payload {
        self.0
    }
}

impl Encoded {
    /// Encodes now, on whatever thread this is.
    pub fn of(message: &impl Message) -> Self {
        Encoded(Payload::of(message))
    }
}

/// Bytes of messages that are unfinished or unread, over all connections, and how
/// many there may be.
#[derive(Debug)]
pub struct Budget {
    used: AtomicUsize,
    limit: usize,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Budget { used: AtomicUsize::new(0), limit })
    }
}

/// A share of the budget, returned when it is dropped.
#[derive(Debug)]
struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Share {
    fn grow(&mut self, bytes: usize) -> Result<(), Status> {
        let used = self.budget.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if used > self.budget.limit {
            self.budget.used.fetch_sub(bytes, Ordering::Relaxed);
            return Err(Status::resource_exhausted("grpc: too many unread messages"));
        }
        self.bytes += bytes;
        Ok(())
    }
}

/// A message that is complete and has yet to be read, and its share of the budget.
#[derive(Debug)]
pub(crate) struct Unread {
    pub(crate) bytes: Bytes,
    _share: Option<Share>,
}

impl Unread {
    /// What it takes of a stream's window.
    pub(crate) fn framed_len(&self) -> usize {
        PREFIX_BYTES + self.bytes.len()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Puts the messages of a stream together, which frames may have cut anywhere.
#[derive(Default)]
pub(crate) struct Assembler {
    prefix: [u8; PREFIX_BYTES],
    prefix_len: usize,
    /// A message whose prefix is complete and whose bytes are not.
    partial: Option<Partial>,
}

struct Partial {
    bytes: BytesMut,
    len: usize,
    share: Share,
}

impl Assembler {
    /// Takes the next bytes of the stream and hands every message that they
    /// complete to `found`. With `wait` they are not read at once, and count until
    /// they are.
    pub(crate) fn push(
        &mut self,
        mut data: &[u8],
        limits: &Limits,
        wait: bool,
        mut found: impl FnMut(Unread),
    ) -> Result<(), Status> {
        while !data.is_empty() {
            if let Some(partial) = &mut self.partial {
                let taken = data.len().min(partial.len - partial.bytes.len());
                partial.share.grow(taken)?;
                partial.bytes.extend_from_slice(&data[..taken]);
                data = &data[taken..];
                if partial.bytes.len() == partial.len
                    && let Some(partial) = self.partial.take()
                {
                    let share = wait.then_some(partial.share);
                    found(Unread { bytes: partial.bytes.freeze(), _share: share });
                }
                continue;
            }
            let taken = data.len().min(PREFIX_BYTES - self.prefix_len);
            self.prefix[self.prefix_len..][..taken].copy_from_slice(&data[..taken]);
            self.prefix_len += taken;
            data = &data[taken..];
            if self.prefix_len == PREFIX_BYTES {
                self.prefix_len = 0;
                data = self.begin(data, limits, wait, &mut found)?;
            }
        }
        Ok(())
    }

    /// Starts a message whose prefix is there; what of `data` is left.
    fn begin<'a>(
        &mut self,
        data: &'a [u8],
        limits: &Limits,
        wait: bool,
        found: &mut impl FnMut(Unread),
    ) -> Result<&'a [u8], Status> {
        let [compressed, len @ ..] = self.prefix;
        let len = u32::from_be_bytes(len) as usize;
        if compressed != 0 {
            return Err(Status::internal(
                "grpc: compressed flag set with identity or empty encoding",
            ));
        }
        if len > limits.message_bytes {
            let text = "grpc: received message larger than max";
            let text = format!("{text} ({len} vs. {})", limits.message_bytes);
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        // Almost always: all of it is here.
        let mut share = Share { budget: limits.budget.clone(), bytes: 0 };
        if let Some((message, rest)) = data.split_at_checked(len) {
            if wait {
                share.grow(PREFIX_BYTES + len)?;
            }
            let bytes = Bytes::copy_from_slice(message);
            found(Unread { bytes, _share: wait.then_some(share) });
            return Ok(rest);
        }
        let bytes = BytesMut::with_capacity(len.min(EAGER_BYTES));
        self.partial = Some(Partial { bytes, len, share });
        Ok(data)
    }

    /// Whether the stream may end here.
    pub(crate) fn is_between_messages(&self) -> bool {
        self.partial.is_none() && self.prefix_len == 0
    }
}

/// How much a client may send.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) message_bytes: usize,
    pub(crate) budget: Arc<Budget>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits(message_bytes: usize) -> Limits {
        Limits { message_bytes, budget: Budget::new(1000) }
    }

    fn wire(message: &[u8]) -> Vec<u8> {
        [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat()
    }

    proptest! {
        #[test]
        fn cuts_do_not_matter(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..6),
            cuts in prop::collection::vec(1_usize..20, 0..40),
        ) {
            let stream: Vec<u8> = messages.iter().flat_map(|message| wire(message)).collect();
            let limits = limits(100);
            let (mut assembler, mut found) = (Assembler::default(), Vec::new());
            let mut rest = &stream[..];
            for cut in cuts.into_iter().chain([usize::MAX]) {
                let (piece, left) = rest.split_at(cut.min(rest.len()));
                let mut keep = |message: Unread| found.push(message.bytes.to_vec());
                assembler.push(piece, &limits, false, &mut keep).unwrap();
                rest = left;
            }
            prop_assert_eq!(found, messages);
            prop_assert!(assembler.is_between_messages());
            drop(assembler);
            prop_assert_eq!(limits.budget.used.load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn what_is_too_large_or_compressed_is_refused() {
        let refusal = |data: &[u8], limits: &Limits| {
            Assembler::default().push(data, limits, true, |_| ()).unwrap_err().to_string()
        };
        let large = refusal(&wire(&[0; 101]), &limits(100));
        assert_eq!(
            large,
            "ResourceExhausted: grpc: received message larger than max (101 vs. 100)"
        );
        assert!(refusal(&[1, 0, 0, 0, 0], &limits(100)).starts_with("Internal: grpc: compressed"));
        let many = refusal(&wire(&[0; 2000])[..1500], &limits(5000));
        assert!(many.starts_with("ResourceExhausted: grpc: too many unread"), "{many}");
    }
}
