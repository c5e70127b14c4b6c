//! Reading without the queue: ranges, transactions that only read, history.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use etcdpb::rpc::{RangeRequest, RangeResponse, TxnRequest, TxnResponse};
use mvcc::{Event, RangeCursor, Span};
use watch::{History, HistoryError};

use crate::pipeline::Shared;
use crate::{Error, Pipeline};

/// Keys visited while writers wait.
const KEYS_A_STEP: usize = 1000;

/// A range, begun.
pub enum RangeRead {
    /// It was small: here it is.
    Done(RangeResponse),
    /// It is large: the rest takes a while, and should not be waited for on a
    /// thread that others need.
    Rest(Rest),
}

/// The rest of a large range, at the revision at which it began.
pub struct Rest {
    cursor: RangeCursor,
    pin: Pin,
}

/// Keeps the history of a revision readable while it lives.
pub struct Pin {
    shared: Arc<Shared>,
    revision: i64,
}

impl Pin {
    /// Call it with the store locked, so that nothing is collected in between.
    pub(crate) fn new(shared: &Arc<Shared>, revision: i64) -> Self {
        *shared.pins.lock().entry(revision).or_default() += 1;
        Pin { shared: shared.clone(), revision }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pins = self.shared.pins.lock();
        let count = pins.get_mut(&self.revision).expect("counted when made");
        *count -= 1;
        if *count == 0 {
            pins.remove(&self.revision);
        }
    }
}

impl Pipeline {
    /// Reads keys, linearizably: whatever was acknowledged before the call is
    /// seen.
    pub fn range(&self, request: &RangeRequest) -> Result<RangeRead, Error> {
        let shared = self.shared();
        let store = shared.store.read();
        let current = shared.published.load(Ordering::Acquire);
        let mut cursor = RangeCursor::new(&store, request, current, true)?;
        if cursor.step(&store, KEYS_A_STEP) {
            drop(store);
            return Ok(RangeRead::Done(cursor.finish()));
        }
        let pin = Pin::new(shared, cursor.revision());
        Ok(RangeRead::Rest(Rest { cursor, pin }))
    }

    /// Answers a transaction for which [`mvcc::is_read_only`] holds.
    pub fn read_txn(&self, request: &TxnRequest) -> Result<TxnResponse, Error> {
        let shared = self.shared();
        let store = shared.store.read();
        let current = shared.published.load(Ordering::Acquire);
        Ok(store.read_txn(request, current)?)
    }

    /// Reads a range page by page, all at one revision, in key order.
    pub fn pages(&self, request: RangeRequest, page_keys: usize) -> Result<Pages, Error> {
        let shared = self.shared();
        let store = shared.store.read();
        let current = shared.published.load(Ordering::Acquire);
        let revision = RangeCursor::new(&store, &request, current, false)?.revision();
        let left = if request.limit > 0 { request.limit } else { i64::MAX };
        let pin = Pin::new(shared, revision);
        Ok(Pages {
            request,
            current,
            left,
            page_keys: page_keys as i64,
            found: 0,
            done: false,
            pin,
        })
    }
}

impl Rest {
    /// Reads to the end, letting writers in between.
    pub fn finish(mut self) -> RangeResponse {
        while !self.cursor.step(&self.pin.shared.store.read(), KEYS_A_STEP) {}
        self.cursor.finish()
    }
}

/// The pages of a range. Header, `more` and the total count are on the last.
pub struct Pages {
    request: RangeRequest,
    /// What the header says: the newest revision when the range began.
    current: i64,
    left: i64,
    page_keys: i64,
    found: i64,
    done: bool,
    pin: Pin,
}

impl Iterator for Pages {
    type Item = RangeResponse;

    fn next(&mut self) -> Option<RangeResponse> {
        if self.done {
            return None;
        }
        let mut page = self.read(self.left.min(self.page_keys), false);
        page.header = None;
        self.found += page.kvs.len() as i64;
        self.left -= page.kvs.len() as i64;
        if page.more
            && let Some(last) = page.kvs.last()
        {
            self.request.key = [last.key(), &[0]].concat().into();
        }
        self.done = !page.more || self.left == 0;
        if self.done {
            self.finish(&mut page);
        } else {
            (page.more, page.count) = (false, 0);
        }
        Some(page)
    }
}

impl Pages {
    /// Reads up to `limit` keys from where the last page ended; with
    /// `count_only` counts what is left.
    fn read(&self, limit: i64, count_only: bool) -> RangeResponse {
        let revision = self.pin.revision;
        let request = RangeRequest { limit, revision, count_only, ..self.request.clone() };
        let shared = &self.pin.shared;
        let mut cursor = RangeCursor::pinned(&request, self.current, revision);
        while !cursor.step(&shared.store.read(), KEYS_A_STEP) {}
        cursor.finish()
    }

    fn finish(&mut self, page: &mut RangeResponse) {
        page.count = self.found;
        if page.more {
            page.count += self.read(0, true).count;
        }
        let revision = self.current;
        page.header = Some(etcdpb::rpc::ResponseHeader { revision, ..Default::default() });
    }
}

impl History for Shared {
    fn read(
        &self,
        span: &Span,
        from: i64,
        to: i64,
        limit: usize,
        events: &mut Vec<Event>,
    ) -> Result<i64, HistoryError> {
        let store = self.store.read();
        let compacted = store.compacted();
        if from < compacted {
            return Err(HistoryError { compacted });
        }
        let mut last = from - 1;
        let due = store.events_since(from).take_while(|event| event.revision() <= to);
        for (looked_at, event) in due.enumerate() {
            if looked_at >= limit && event.revision() > last {
                return Ok(event.revision());
            }
            last = event.revision();
            if span.contains(event.record.key().as_bytes()) {
                let mut event = event.clone();
                if event.revision() <= compacted {
                    // What was before is compacted: etcd does not show it.
                    event.previous = None;
                }
                events.push(event);
            }
        }
        Ok(to + 1)
    }
}
