//! Reads in pages that clients have not finished. kube-apiserver reads all objects of a kind at one revision, by a stream of
//! pages or with a request for each. If the revision is compacted meanwhile, it begins again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A client that has not asked for the next page for this time does not ask any more.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// For how long a read is waited for.
const MAX_TIME: Duration = Duration::from_secs(30 * 60);
/// Revisions that are kept at most. Later ones are kept by the earlier ones.
const MAX_REVISIONS: usize = 1024;

/// The revisions of pages after which there are more.
#[derive(Default)]
pub struct PagedReads(Mutex<BTreeMap<i64, Pages>>);

/// When the first and the last page of a revision were read.
#[derive(Clone, Copy)]
struct Pages {
    first: Instant,
    last: Instant,
}

impl Pages {
    fn may_go_on(&self, now: Instant) -> bool {
        let since = |time| now.saturating_duration_since(time);
        since(self.last) < MAX_PAUSE && since(self.first) < MAX_TIME
    }
}

impl PagedReads {
    /// Notes a page of a revision after which there are more.
    pub fn read(&self, revision: i64, now: Instant) {
        let mut reads = self.0.lock();
        if reads.len() >= MAX_REVISIONS && !reads.contains_key(&revision) {
            reads.retain(|_, pages| pages.may_go_on(now));
            if reads.len() >= MAX_REVISIONS {
                return;
            }
        }
        reads.entry(revision).or_insert(Pages { first: now, last: now }).last = now;
    }

    /// Returns the oldest revision of which a client may read further pages.
    pub fn oldest(&self, now: Instant) -> Option<i64> {
        let mut reads = self.0.lock();
        // One that took too long must not begin again by its next page.
        reads.retain(|_, pages| now.saturating_duration_since(pages.last) < MAX_PAUSE);
        reads.iter().find(|(_, pages)| pages.may_go_on(now)).map(|(revision, _)| *revision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_read_in_progress_counts() {
        let (reads, start) = (PagedReads::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(reads.oldest(start), None);
        reads.read(7, at(0));
        reads.read(5, at(10));
        assert_eq!(reads.oldest(at(59)), Some(5));
        reads.read(7, at(50));
        assert_eq!(reads.oldest(at(70)), Some(7), "of the other one nobody has read for a minute");
        assert_eq!(reads.oldest(at(110)), None);
    }

    #[test]
    fn a_read_is_not_waited_for_without_end() {
        let (reads, start) = (PagedReads::default(), Instant::now());
        for seconds in 0..1900 {
            let now = start + Duration::from_secs(seconds);
            reads.read(5, now);
            assert_eq!(reads.oldest(now), (seconds < 1800).then_some(5), "after {seconds} s");
        }
    }

    #[test]
    fn revisions_are_bounded() {
        let (reads, start) = (PagedReads::default(), Instant::now());
        (0..2000).for_each(|revision| reads.read(revision, start));
        assert_eq!(reads.0.lock().len(), MAX_REVISIONS);
        reads.read(2000, start + MAX_PAUSE);
        assert_eq!(reads.oldest(start + MAX_PAUSE), Some(2000));
    }
}
