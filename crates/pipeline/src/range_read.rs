//! Ranges. They bypass the queue.
//!
//! A read at the published revision is linearizable: a write is published before it is
//! acknowledged.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use etcdpb::rpc::{RangeRequest, RangeResponse, ResponseHeader};
use mvcc::RangeCursor;

use crate::pace::{STEP_ENTRIES, yield_thread};
use crate::pins::Pin;
use crate::shared_store::SharedStore;
use crate::{Error, Pipeline};

/// Maximum number of keys that a range visits in one step on the calling thread. A range
/// with more keys is large.
const SMALL_RANGE_KEYS: usize = 1000;
/// Maximum number of keys of a page.
const PAGE_KEYS: i64 = 1000;
/// A page ends with the key that brings its keys and values to at least this size in bytes.
const PAGE_BYTES: usize = 1 << 20;
/// How long the history for the pages of a range stays readable. After that, a compaction
/// can end the range with the error that the revision is compacted.
const PAGES_LIFETIME: Duration = Duration::from_secs(60);

/// The result of starting a range read.
pub enum RangeRead {
    /// The response of a small range.
    Done(RangeResponse),
    /// A large range. The caller finishes it on a thread that may block.
    Large(LargeRange),
}

/// A large range. All of it is read at the revision at which it started.
pub struct LargeRange {
    shared: Arc<SharedStore>,
    cursor: RangeCursor,
    /// Keeps the history of this revision.
    _pin: Pin,
}

impl Pipeline {
    /// Reads a range. The read is linearizable: it sees every write that was acknowledged
    /// before the call.
    pub fn range(&self, request: &RangeRequest) -> Result<RangeRead, Error> {
        let shared = self.shared();
        let store = shared.store.read();
        let current = shared.published.load(Ordering::Acquire);
        let mut cursor = RangeCursor::new(&store, request, current, true)?;
        if cursor.step(&store, SMALL_RANGE_KEYS) {
            drop(store);
            return Ok(RangeRead::Done(cursor.finish()));
        }
        let pin = Pin::new(&shared.pins, cursor.revision(), None);
        Ok(RangeRead::Large(LargeRange { shared: shared.clone(), cursor, _pin: pin }))
    }

    /// Reads a range in pages. All pages have the same revision. The keys are in key
    /// order.
    pub fn pages(&self, request: RangeRequest) -> Result<RangePages, Error> {
        let shared = self.shared();
        let store = shared.store.read();
        let header_revision = shared.published.load(Ordering::Acquire);
        let revision = RangeCursor::new(&store, &request, header_revision, false)?.revision();
        let remaining_keys = if request.limit > 0 { request.limit } else { i64::MAX };
        let pin = Pin::new(&shared.pins, revision, Some(Instant::now() + PAGES_LIFETIME));
        let shared = shared.clone();
        Ok(RangePages {
            shared,
            request,
            header_revision,
            remaining_keys,
            returned_keys: 0,
            done: false,
            pin,
        })
    }
}

impl RangeRead {
    /// Reads the rest of the range. Blocks if the range is large.
    pub fn finish(self) -> RangeResponse {
        match self {
            RangeRead::Done(response) => response,
            RangeRead::Large(range) => range.finish(),
        }
    }
}

impl LargeRange {
    /// Reads the rest of the range in steps. Writers can run between the steps.
    pub fn finish(mut self) -> RangeResponse {
        while !self.cursor.step(&self.shared.store.read(), STEP_ENTRIES) {
            yield_thread();
        }
        self.cursor.finish()
    }
}

/// The pages of a range. Only the last page has the header, `more` and the total count.
/// If the client takes longer than 60 s and the revision is compacted meanwhile, the next
/// item is the error for a compacted revision.
pub struct RangePages {
    shared: Arc<SharedStore>,
    /// The request, with its key moved after the last page.
    request: RangeRequest,
    /// The published revision when the range started, for the response header.
    header_revision: i64,
    /// Number of keys that the limit still allows.
    remaining_keys: i64,
    /// Number of keys returned so far.
    returned_keys: i64,
    done: bool,
    pin: Pin,
}

impl Iterator for RangePages {
    type Item = Result<RangeResponse, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let Some(mut page) = self.read(self.remaining_keys.min(PAGE_KEYS), false) else {
            self.done = true;
            return Some(Err(mvcc::Error::Compacted.into()));
        };
        page.header = None;
        self.returned_keys += page.kvs.len() as i64;
        self.remaining_keys -= page.kvs.len() as i64;
        if page.more
            && let Some(last) = page.kvs.last()
        {
            self.request.key = [last.key(), &[0]].concat().into();
        }
        self.done = !page.more || self.remaining_keys == 0;
        match self.done {
            true => Some(self.finish_last(page).ok_or(mvcc::Error::Compacted.into())),
            false => {
                (page.more, page.count) = (false, 0);
                Some(Ok(page))
            }
        }
    }
}

impl RangePages {
    /// Reads up to `limit` keys after the last page; with `count_only`, it only counts
    /// all of them. Returns `None` if the history has been collected.
    fn read(&self, limit: i64, count_only: bool) -> Option<RangeResponse> {
        let revision = self.pin.revision();
        let request = RangeRequest { limit, revision, count_only, ..self.request.clone() };
        let shared = &self.shared;
        let mut cursor = RangeCursor::pinned(&request, self.header_revision, revision)
            .with_byte_limit(PAGE_BYTES);
        loop {
            let store = shared.store.read();
            if self.pin.expired() && revision < store.compacted() {
                return None;
            }
            if cursor.step(&store, STEP_ENTRIES) {
                return Some(cursor.finish());
            }
            drop(store);
            yield_thread();
        }
    }

    /// Sets the total count and the header of the last page. Returns `None` if the
    /// history has been collected.
    fn finish_last(&mut self, mut page: RangeResponse) -> Option<RangeResponse> {
        page.count = self.returned_keys;
        if page.more {
            page.count += self.read(0, true)?.count;
        }
        let revision = self.header_revision;
        page.header = Some(ResponseHeader { revision, ..Default::default() });
        Some(page)
    }
}
