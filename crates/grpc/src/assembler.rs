//! Assembles messages from the body of a request.

use std::sync::Arc;

use bytes::{Buf, Bytes};

use crate::budget::{Account, Share};
use crate::status::{Code, Status};

/// Size in bytes of the prefix of each message: the compressed flag and the length.
pub(crate) const PREFIX_BYTES: usize = 5;
/// The memory of a message without its bytes: its entry in a queue and its allocation.
const MESSAGE_OVERHEAD_BYTES: usize = 64;

/// A complete message that the handler has not read.
#[derive(Debug)]
pub(crate) struct UnreadMessage {
    pub(crate) bytes: Bytes,
    /// Counts the message against the budget until it is dropped.
    share: Option<Share>,
}

impl UnreadMessage {
    /// Returns the message, and what it uses of the budget.
    pub(crate) fn into_parts(self) -> (Bytes, Option<Share>) {
        (self.bytes, self.share)
    }

    /// Bytes of the message that do not count against the budget.
    pub(crate) fn uncounted_bytes(&self) -> usize {
        if self.share.is_some() { 0 } else { self.bytes.len() }
    }

    /// Size of the message on the stream in bytes, including the prefix.
    pub(crate) fn framed_len(&self) -> usize {
        PREFIX_BYTES + self.bytes.len()
    }
}

/// Assembles the messages of one stream. Frame boundaries may be anywhere in a message.
#[derive(Default)]
pub(crate) struct Assembler {
    /// The prefix of the next message, of which `prefix_len` bytes have arrived.
    prefix: [u8; PREFIX_BYTES],
    prefix_len: usize,
    /// A message whose prefix has arrived completely.
    partial: Option<PartialMessage>,
}

struct PartialMessage {
    /// The bytes that have arrived.
    bytes: Vec<u8>,
    /// Length of the complete message in bytes.
    len: usize,
    share: Share,
}

impl PartialMessage {
    fn new(len: usize, account: &Arc<Account>) -> Result<Self, Status> {
        let mut share = Share::new(account.clone());
        share.grow(MESSAGE_OVERHEAD_BYTES)?;
        Ok(PartialMessage { bytes: Vec::new(), len, share })
    }

    /// Appends bytes, at most as many as are missing. Memory is allocated as bytes arrive: a
    /// client can announce a long message and send nothing of it.
    fn append(&mut self, bytes: &[u8]) -> Result<(), Status> {
        let (needed, capacity) = (self.bytes.len() + bytes.len(), self.bytes.capacity());
        if needed > capacity {
            let capacity_wanted = needed.max(2 * capacity).min(self.len);
            self.share.grow(capacity_wanted - capacity)?;
            self.bytes.reserve_exact(capacity_wanted - self.bytes.len());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }
}

impl Assembler {
    /// Adds the next bytes of the stream, and passes every message that they complete to
    /// `deliver`. Incomplete messages count against the budget. If `queued` is set, complete
    /// messages also count against it until they are dropped. The caller sets `queued` if
    /// messages may wait for the handler.
    pub(crate) fn push(
        &mut self,
        mut data: Bytes,
        limits: &MessageLimits,
        queued: bool,
        mut deliver: impl FnMut(UnreadMessage),
    ) -> Result<(), Status> {
        while !data.is_empty() {
            if let Some(partial) = &mut self.partial {
                let taken = data.len().min(partial.len - partial.bytes.len());
                partial.append(&data[..taken])?;
                data.advance(taken);
                if partial.bytes.len() == partial.len
                    && let Some(partial) = self.partial.take()
                {
                    let share = queued.then_some(partial.share);
                    deliver(UnreadMessage { bytes: partial.bytes.into(), share });
                }
                continue;
            }
            let taken = data.len().min(PREFIX_BYTES - self.prefix_len);
            self.prefix[self.prefix_len..][..taken].copy_from_slice(&data[..taken]);
            self.prefix_len += taken;
            data.advance(taken);
            if self.prefix_len == PREFIX_BYTES {
                self.prefix_len = 0;
                data = self.start_message(data, limits, queued, &mut deliver)?;
            }
        }
        Ok(())
    }

