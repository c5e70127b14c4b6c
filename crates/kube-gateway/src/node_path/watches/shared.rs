//! The cache of one resource, as the feed and the clients share it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::cache::Cache;
use super::frame::Frame;
use super::kind::Kind;
use super::selector::Selector;

/// The cache of one resource.
pub struct SharedCache {
    /// The resource.
    pub kind: Kind,
    cache: Mutex<Cache>,
}

impl SharedCache {
    /// An empty cache. With an interval, its watches are thinned.
    pub fn new(kind: Kind, interval: Option<Duration>) -> SharedCache {
        let cache = match interval {
            Some(interval) => Cache::thinned(kind, interval, Instant::now()),
            None => Cache::new(kind),
        };
        SharedCache { kind, cache: Mutex::new(cache) }
    }

    /// The cache, which nobody else uses meanwhile.
    pub fn lock(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock()
    }
}

/// An open watch. Nothing is delivered to it after it is dropped.
pub struct Registration {
    cache: Arc<SharedCache>,
    selector: Selector,
    number: u64,
}

impl Registration {
    /// A watch that was opened with this number.
    pub fn new(cache: Arc<SharedCache>, selector: Selector, number: u64) -> Registration {
        Registration { cache, selector, number }
    }

    /// The bookmark of now, with its version. All changes up to it are in the mailbox already.
    pub fn bookmark(&self) -> Option<(u64, Frame)> {
        self.cache.lock().bookmark(Instant::now())
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.cache.lock().remove(&self.selector, self.number);
    }
}
