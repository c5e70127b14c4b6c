//! Reads, which bypass the queue: ranges and read-only transactions.
//!
//! A read at the published revision is linearizable: every acknowledged write has been
//! published before its reply.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use etcdpb::rpc::{RangeRequest, RangeResponse, ResponseHeader, TxnRequest, TxnResponse};
use mvcc::RangeCursor;

use crate::pace::{STEP, give_way};
use crate::pins::Pin;
use crate::shared_store::SharedStore;
use crate::{Error, Pipeline};

/// Maximum number of keys of a range that is read in one step, on the calling thread.
const SMALL_RANGE_KEYS: usize = 1000;
/// Maximum number of keys of a page, and the bytes at which a page is complete.
const PAGE_KEYS: i64 = 1000;
const PAGE_BYTES: usize = 1 << 20;
/// How long the history for the pages of a range is kept. A slower client may get an
/// error that the revision is compacted.
const PAGES_LIFETIME: Duration = Duration::from_secs(60);

/// The result of starting a range read.
pub enum RangeRead {
    /// The response of a small range.
    Done(RangeResponse),
    /// A large range, to be finished on a thread that may block.
    Large(LargeRange),
}

/// A large range read at the revision at which it started.
pub struct LargeRange {
    shared: Arc<SharedStore>,
    cursor: RangeCursor,
    /// Keeps the history of that revision.
    _pin: Pin,
}

impl Pipeline {
    /// Reads a range, linearizably: sees every write that was acknowledged before the
    /// call.
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

    /// Carries out a transaction for which [`mvcc::is_read_only`] is true.
    pub fn read_txn(&self, request: &TxnRequest) -> Result<TxnResponse, Error> {
        let shared = self.shared();
        let store = shared.store.read();
        let current = shared.published.load(Ordering::Acquire);
        Ok(store.read_txn(request, current)?)
    }

    /// Reads a range page by page, all pages at one revision, in key order.
    pub fn pages(&self, request: RangeRequest) -> Result<RangePages, Error> {
        let shared = self.shared();
        let store = shared.store.read();
        let current = shared.published.load(Ordering::Acquire);
        let revision = RangeCursor::new(&store, &request, current, false)?.revision();
        let remaining = if request.limit > 0 { request.limit } else { i64::MAX };
        let pin = Pin::new(&shared.pins, revision, Some(Instant::now() + PAGES_LIFETIME));
        let shared = shared.clone();
        Ok(RangePages { shared, request, current, remaining, found: 0, done: false, pin })
    }
}

impl RangeRead {
    /// Reads to the end. Blocks for a large range.
    pub fn finish(self) -> RangeResponse {
        match self {
            RangeRead::Done(response) => response,
            RangeRead::Large(range) => range.finish(),
        }
    }
}

impl LargeRange {
    /// Reads to the end in steps, between which writers proceed.
    pub fn finish(mut self) -> RangeResponse {
        while !self.cursor.step(&self.shared.store.read(), STEP) {
            give_way();
        }
        self.cursor.finish()
    }
}

/// The pages of a range. The last page has the header, `more` and the total count. If the
/// client takes longer than a minute and the revision is compacted during this time, the
/// next item is the error for a compacted revision.
pub struct RangePages {
    shared: Arc<SharedStore>,
    request: RangeRequest,
    /// The published revision when the range started, for the header.
    current: i64,
    /// Keys that the limit still allows.
    remaining: i64,
    /// Keys returned so far.
    found: i64,
    done: bool,
    pin: Pin,
}

impl Iterator for RangePages {
    type Item = Result<RangeResponse, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let Some(mut page) = self.read(self.remaining.min(PAGE_KEYS), false) else {
            self.done = true;
            return Some(Err(mvcc::Error::Compacted.into()));
        };
        page.header = None;
        self.found += page.kvs.len() as i64;
        self.remaining -= page.kvs.len() as i64;
        if page.more
            && let Some(last) = page.kvs.last()
        {
            self.request.key = [last.key(), &[0]].concat().into();
        }
        self.done = !page.more || self.remaining == 0;
        match self.done {
            true => Some(self.finish(page).ok_or(mvcc::Error::Compacted.into())),
            false => {
                (page.more, page.count) = (false, 0);
                Some(Ok(page))
            }
        }
    }
}

impl RangePages {
    /// Reads up to `limit` keys after the last page, or only counts them with
    /// `count_only`. Returns `None` if the history has been collected.
    fn read(&self, limit: i64, count_only: bool) -> Option<RangeResponse> {
        let revision = self.pin.revision();
        let request = RangeRequest { limit, revision, count_only, ..self.request.clone() };
        let shared = &self.shared;
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