    /// Starts the message whose prefix has arrived. `data` is the data after the prefix. Delivers
    /// the message if `data` contains all of the message. Returns the unused rest of `data`.
    fn start_message(
        &mut self,
        mut data: Bytes,
        limits: &MessageLimits,
        queued: bool,
        deliver: &mut impl FnMut(UnreadMessage),
    ) -> Result<Bytes, Status> {
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
        // In most cases `data` contains the whole message.
        if data.len() >= len {
            let mut share = None;
            if queued {
                share
                    .insert(Share::new(limits.account.clone()))
                    .grow(MESSAGE_OVERHEAD_BYTES + len)?;
            }
            let bytes = match data.len() == len {
                true => std::mem::take(&mut data),
                // Copy the message. A slice of `data` would keep the whole buffer in memory.
                false => {
                    let bytes = Bytes::copy_from_slice(&data[..len]);
                    data.advance(len);
                    bytes
                }
            };
            deliver(UnreadMessage { bytes, share });
            return Ok(data);
        }
        self.partial = Some(PartialMessage::new(len, &limits.account)?);
        Ok(data)
    }

    /// Whether the last message is complete, so that the stream may end.
    pub(crate) fn is_between_messages(&self) -> bool {
        self.partial.is_none() && self.prefix_len == 0
    }
}

/// The limits on received messages.
#[derive(Clone, Debug)]
pub(crate) struct MessageLimits {
    /// Maximum size of a message in bytes, without the prefix.
    pub(crate) message_bytes: usize,
    /// What the messages of the connection use of the budget.
    pub(crate) account: Arc<Account>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::budget::Budget;

    fn limits(message_bytes: usize) -> MessageLimits {
        MessageLimits { message_bytes, account: Arc::new(Account::new(Budget::new(1000))) }
    }

    fn wire(message: &[u8]) -> Vec<u8> {
        [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat()
    }

    proptest! {
        #[test]
        fn messages_do_not_depend_on_frame_boundaries(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..6),
            cuts in prop::collection::vec(1_usize..20, 0..40),
        ) {
            let stream: Vec<u8> = messages.iter().flat_map(|message| wire(message)).collect();
            let limits = limits(100);
            let (mut assembler, mut found) = (Assembler::default(), Vec::new());
            let mut rest = &stream[..];
            for cut in cuts.into_iter().chain([usize::MAX]) {
                let (piece, left) = rest.split_at(cut.min(rest.len()));
                let mut keep = |message: UnreadMessage| found.push(message.bytes.to_vec());
                assembler.push(Bytes::copy_from_slice(piece), &limits, false, &mut keep).unwrap();
                rest = left;
            }
            prop_assert_eq!(found, messages);
            prop_assert!(assembler.is_between_messages());
            drop(assembler);
            prop_assert_eq!(limits.account.used(), 0);
        }
    }

    #[test]
    fn large_compressed_and_too_many_messages_are_rejected() {
        let refusal = |data: &[u8], limits: &MessageLimits| {
            Assembler::default()
                .push(Bytes::copy_from_slice(data), limits, true, |_| ())
                .unwrap_err()
                .to_string()
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

    /// Empty messages have a length of 5 bytes on the stream, and occupy much more memory.
    #[test]
    fn empty_messages_that_wait_count() {
        let (limits, mut waiting) = (limits(100), Vec::new());
        let messages = Bytes::from(vec![0; 100 * PREFIX_BYTES]);
        let pushed =
            Assembler::default().push(messages, &limits, true, |message| waiting.push(message));
        assert!(pushed.is_err(), "{} messages wait with a budget of 1,000 bytes", waiting.len());
        assert!(limits.account.used() >= waiting.len() * size_of::<UnreadMessage>());
    }

    /// A client announces a long message and sends the first byte of it.
    #[test]
    fn memory_is_allocated_as_bytes_arrive() {
        let (limits, mut assembler) = (limits(1 << 20), Assembler::default());
        let start = wire(&[7; 1 << 20])[..PREFIX_BYTES + 1].to_vec();
        assembler.push(start.into(), &limits, true, |_| ()).unwrap();
        let reserved = assembler.partial.as_ref().unwrap().bytes.capacity();
        assert!(reserved <= limits.account.used(), "{reserved} bytes are reserved");
    }
}
