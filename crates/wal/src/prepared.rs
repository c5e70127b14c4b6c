//! The next segment, which a background thread prepares.
//!
//! Allocating the space of a segment waits for the disk. A log that needs a new segment
//! therefore takes the prepared file, writes the header and renames the file, which does not
//! wait. If no file is prepared, the log creates one itself.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::medium::{LogFile, Medium};
use crate::space::{SpaceClaim, SpaceGate};

/// Name of a prepared file.
const PREPARED: &str = "NEXT";
/// Name of a file that the log creates itself, until it has a header.
const UNPREPARED: &str = "NEXT.new";

/// Creates the files of segments.
pub(crate) struct SegmentFiles {
    medium: Arc<dyn Medium>,
    /// Size of a prepared file in bytes.
    bytes: u64,
    prepared: Mutex<Option<Arc<dyn LogFile>>>,
    /// Held while a file is being prepared.
    preparing: Mutex<()>,
    /// Whether the current segment is half full, so that the next one should be prepared.
    wanted: AtomicBool,
    gate: SpaceGate,
}

impl SegmentFiles {
    /// Creates files of at least `bytes` bytes. Removes those that an earlier process has
    /// not used.
    pub(crate) fn new(medium: Arc<dyn Medium>, bytes: u64) -> io::Result<Self> {
        for name in [PREPARED, UNPREPARED] {
            remove_if_exists(&*medium, name)?;
        }
        let (prepared, preparing, gate) = Default::default();
        Ok(SegmentFiles { medium, bytes, prepared, preparing, wanted: false.into(), gate })
    }

    /// Returns the claim of a snapshot to space on the disk.
    pub(crate) fn space_claim(&self) -> SpaceClaim {
        self.gate.claim.clone()
    }

