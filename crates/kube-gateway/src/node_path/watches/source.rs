//! The stream of events from an API server.

use std::fmt;

use anyhow::{Context, Result, bail, ensure};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::frame::EventType;
use super::wire::{Fields, unwrap_object};

/// Bytes of an event. The store accepts objects of 1.5 MB.
const MAX_EVENT: usize = 16 << 20;
/// The field `code` of a `Status`.
const STATUS_CODE: u64 = 6;

/// The events of a watch in protobuf.
pub struct Source {
    body: Incoming,
    buffer: BytesMut,
}

/// An event.
#[derive(PartialEq, Eq)]
pub struct Received {
    /// The type.
    pub event: EventType,
    /// The encoded object.
    pub object: Bytes,
}

/// Without the content: it may be a Secret.
impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Received({:?}, {} bytes)", self.event, self.object.len())
    }
}

impl Source {
    /// Reads the events in the body of an answer.
    pub fn new(body: Incoming) -> Source {
        Source { body, buffer: BytesMut::new() }
    }

    /// Waits for the next event; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Received>> {
        loop {
            if let Some(received) = take(&mut self.buffer)? {
                return Ok(Some(received));
            }
            match self.body.frame().await {
                Some(frame) => {
                    if let Ok(data) = frame?.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                None => return Ok(None),
            }
        }
    }
}

/// Takes the first event from a buffer, if all of it has arrived.
pub fn take(buffer: &mut BytesMut) -> Result<Option<Received>> {
    let Some((length, rest)) = buffer.split_at_checked(4) else { return Ok(None) };
    let length = u32::from_be_bytes(length.try_into().unwrap_or_default()) as usize;
    ensure!(length <= MAX_EVENT, "an event has {length} bytes");
    if rest.len() < length {
        return Ok(None);
    }
    let message = buffer.split_to(4 + length);
    parse(&message[4..]).context("an event is not a WatchEvent").map(Some)
}

fn parse(message: &[u8]) -> Option<Received> {
    let mut fields = Fields::new(message, 0..message.len())?;
    let name = fields.next()?.filter(|field| field.number == 1)?;
    let extension = fields.next()?.filter(|field| field.number == 2)?;
    let raw = Fields::new(message, extension.value)?.next()?.filter(|field| field.number == 1)?;
    let event = EventType::parse(&message[name.value])?;
    // A copy, so that an object does not keep the whole buffer.
    Some(Received { event, object: Bytes::copy_from_slice(&message[raw.value]) })
}

/// Returns the code of an encoded `Status`.
///
/// # Errors
/// If it is something else.
pub fn status_code(object: &[u8]) -> Result<u64> {
    let raw = unwrap_object(object).context("an error is not an object")?;
    let mut fields = Fields::new(object, raw).context("an error is not an object")?;
    while let Some(Some(field)) = fields.next() {
        if field.number == STATUS_CODE {
            return Ok(field.varint);
        }
    }
    bail!("an error has no code")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_path::watches::frame::Frame;

    #[test]
    fn events_are_taken_when_they_are_complete() {
        let frames = [
            Frame::new(EventType::Added, Bytes::from_static(b"object")),
            Frame::new(EventType::Deleted, Bytes::from(vec![1; 70_000])),
        ];
        let (mut buffer, mut received) = (BytesMut::new(), Vec::new());
        for byte in frames.iter().flat_map(|frame| [&frame.head, &frame.object]).flatten() {
            buffer.extend_from_slice(&[*byte]);
            received.extend(take(&mut buffer).unwrap());
        }
        let objects: Vec<_> = received.iter().map(|it| (it.event, it.object.clone())).collect();
        let [first, second] = frames;
        let expected = [(EventType::Added, first.object), (EventType::Deleted, second.object)];
        assert_eq!(objects, expected);
        assert!(buffer.is_empty());
    }

    #[test]
    fn other_bytes_are_refused() {
        for bytes in [&[0xff, 0, 0, 0][..], &[0, 0, 0, 2, 1, 1], &[0, 0, 0, 0]] {
            assert!(take(&mut BytesMut::from(bytes)).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn the_code_of_an_error_is_read() {
        assert_eq!(status_code(&Frame::expired(7, 9).object).unwrap(), 410);
        assert!(status_code(b"k8s\0").is_err());
    }
}
