//! The cache of one resource, as the feed and the clients share it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::cache::{Cache, Pulled};
use super::frame::Frame;
use super::kind::Kind;
use super::selector::Selector;

/// The cache of one resource.
pub struct SharedCache {
    /// The resource.
    pub kind: Kind,
    /// The bytes that its objects and their last changes may take. Beyond that nothing is served.
    pub max_size: Option<u64>,
    is_too_large: AtomicBool,
    is_unreadable: AtomicBool,
    cache: Mutex<Cache>,
}

impl SharedCache {
    /// Shares an empty cache.
    pub fn new(kind: Kind, cache: Cache, max_size: Option<u64>) -> SharedCache {
        let (is_too_large, is_unreadable) = (AtomicBool::new(false), AtomicBool::new(false));
        SharedCache { kind, max_size, is_too_large, is_unreadable, cache: Mutex::new(cache) }
    }

    /// Whether so many bytes are too many.
    pub fn exceeds(&self, size: usize) -> bool {
        self.max_size.is_some_and(|max| size as u64 > max)
    }

    /// Whether there were too many bytes when its objects were last read.
    pub fn is_too_large(&self) -> bool {
        self.is_too_large.load(Ordering::Relaxed)
    }

    /// Notes whether there were too many bytes.
    pub fn set_too_large(&self, is_too_large: bool) {
        self.is_too_large.store(is_too_large, Ordering::Relaxed);
    }

    /// Whether the store had a value of an unknown form, or refused to show its values, when it was last asked.
    pub fn is_unreadable(&self) -> bool {
        self.is_unreadable.load(Ordering::Relaxed)
    }

    /// Notes whether the store's values cannot be read.
    pub fn set_unreadable(&self, is_unreadable: bool) {
        self.is_unreadable.store(is_unreadable, Ordering::Relaxed);
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
        self.cache.lock().bookmark()
    }

    /// Whether the watch pulls its events. Otherwise they come to its mailbox.
    pub fn pulls(&self) -> bool {
        self.cache.kind.is_stored()
    }

    /// What follows after a version, about `max` bytes; `None` if the watch must end.
    pub fn pull(&self, after: u64, max: usize) -> Option<Pulled> {
        self.cache.lock().pull(&self.selector, after, max)
    }

    /// The bookmark of a version up to which everything was pulled.
    pub fn bookmark_at(&self, version: u64) -> Option<Frame> {
        self.cache.lock().bookmark_at(version)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.cache.lock().remove(&self.selector, self.number);
    }
}
