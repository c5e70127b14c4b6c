//! Reads history for unsynced watchers.

use mvcc::{Event, Span};
use watch::{Compacted, HistoryPosition, HistoryReader};

use crate::shared_store::SharedStore;

/// A read of the history visits at most this many events.
const READ_EVENTS: usize = 1024;

/// A read of the history ends after the event that brings its keys and values, with those of
/// the previous pairs, to this size in bytes.
const READ_BYTES: usize = 4 << 20;

impl HistoryReader for SharedStore {
    fn read(
        &self,
        span: &Span,
        from: HistoryPosition,
        to: i64,
        events: &mut Vec<Event>,
    ) -> Result<HistoryPosition, Compacted> {
        let store = self.store.read();
        let compacted = store.compacted();
        if from.revision < compacted {
            return Err(Compacted { revision: compacted });
        }
        let (mut next, mut bytes) = (from, 0);
        let range = store.events_since(from.revision).skip(from.visited);
        for (visited, event) in range.take_while(|event| event.revision() <= to).enumerate() {
            let is_full = visited >= READ_EVENTS || bytes >= READ_BYTES;
            if event.revision() > next.revision {
                next = HistoryPosition::start_of(event.revision());
                if is_full || from.visited > 0 {
                    return Ok(next);
                }
            }
            if is_full {
                return Ok(next);
            }
            next.visited += 1;
            if span.contains(event.record.key()) {
                bytes += event.pair_bytes();
                let mut event = event.clone();
                if event.revision() <= compacted {
                    // The history of this record is compacted. etcd also omits the
                    // previous pair then.
                    event.previous = None;
                }
                events.push(event);
            }
        }
        Ok(HistoryPosition::start_of(to + 1))
    }
}
