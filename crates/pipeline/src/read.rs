//! Reading without the queue: ranges, transactions that only read, history.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use etcdpb::rpc::{RangeRequest, RangeResponse, ResponseHeader, TxnRequest, TxnResponse};
use mvcc::{Event, RangeCursor, Span};
use watch::{Compacted, HistoryReader};

use crate::pace::{STEP, give_way};
use crate::pipeline::Shared;
use crate::{Error, Pipeline};

/// Keys of a range that is read at once, by whoever asks.
const KEYS_AT_ONCE: usize = 1000;
/// Bytes of values that a watcher is given at a time from history, about.
const HISTORY_BYTES: usize = 4 << 20;
/// A page has at most so many keys, and about so many bytes.
const PAGE_KEYS: i64 = 1000;
const PAGE_BYTES: usize = 1 << 20;
/// How long a client may take over the pages of a range before the history that
/// they need may be collected.
const PAGES_LIFE: Duration = Duration::from_secs(60);

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
    number: u64,
}

/// The revisions that are being read in steps.
#[derive(Default)]
pub(crate) struct Pins {
    /// Until when, if not as long as the pin lives, by revision and number.
    held: BTreeMap<(i64, u64), Option<Instant>>,
    next: u64,
}

impl Pins {
    /// The first revision that somebody still needs.
    pub(crate) fn floor(&mut self, now: Instant) -> i64 {
        while let Some(first) = self.held.first_entry() {
            if first.get().is_none_or(|until| until > now) {
                return first.key().0;
            }
            first.remove();
        }
        i64::MAX
    }
}

impl Pin {
    /// Call it with the store locked, so that nothing is collected in between.
    /// With `until` the history is kept no longer than that.
    pub(crate) fn new(shared: &Arc<Shared>, revision: i64, until: Option<Instant>) -> Self {
        let mut pins = shared.pins.lock();
        let number = pins.next;
        pins.next += 1;
        pins.held.insert((revision, number), until);
        Pin { shared: shared.clone(), revision, number }
    }

    /// Keeps the history until then, unless it was given up before.
    pub(crate) fn hold_until(&self, until: Instant) {
        let mut pins = self.shared.pins.lock();
        if let Some(held) = pins.held.get_mut(&(self.revision, self.number)) {
            *held = Some(until);
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Whether the history may be gone.
    pub(crate) fn expired(&self) -> bool {
        !self.shared.pins.lock().held.contains_key(&(self.revision, self.number))
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.shared.pins.lock().held.remove(&(self.revision, self.number));
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
        if cursor.step(&store, KEYS_AT_ONCE) {
            drop(store);
            return Ok(RangeRead::Done(cursor.finish()));
        }
        let pin = Pin::new(shared, cursor.revision(), None);
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
    pub fn pages(&self, request: RangeRequest) -> Result<Pages, Error> {
        let shared = self.shared();
        let store = shared.store.read();
        let current = shared.published.load(Ordering::Acquire);
        let revision = RangeCursor::new(&store, &request, current, false)?.revision();
        let left = if request.limit > 0 { request.limit } else { i64::MAX };
        let pin = Pin::new(shared, revision, Some(Instant::now() + PAGES_LIFE));
        Ok(Pages { request, current, left, found: 0, done: false, pin })
    }
}

impl RangeRead {
    /// Reads the rest, if there is one.
    pub fn finish(self) -> RangeResponse {
        match self {
            RangeRead::Done(response) => response,
            RangeRead::Rest(rest) => rest.finish(),
        }
    }
}

impl Rest {
    /// Reads to the end, letting writers in between.
    pub fn finish(mut self) -> RangeResponse {
        while !self.cursor.step(&self.pin.shared.store.read(), STEP) {
            give_way();
        }
        self.cursor.finish()
    }
}

/// The pages of a range. Header, `more` and the total count are on the last. A
/// client that takes too long over them is told that the revision is compacted,
/// if by then it is.
pub struct Pages {
    request: RangeRequest,
    /// What the header says: the newest revision when the range began.
    current: i64,
    left: i64,
    found: i64,
    done: bool,
    pin: Pin,
}

impl Iterator for Pages {
    type Item = Result<RangeResponse, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let Some(mut page) = self.read(self.left.min(PAGE_KEYS), false) else {
            self.done = true;
            return Some(Err(mvcc::Error::Compacted.into()));
        };
        page.header = None;
        self.found += page.kvs.len() as i64;
        self.left -= page.kvs.len() as i64;
        if page.more
            && let Some(last) = page.kvs.last()
        {
            self.request.key = [last.key(), &[0]].concat().into();
        }
        self.done = !page.more || self.left == 0;
        match self.done {
            true => Some(self.finish(page).ok_or(mvcc::Error::Compacted.into())),
            false => {
                (page.more, page.count) = (false, 0);
                Some(Ok(page))
            }
        }
    }
}

impl Pages {
    /// Reads up to `limit` keys from where the last page ended; with
    /// `count_only` counts what is left. Nothing if the history is gone.
    fn read(&self, limit: i64, count_only: bool) -> Option<RangeResponse> {
        let revision = self.pin.revision;
        let request = RangeRequest { limit, revision, count_only, ..self.request.clone() };
        let shared = &self.pin.shared;
        let mut cursor =
            RangeCursor::pinned(&request, self.current, revision).with_byte_limit(PAGE_BYTES);
        loop {
            let store = shared.store.read();
            if self.pin.expired() && revision < store.compacted() {
                return None;
            }
            if cursor.step(&store, STEP) {
                return Some(cursor.finish());
            }
            drop(store);
            give_way();
        }
    }

    fn finish(&mut self, mut page: RangeResponse) -> Option<RangeResponse> {
        page.count = self.found;
        if page.more {
            page.count += self.read(0, true)?.count;
        }
        let revision = self.current;
        page.header = Some(ResponseHeader { revision, ..Default::default() });
        Some(page)
    }
}

impl HistoryReader for Shared {
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
        let due = store.events_since(from).take_while(|event| event.revision() <= to);
        for (looked_at, event) in due.enumerate() {
            let enough = looked_at >= limit || bytes >= HISTORY_BYTES;
            if enough && event.revision() > last {
                return Ok(event.revision());
            }
            last = event.revision();
            if span.contains(event.record.key().as_bytes()) {
                bytes += event.record.value().len();
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
