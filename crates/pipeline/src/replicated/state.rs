//! The whole state of a member, as it is sent to another one: parts, each with a length of 4 bytes
//! before it, and an empty part at the end. A part has effects, as in a snapshot file.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mvcc::{Effects, SnapshotCursor, Store};

use crate::journal::encode;
use crate::pace::{STEP_ENTRIES, yield_thread};
use crate::pins::Pin;
use crate::shared_store::SharedStore;
use crate::store_builder::StoreBuilder;

/// Maximum size of a part in bytes. A step of a snapshot has about 1 MiB, unless a value is larger.
const MAX_PART_BYTES: u64 = 1 << 30;

/// A snapshot that was started: the state of the store at this moment.
pub(super) struct StateSnapshot {
    pub(super) cursor: SnapshotCursor,
    /// The first effects.
    pub(super) effects: Effects,
    /// Keeps the history that the cursor still has to read.
    pub(super) pin: Pin,
}

impl StateSnapshot {
    /// Starts a snapshot of the current state, which must be the published one.
    pub(super) fn start(shared: &SharedStore) -> StateSnapshot {
        let store = shared.store.read();
        let mut effects = Effects::new();
        let cursor = SnapshotCursor::new(&store, &mut effects);
        let pin = Pin::new(&shared.pins, cursor.oldest_needed_revision(), None);
        StateSnapshot { cursor, effects, pin }
    }
}

/// Reads the state as it is sent.
pub(super) struct StateReader {
    shared: Arc<SharedStore>,
    snapshot: StateSnapshot,
    part: Vec<u8>,
    /// Number of bytes of the part that were read.
    read: usize,
    has_ended: bool,
}

impl StateReader {
    pub(super) fn new(shared: Arc<SharedStore>, snapshot: StateSnapshot) -> StateReader {
        StateReader { shared, snapshot, part: Vec::new(), read: 0, has_ended: false }
    }

    /// Makes the next part; the last one is empty.
    fn next_part(&mut self) -> io::Result<()> {
        let StateSnapshot { cursor, effects, pin } = &mut self.snapshot;
        let mut more = true;
        while effects.is_empty() && more {
            if self.shared.stopping.load(Ordering::Relaxed) {
                return Err(io::Error::other("the member is stopping"));
            }
            let store = self.shared.store.read();
            pin.check(&store).map_err(io::Error::other)?;
            more = cursor.step(&store, STEP_ENTRIES, effects);
            drop(store);
            yield_thread();
        }
        let mut payload = Vec::new();
        encode(effects, &mut payload);
        effects.clear();
        self.part.clear();
        self.part.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        self.part.append(&mut payload);
        self.read = 0;
        self.has_ended = !more && self.part.len() == 4;
        Ok(())
    }
}

impl Read for StateReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.read == self.part.len() {
            if self.has_ended {
                return Ok(0);
            }
            self.next_part()?;
        }
        let count = buf.len().min(self.part.len() - self.read);
        buf[..count].copy_from_slice(&self.part[self.read..self.read + count]);
        self.read += count;
        Ok(count)
    }
}

/// Builds a store from the state that another member sends.
///
/// # Errors
/// If the state is incomplete or malformed.
pub(super) fn read_state(mut content: impl Read) -> io::Result<Store> {
    let mut builder = StoreBuilder::default();
    loop {
        let mut length = [0; 4];
        content.read_exact(&mut length)?;
        let length = u64::from(u32::from_le_bytes(length));
        if length == 0 {
            break;
        }
        let mut part = Vec::new();
        (&mut content).take(length.min(MAX_PART_BYTES)).read_to_end(&mut part)?;
        if part.len() as u64 != length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        builder.add(&part).map_err(|error| invalid(format!("{error:?}")))?;
    }
    // The transport verifies the checksum at the end.
    match content.read(&mut [0])? {
        0 => Ok(builder.finish()),
        _ => Err(invalid("bytes follow the state")),
    }
}

fn invalid(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use etcdpb::Record;
    use mvcc::Effect;

    use super::*;
    use crate::PipelineOptions;

    #[test]
    fn a_state_is_read_as_sent() {
        let mut store = Store::default();
        for number in 0..3000 {
            let key = format!("key{number:04}");
            let record = Record::put(key.as_bytes(), b"value", number + 2, number + 2, 1, 7);
            store.replay(Effect::Write(record)).unwrap();
        }
        let lease = Effect::LeaseGranted { id: 9, ttl_seconds: 10, at_ms: Some(5) };
        store.replay(lease).unwrap();
        store.replay(Effect::Compacted { revision: 1000 }).unwrap();
        let shared = Arc::new(SharedStore::new(store, &PipelineOptions::default()));
        let reader = || StateReader::new(shared.clone(), StateSnapshot::start(&shared));
        let copy = read_state(reader()).unwrap();
        let original = shared.store.read();
        assert_eq!(copy.revision(), original.revision());
        assert_eq!(copy.compacted(), original.compacted());
        assert_eq!(copy.stats().live_keys, 3000);
        assert_eq!(copy.lease(9).map(|lease| lease.ttl_seconds), Some(10));
        drop(original);
        let mut bytes = Vec::new();
        reader().read_to_end(&mut bytes).unwrap();
        assert!(read_state(&bytes[..bytes.len() - 1]).is_err());
        assert!(read_state(&bytes[..1000]).is_err());
        bytes.push(0);
        assert!(read_state(&bytes[..]).is_err());
    }
}
