//! The cache of one resource, as the feed and the clients share it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::cache::{Cache, Got, Inconsistent, Pulled};
use super::content::Content;
use super::frame::Frame;
use super::kind::Kind;
use super::object::Object;
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

    /// Begins with all objects at the version of a bookmark, the one that follows the initial events of a watch. Open
    /// watches end. Others use the cache while the objects are sorted, and while those before are dropped, which takes
    /// long if there are very many.
    ///
    /// # Errors
    /// If an object occurs twice, or the bookmark is not the expected one. The cache is empty then.
    pub fn replace(&self, objects: Vec<Object>, marked: Object) -> Result<(), Inconsistent> {
        let has_references = self.lock().has_references();
        let content = Content::new(self.kind, objects, marked, has_references);
        let content = content.inspect_err(|_| self.clear())?;
        let before = self.lock().replace(content);
        // The lock is released.
        drop(before);
        Ok(())
    }

    /// Forgets everything, and stops serving.
    pub fn clear(&self) {
        let before = self.lock().clear();
        // The lock is released.
        drop(before);
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

    /// What follows after these events, about `max` bytes; `None` if the watch must end.
    pub fn pull(&self, got: Got, max: usize) -> Option<Pulled> {
        self.cache.lock().pull(&self.selector, got, max)
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::node_path::watches::object::sample::pod;

    /// Bytes that note whether the cache is locked when they are dropped.
    struct Witness {
        bytes: Bytes,
        cache: Arc<SharedCache>,
        is_locked: Arc<AtomicBool>,
        is_dropped: Arc<AtomicBool>,
    }

    impl AsRef<[u8]> for Witness {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }

    impl Drop for Witness {
        fn drop(&mut self) {
            self.is_dropped.store(true, Ordering::Relaxed);
            self.is_locked.store(self.cache.cache.try_lock().is_none(), Ordering::Relaxed);
        }
    }

    fn marked(version: u64) -> Object {
        let bookmark = pod("", "", "", version, "k8s.io/initial-events-end");
        Object::parse(Kind::Pods, bookmark).unwrap()
    }

    #[test]
    fn objects_are_dropped_without_the_lock() {
        let cache = || Arc::new(SharedCache::new(Kind::Pods, Cache::new(Kind::Pods), None));
        let forget: [fn(&SharedCache); 3] = [
            SharedCache::clear,
            |cache| cache.replace(Vec::new(), marked(20)).unwrap(),
            |cache| {
                let plain = Object::parse(Kind::Pods, pod("", "", "", 20, "")).unwrap();
                cache.replace(Vec::new(), plain).unwrap_err();
            },
        ];
        for forget in forget {
            let (cache, flag) = (cache(), Arc::<AtomicBool>::default);
            let (is_locked, is_dropped) = (flag(), flag());
            let witness = Witness {
                bytes: pod("ns", "p", "n", 9, ""),
                cache: cache.clone(),
                is_locked: is_locked.clone(),
                is_dropped: is_dropped.clone(),
            };
            let object = Object::parse(Kind::Pods, Bytes::from_owner(witness)).unwrap();
            cache.replace(vec![object], marked(10)).unwrap();
            forget(&cache);
            assert!(is_dropped.load(Ordering::Relaxed));
            assert!(!is_locked.load(Ordering::Relaxed));
        }
    }
}
