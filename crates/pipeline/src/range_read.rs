//! Ranges. They bypass the queue.
//!
//! A read at the published revision is linearizable: a write is published before it is
//! acknowledged.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use etcdpb::rpc::{RangeRequest, RangeResponse, ResponseHeader};
use mvcc::RangeCursor;

use crate::held_records::{Discard, HeldRecords, HeldResponse, ReadStart};
use crate::pace::{self, SMALL_SORT_BYTES, STEP_ENTRIES};
use crate::pins::Pin;
use crate::shared_store::SharedStore;
use crate::{Error, Pipeline};

/// Maximum number of keys that a range visits in one step on the calling thread. A range
/// with more keys is large. So is one that sorts more than [`SMALL_SORT_BYTES`].
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
    held_bytes: Arc<AtomicUsize>,
    /// Keeps the history of this revision.
    pin: Pin,
}

impl Pipeline {
    /// Reads a range. The read is linearizable: it sees every write that was acknowledged
    /// before the call.
    pub fn range(&self, request: &RangeRequest) -> Result<RangeRead, Error> {
        let shared = self.shared();
        let store = shared.store.read();
        let current = shared.published.load(Ordering::Acquire);
        let mut cursor = RangeCursor::new(&store, request, current, true)?;
        let complete = cursor.step(&store, SMALL_RANGE_KEYS);
        if complete && cursor.bytes_to_sort() <= SMALL_SORT_BYTES {
            drop(store);
            return Ok(RangeRead::Done(cursor.finish()));
        }
        let pin = Pin::new(&shared.pins, cursor.revision(), None);
        let (shared, held_bytes) = (shared.clone(), Arc::default());
        Ok(RangeRead::Large(LargeRange { shared, cursor, held_bytes, pin }))
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
        let mut pages = RangePages {
            shared: shared.clone(),
            request,
            revision,
            header_revision,
            remaining_keys,
            returned_keys: 0,
            pin,
            next: NextPage::None,
        };
        pages.next = NextPage::Keys(pages.cursor(remaining_keys.min(PAGE_KEYS), false));
        Ok(pages)
    }

    /// Call it before a read whose response may refer to many records, for
    /// [`Pipeline::hold_response`].
    pub fn read_start(&self) -> ReadStart {
        self.shared().held_records.read_start()
    }

    /// Lets a response that began at `start` be discarded if responses hold too many records
    /// that the store has collected.
    pub fn hold_response(&self, start: ReadStart, response: Arc<dyn Discard>) -> HeldResponse {
        HeldRecords::hold(&self.shared().held_records, start, response)
    }
}

impl RangeRead {
    /// Reads the rest of the range. Blocks if the range is large.
    pub fn finish(self) -> RangeResponse {
        self.finish_unless(&|| false).expect("it is not cancelled")
    }

    /// Reads the rest of the range as [`LargeRange::finish_unless`] does.
    pub fn finish_unless(self, cancelled: &dyn Fn() -> bool) -> Result<RangeResponse, Error> {
        match self {
            RangeRead::Done(response) => Ok(response),
            RangeRead::Large(range) => range.finish_unless(cancelled),
        }
    }
}

impl LargeRange {
    /// Returns the counter of the memory in bytes that the response occupies, without keys and
    /// values. [`LargeRange::finish_unless`] updates it before it calls `cancelled`.
    pub fn held_bytes(&self) -> Arc<AtomicUsize> {
        self.held_bytes.clone()
    }

    /// Reads the rest of the range in steps. Writers can run between the steps. Fails when
    /// `cancelled` returns true; it is called between the steps.
    pub fn finish_unless(mut self, cancelled: &dyn Fn() -> bool) -> Result<RangeResponse, Error> {
        while !self.step()? {
            self.held_bytes.store(self.cursor.memory_bytes(), Ordering::Relaxed);
            pace::pause(cancelled)?;
        }
        Ok(self.cursor.finish())
    }

    fn step(&mut self) -> Result<bool, Error> {
        let store = self.shared.store.read();
        self.pin.check(&store)?;
        Ok(self.cursor.step(&store, STEP_ENTRIES))
    }
}

