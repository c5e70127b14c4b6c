//! The next segment, which a background thread prepares.
//!
//! Allocating the space of a segment waits for the disk. A log that needs a new segment
//! therefore takes the prepared file, writes the header and renames the file, which does not
//! wait. If no file is prepared, the log creates one itself.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

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
        let (prepared, gate) = (Mutex::default(), SpaceGate::default());
        Ok(SegmentFiles { medium, bytes, prepared, wanted: false.into(), gate })
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

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Arc<dyn LogFile>>> {
        self.prepared.lock().expect("no thread panicked with the lock")
    }
}

fn remove_if_exists(medium: &dyn Medium, name: &str) -> io::Result<()> {
    match medium.remove(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
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
}
