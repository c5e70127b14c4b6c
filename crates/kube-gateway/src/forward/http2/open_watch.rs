//! A watch that is served from a cache.

use std::time::{Duration, Instant};

use crate::exchange::Exchange;
use crate::node_path::watches::{DEFAULT_TIMEOUT, Got, Registration};

/// Time between two bookmarks.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);
/// The last bookmark precedes the end of a watch by this time.
const BEFORE_END: Duration = Duration::from_secs(2);

/// A watch that is served.
pub struct OpenWatch {
    /// Ends with the watch.
    pub exchange: Exchange,
    /// The watch in the cache.
    pub registration: Registration,
    /// A bookmark must have a higher version.
    pub floor: u64,
    /// When it began.
    pub started: Instant,
    /// When it ends.
    pub deadline: Instant,
    /// When the next bookmark is due, if there is one before the end.
    pub bookmark: Option<Instant>,
    /// Whether bookmarks are wanted.
    pub bookmarks: bool,
    /// What was sent, if the watch pulls its events.
    pub got: Got,
}

impl OpenWatch {
    /// A watch that has sent everything up to `floor`. Without a `timeout` it ends after a random time, as
    /// in kube-apiserver. Its next bookmark is not [planned](Self::plan) yet.
    pub fn new(
        exchange: Exchange,
        registration: Registration,
        floor: u64,
        started: Instant,
        timeout: Option<Duration>,
        bookmarks: bool,
    ) -> OpenWatch {
        let default = || DEFAULT_TIMEOUT.mul_f64(1.0 + rand::random::<f64>());
        let deadline = started + timeout.unwrap_or_else(default);
        OpenWatch {
            exchange,
            registration,
            floor,
            started,
            deadline,
            bookmark: None,
            bookmarks,
            got: Got::all(floor),
        }
    }

    /// When something must be done.
    pub fn due(&self) -> Instant {
        self.bookmark.unwrap_or(self.deadline)
    }

    /// Plans the next bookmark as kube-apiserver does.
    pub fn plan(&mut self, now: Instant) {
        let last = self.deadline.checked_sub(BEFORE_END);
        let next = last.map(|last| last.min(now + BOOKMARK_PERIOD));
        self.bookmark = next.filter(|next| self.bookmarks && *next > now);
    }
}