/// The pages of a range. Only the last page has the header, `more` and the total count.
/// If the client takes longer than 60 s and the revision is compacted meanwhile, the next
/// page is the error for a compacted revision.
pub struct RangePages {
    shared: Arc<SharedStore>,
    /// The request, with its key moved after the last page.
    request: RangeRequest,
    /// The revision that is read.
    revision: i64,
    /// The published revision when the range started, for the response header.
    header_revision: i64,
    /// Number of keys that the limit still allows.
    remaining_keys: i64,
    /// Number of keys returned so far.
    returned_keys: i64,
    pin: Pin,
    next: NextPage,
}

/// What is read for the next page.
enum NextPage {
    /// Its keys.
    Keys(RangeCursor),
    /// The number of keys after it. It is the last page, because the limit allows no more.
    Count(RangeResponse, RangeCursor),
    /// Nothing: the last page was returned.
    None,
}

impl RangePages {
    /// The revision that is read.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Whether the last page was returned.
    pub fn is_done(&self) -> bool {
        matches!(self.next, NextPage::None)
    }

    /// Continues to read the next page, in at most as many steps as a small range needs.
    /// Returns the page if it is complete. Otherwise [`RangePages::finish_page_unless`]
    /// returns it.
    ///
    /// # Errors
    /// Fails if the history has been collected.
    pub fn start_page(&mut self) -> Result<Option<RangeResponse>, Error> {
        for _ in 0..SMALL_RANGE_KEYS.div_ceil(STEP_ENTRIES) {
            let page = self.step()?;
            if page.is_some() {
                return Ok(page);
            }
        }
        Ok(None)
    }

    /// Reads the rest of the next page in steps. Writers can run between the steps.
    ///
    /// # Errors
    /// Fails when `cancelled` returns true; it is called between the steps. Fails if the
    /// history has been collected.
    pub fn finish_page_unless(
        &mut self,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<RangeResponse, Error> {
        loop {
            if let Some(page) = self.step()? {
                return Ok(page);
            }
            pace::pause(cancelled)?;
        }
    }

    /// Visits some keys. Returns the next page if it is complete.
    fn step(&mut self) -> Result<Option<RangeResponse>, Error> {
        let (NextPage::Keys(cursor) | NextPage::Count(_, cursor)) = &mut self.next else {
            return Ok(None);
        };
        let store = self.shared.store.read();
        self.pin.check(&store)?;
        if !cursor.step(&store, STEP_ENTRIES) {
            return Ok(None);
        }
        drop(store);
        match std::mem::replace(&mut self.next, NextPage::None) {
            NextPage::Keys(cursor) => Ok(self.complete_keys(cursor.finish())),
            NextPage::Count(page, cursor) => Ok(Some(self.last(page, cursor.finish().count))),
            NextPage::None => Ok(None),
        }
    }

    /// Completes a page with its keys. Returns it, unless the keys after it must be counted.
    fn complete_keys(&mut self, mut page: RangeResponse) -> Option<RangeResponse> {
        page.header = None;
        self.returned_keys += page.kvs.len() as i64;
        self.remaining_keys -= page.kvs.len() as i64;
        if !page.more {
            return Some(self.last(page, 0));
        }
        if let Some(last) = page.kvs.last() {
            self.request.key = [last.key(), &[0]].concat().into();
        }
        if self.remaining_keys == 0 {
            self.next = NextPage::Count(page, self.cursor(0, true));
            return None;
        }
        self.next = NextPage::Keys(self.cursor(self.remaining_keys.min(PAGE_KEYS), false));
        (page.more, page.count) = (false, 0);
        Some(page)
    }

    /// Returns a cursor for up to `limit` keys after the last page, or to count all of them.
    fn cursor(&self, limit: i64, count_only: bool) -> RangeCursor {
        let revision = self.pin.revision();
        let request = RangeRequest { limit, revision, count_only, ..self.request.clone() };
        RangeCursor::pinned(&request, self.header_revision, revision).with_byte_limit(PAGE_BYTES)
    }

    /// Sets the header and the total count of the last page. `count_after` is the number of
    /// keys after it.
    fn last(&self, mut page: RangeResponse, count_after: i64) -> RangeResponse {
        page.count = self.returned_keys + count_after;
        let revision = self.header_revision;
        page.header = Some(ResponseHeader { revision, ..Default::default() });
        page
    }
}
