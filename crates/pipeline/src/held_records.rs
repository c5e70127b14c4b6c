//! Bounds the memory of records that only responses hold.
//!
//! A large response refers to records of the store until its client has read it. Garbage
//! collection removes records from the store, but it cannot free those that a response holds.
//! So what a client has not read may be all that is left of many deleted values.
//!
//! A response holds at most the records that were collected since it began to read the store,
//! and at most those that it refers to. When the sum over all responses exceeds
//! [`MAX_COLLECTED_BYTES`], the responses that began first lose their records. A response costs
//! nothing while nothing is collected.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Maximum size in bytes of collected records that all responses hold together. Beyond it,
/// the oldest responses are discarded.
const MAX_COLLECTED_BYTES: u64 = 512 << 20;
/// The size is determined again after this many bytes were collected, or later if it cannot
/// exceed the maximum before.
const RECHECK_BYTES: u64 = MAX_COLLECTED_BYTES / 16;

/// A response that refers to records of the store.
pub trait Discard: Send + Sync {
    /// Returns an upper bound of the size in bytes of the records to which it refers. It does
    /// not change.
    fn record_bytes(&self) -> usize;

    /// Drops all references to records. The response cannot be completed after that.
    fn discard(&self);
}

/// When a response began to read the store: the number of bytes that had been collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadStart(u64);

/// A response that is discarded if too many collected records are held. Dropping it ends this.
pub struct HeldResponse {
    shared: Arc<HeldRecords>,
    key: (ReadStart, u64),
}

/// The responses that refer to records.
#[derive(Default)]
pub(crate) struct HeldRecords {
    /// Size of all records that were collected so far.
    collected: AtomicU64,
    responses: Mutex<Responses>,
}

#[derive(Default)]
struct Responses {
    /// The responses in the order in which they began, each with an ID.
    by_start: BTreeMap<(ReadStart, u64), Arc<dyn Discard>>,
    next_id: u64,
    /// The value of `collected` at which the size is determined again.
    next_check: u64,
}

impl HeldRecords {
    /// Returns the start of a read that begins after this call.
    pub(crate) fn read_start(&self) -> ReadStart {
        ReadStart(self.collected.load(Ordering::Acquire))
    }

    /// Lets a response that began at `start` be discarded until the result is dropped.
    pub(crate) fn hold(
        self: &Arc<Self>,
        start: ReadStart,
        response: Arc<dyn Discard>,
    ) -> HeldResponse {
        let mut responses = self.responses.lock();
        let key = (start, responses.next_id);
        responses.next_id += 1;
        responses.by_start.insert(key, response);
        HeldResponse { shared: self.clone(), key }
    }

    /// Notes that records of `bytes` bytes were collected. Returns the responses to discard.
    pub(crate) fn add_collected(&self, bytes: u64) -> Vec<Arc<dyn Discard>> {
        if bytes == 0 {
            return Vec::new();
        }
        let collected = self.collected.fetch_add(bytes, Ordering::Release) + bytes;
        let mut responses = self.responses.lock();
        match collected < responses.next_check {
            true => Vec::new(),
            false => responses.remove_oldest(collected),
        }
    }
}

/// Discards responses on a thread of its own: freeing millions of records takes long, and
/// writes would wait.
pub(crate) fn discard(responses: Vec<Arc<dyn Discard>>) {
    tracing::warn!(
        responses = responses.len(),
        "resetting responses whose clients do not read: they hold too many deleted values"
    );
    let discard = |responses: &[Arc<dyn Discard>]| responses.iter().for_each(|r| r.discard());
    let copies = responses.clone();
    let thread = std::thread::Builder::new().name("discard".to_owned());
    if thread.spawn(move || discard(&copies)).is_err() {
        discard(&responses);
    }
}

impl Responses {
    /// Removes the oldest responses until the others hold few enough collected records.
    fn remove_oldest(&mut self, collected: u64) -> Vec<Arc<dyn Discard>> {
        let held = |start: ReadStart, response: &dyn Discard| {
            (collected - start.0).min(response.record_bytes() as u64)
        };
        let each = self.by_start.iter().map(|((start, _), response)| held(*start, &**response));
        let mut sum: u64 = each.sum();
        let mut removed = Vec::new();
        // Several responses may hold the same records, but none that was collected before the
        // first one began.
        while let Some(first) = self.by_start.first_entry() {
            let (start, _) = *first.key();
            if sum.min(collected - start.0) <= MAX_COLLECTED_BYTES {
                sum = sum.min(collected - start.0);
                break;
            }
            let response = first.remove();
            sum = sum.saturating_sub(held(start, &*response));
            removed.push(response);
        }
        let room = MAX_COLLECTED_BYTES.saturating_sub(sum);
        self.next_check = collected + room.max(RECHECK_BYTES);
        removed
    }
}

impl Drop for HeldResponse {
    fn drop(&mut self) {
        let response = self.shared.responses.lock().by_start.remove(&self.key);
        // Freeing many records takes long. Writes that collect garbage do not wait for it.
        drop(response);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    struct Response {
        bytes: usize,
        discarded: AtomicBool,
    }

    impl Discard for Response {
        fn record_bytes(&self) -> usize {
            self.bytes
        }

        fn discard(&self) {
            self.discarded.store(true, Ordering::Relaxed);
        }
    }

    const MIB: u64 = 1 << 20;

    fn collect(records: &HeldRecords, mib: u64) -> usize {
        let removed = records.add_collected(mib * MIB);
        removed.iter().for_each(|response| response.discard());
        removed.len()
    }

    fn begin(records: &Arc<HeldRecords>, mib: u64) -> (Arc<Response>, HeldResponse) {
        let start = records.read_start();
        let bytes = (mib * MIB) as usize;
        let response = Arc::new(Response { bytes, discarded: false.into() });
        (response.clone(), records.hold(start, response))
    }

    #[test]
    fn the_oldest_responses_are_discarded() {
        let records = Arc::<HeldRecords>::default();
        collect(&records, 10_000);
        // Each response refers to 100 MiB, which are collected after it began.
        let mut responses = Vec::new();
        for _ in 0..20 {
            responses.push(begin(&records, 100));
            collect(&records, 100);
        }
        let kept = responses.iter().filter(|(r, _)| !r.discarded.load(Ordering::Relaxed));
        let kept = kept.count();
        assert!((4..=5).contains(&kept), "{kept} responses");
        assert!(responses[15].0.discarded.load(Ordering::Relaxed) || kept == 5);
        assert!(!responses[19].0.discarded.load(Ordering::Relaxed));
        drop(responses);
        assert!(records.responses.lock().by_start.is_empty());
    }

    /// Large responses may have the same records, and little is collected while they are sent.
    #[test]
    fn what_is_not_collected_does_not_count() {
        let records = Arc::<HeldRecords>::default();
        let responses: Vec<_> = (0..100).map(|_| begin(&records, 2000)).collect();
        assert_eq!(collect(&records, 500), 0);
        // A small response holds few records, however many were collected.
        drop(responses);
        let _small = begin(&records, 2);
        assert_eq!((0..100).map(|_| collect(&records, 500)).sum::<usize>(), 0);
    }

    #[test]
    fn a_response_that_began_before_a_collection_counts_with_it() {
        let records = Arc::<HeldRecords>::default();
        let start = ReadStart(0);
        assert_eq!(collect(&records, 1000), 0);
        let response = Arc::new(Response { bytes: 1 << 30, discarded: false.into() });
        let _held = records.hold(start, response);
        assert_eq!(collect(&records, 600), 1);
    }
}