    /// Creates a file, unless the disk is or may be full: see [`SpaceGate`].
    fn allocate(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn LogFile>> {
        let free = || self.medium.free_bytes();
        self.gate.allocate(bytes, free, || self.medium.create(name, bytes))
    }

    /// Requests that the next file be prepared.
    pub(crate) fn request(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }

    /// Prepares the next file if it is requested and none is prepared. Only one thread at
    /// a time may call this.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        if !self.wanted.load(Ordering::Relaxed) || self.is_prepared(0) {
            return Ok(());
        }
        let _preparing = lock(&self.preparing);
        let file = self.allocate(PREPARED, self.bytes)?;
        if let Err(error) = file.sync() {
            remove_if_exists(&*self.medium, PREPARED)?;
            return Err(error);
        }
        *self.lock() = Some(file);
        Ok(())
    }

    /// Whether a file of at least `bytes` bytes is prepared.
    pub(crate) fn is_prepared(&self, bytes: u64) -> bool {
        bytes <= self.bytes && self.lock().is_some()
    }

    /// Makes a new file of at least `bytes` bytes the file `name`, which is replaced if it
    /// exists. Uses the prepared file if possible. Calls `write_header` before the file gets
    /// its name. Also returns the size of the file.
    pub(crate) fn create(
        &self,
        name: &str,
        bytes: u64,
        write_header: impl FnOnce(&dyn LogFile) -> io::Result<()>,
    ) -> io::Result<(Arc<dyn LogFile>, u64)> {
        // Wait for a file that is being prepared: it may have the last free space, so that creating
        // another one would fail although there is space for this segment.
        let waits = bytes <= self.bytes && !self.is_prepared(bytes);
        let _preparing = waits.then(|| lock(&self.preparing));
        // Hold the lock until the file has its new name: the old one may then be used for
        // the next prepared file.
        let mut prepared = self.lock();
        let (file, bytes, unnamed) = match prepared.take_if(|_| bytes <= self.bytes) {
            Some(file) => (file, self.bytes, PREPARED),
            None => {
                let bytes = bytes.max(self.bytes);
                (self.allocate(UNPREPARED, bytes)?, bytes, UNPREPARED)
            }
        };
        self.wanted.store(false, Ordering::Relaxed);
        let named = write_header(&*file).and_then(|()| self.medium.rename(unnamed, name));
        if let Err(error) = named {
            // If this fails too, the next file replaces this one.
            let _ = self.medium.remove(unnamed);
            return Err(error);
        }
        Ok((file, bytes))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<dyn LogFile>>> {
        lock(&self.prepared)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panicked with the lock")
}

fn remove_if_exists(medium: &dyn Medium, name: &str) -> io::Result<()> {
    match medium.remove(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::medium::OsMedium;

    /// A file that could not be removed after a failure does not prevent the next segment.
    #[test]
    fn files_that_a_failure_left_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let medium = Arc::new(OsMedium::new(dir.path().to_owned()).unwrap());
        let files = SegmentFiles::new(medium, 1000).unwrap();
        for name in [PREPARED, UNPREPARED] {
            std::fs::write(dir.path().join(name), vec![7; 2000]).unwrap();
        }
        let (file, bytes) = files.create("a", 10, |_| Ok(())).unwrap();
        assert_eq!((file.read().unwrap(), bytes), (vec![0; 1000], 1000));
        files.request();
        files.prepare().unwrap();
        assert!(files.is_prepared(1000));
        let (file, _) = files.create("b", 10, |_| Ok(())).unwrap();
        assert_eq!(file.read().unwrap(), vec![0; 1000]);
    }

    /// A disk with space for one file, whose first sync ends when the test says so.
    struct SmallDisk {
        inner: OsMedium,
        is_full: AtomicBool,
        syncing: mpsc::Sender<()>,
        synced: Arc<Mutex<mpsc::Receiver<()>>>,
    }

    struct SlowFile {
        inner: Arc<dyn LogFile>,
        syncing: mpsc::Sender<()>,
        synced: Arc<Mutex<mpsc::Receiver<()>>>,
    }

    impl Medium for SmallDisk {
        fn path(&self) -> &Path {
            self.inner.path()
        }

        fn list(&self) -> io::Result<Vec<String>> {
            self.inner.list()
        }

        fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn LogFile>> {
            if self.is_full.swap(true, Ordering::Relaxed) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let inner = self.inner.create(name, bytes)?;
            let (syncing, synced) = (self.syncing.clone(), self.synced.clone());
            Ok(Arc::new(SlowFile { inner, syncing, synced }))
        }

        fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            self.inner.rename(from, to)
        }

        fn sync_names(&self) -> io::Result<()> {
            self.inner.sync_names()
        }

        fn open(&self, name: &str) -> io::Result<Arc<dyn LogFile>> {
            self.inner.open(name)
        }

        fn remove(&self, name: &str) -> io::Result<()> {
            self.inner.remove(name)
        }

        fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
            self.inner.replace(name, bytes)
        }

        fn mark(&self, name: &str) -> io::Result<()> {
            self.inner.mark(name)
        }
    }

    impl LogFile for SlowFile {
        fn size(&self) -> io::Result<usize> {
            self.inner.size()
        }

        fn fill(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
            self.inner.fill(bytes, offset)
        }

        fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
            self.inner.write_all_at(bytes, offset)
        }

        fn sync(&self) -> io::Result<()> {
            self.syncing.send(()).unwrap();
            self.synced.lock().unwrap().recv().unwrap();
            self.inner.sync()
        }
    }

    /// The file that is being prepared has the last space of the disk.
    #[test]
    fn a_segment_waits_for_the_file_that_is_being_prepared() {
        let dir = tempfile::tempdir().unwrap();
        let (syncing, sync_started) = mpsc::channel();
        let (end_sync, synced) = mpsc::channel();
        let disk = SmallDisk {
            inner: OsMedium::new(dir.path().to_owned()).unwrap(),
            is_full: false.into(),
            syncing,
            synced: Arc::new(Mutex::new(synced)),
        };
        let files = SegmentFiles::new(Arc::new(disk), 1000).unwrap();
        files.request();
        thread::scope(|scope| {
            let preparing = scope.spawn(|| files.prepare());
            sync_started.recv().unwrap();
            let creating =
                scope.spawn(|| files.create("a", 10, |_| Ok(())).map(|(_, bytes)| bytes));
            thread::sleep(Duration::from_millis(50));
            end_sync.send(()).unwrap();
            preparing.join().unwrap().unwrap();
            assert_eq!(creating.join().unwrap().unwrap(), 1000);
        });
    }
}
