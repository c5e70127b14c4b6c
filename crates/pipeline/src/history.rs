//! Reads history for unsynced watchers.

use mvcc::{Event, Span};
use watch::{Compacted, HistoryReader};

use crate::shared_store::SharedStore;

/// A read of the history ends after the revision that brings the values of its events to
/// this size in bytes.
const HISTORY_BYTES: usize = 4 << 20;

impl HistoryReader for SharedStore {
    fn read(
        &self,
        span: &Span,
        from: i64,
        to: i64,
        limit: usize,
        events: &mut Vec<Event>,
    ) -> Result<i64, Compacted> {
        let store = self.store.read();
        let compacted = store.compacted();
        if from < compacted {
            return Err(Compacted { revision: compacted });
        }
        let mut last = from - 1;
        let mut bytes = 0;
        let range = store.events_since(from).take_while(|event| event.revision() <= to);
        for (visited, event) in range.enumerate() {
            let is_full = visited >= limit || bytes >= HISTORY_BYTES;
            if is_full && event.revision() > last {
                return Ok(event.revision());
            }
            last = event.revision();
            if span.contains(event.record.key().as_bytes()) {
                bytes += event.record.value().len();
                let mut event = event.clone();
                if event.revision() <= compacted {
                    // The history of this record is compacted. etcd also omits the
                    // previous pair then.
                    event.previous = None;
                }
                events.push(event);
            }
        }
        Ok(to + 1)
    }
}
