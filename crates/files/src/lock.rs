//! Locks of directories, held through the file `LOCK` in the directory.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use crate::Error;

/// Name of the lock file.
pub const NAME: &str = "LOCK";

/// Locks `directory` for a process that changes it. Creates the lock file if it is
/// missing. Returns `None` if another process holds the lock. The lock is released when
/// the returned file is dropped.
pub fn exclusive(directory: &Path) -> Result<Option<File>, Error> {
    let path = directory.join(NAME);
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(Error::io("open", &path))?;
    lock(file, FlockOperation::NonBlockingLockExclusive, &path)
}

/// Locks `directory` for a process that only reads it. Writes nothing: without a lock file,
/// no process uses the directory, and there is nothing to lock. Returns whether the lock is
/// held, and the lock file if there is one.
pub fn shared(directory: &Path) -> Result<(bool, Option<File>), Error> {
    let path = directory.join(NAME);
    let file = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((true, None)),
        file => file.map_err(Error::io("open", &path))?,
    };
    let locked = lock(file, FlockOperation::NonBlockingLockShared, &path)?;
    Ok((locked.is_some(), locked))
}

fn lock(file: File, operation: FlockOperation, path: &Path) -> Result<Option<File>, Error> {
    match flock(&file, operation) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(Error::io("lock", path)(error.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_share_a_lock_and_writers_do_not() {
        let dir = tempfile::tempdir().unwrap();
        assert!(shared(dir.path()).unwrap().0, "without a lock file, nothing is locked");
        assert!(!dir.path().join(NAME).exists());
        let writer = exclusive(dir.path()).unwrap().unwrap();
        assert!(exclusive(dir.path()).unwrap().is_none());
        assert!(!shared(dir.path()).unwrap().0);
        drop(writer);
        let first = shared(dir.path()).unwrap();
        assert!(first.0 && shared(dir.path()).unwrap().0);
        assert!(exclusive(dir.path()).unwrap().is_none());
    }
}
