//! Values that are made from files, and made again when a file has changed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use parking_lot::Mutex;

/// A value made from the current content of files.
pub struct Reloaded<T> {
    /// What the files contain, for the log.
    what: &'static str,
    paths: Vec<PathBuf>,
    load: Box<dyn Fn() -> Result<T> + Send + Sync>,
    current: Mutex<Current<T>>,
}

struct Current<T> {
    value: T,
    /// Stamps of the files before the last attempt to read them, which may have failed.
    stamps: Vec<Option<FileStamp>>,
}

impl<T: Clone> Reloaded<T> {
    /// Makes the first value with `load`, which reads the files in `paths`. `what` says in the log what they contain.
    ///
    /// # Errors
    /// The error of `load`.
    pub fn new(
        what: &'static str,
        paths: Vec<PathBuf>,
        load: impl Fn() -> Result<T> + Send + Sync + 'static,
    ) -> Result<Self> {
        let stamps = stamps(&paths);
        let current = Mutex::new(Current { value: load()?, stamps });
        Ok(Reloaded { what, paths, load: Box::new(load), current })
    }

    /// Makes the value again if the files have changed, and returns it. If the changed files
    /// cannot be used, for example because only one of them has been replaced so far, the previous
    /// value stays.
    pub fn current(&self) -> T {
        let stamps = stamps(&self.paths);
        let mut current = self.current.lock();
        if stamps != current.stamps {
            current.stamps = stamps;
            match (self.load)() {
                Ok(value) => {
                    tracing::info!("reloaded {}", self.what);
                    current.value = value;
                }
                Err(error) => tracing::warn!(
                    error = format!("{error:#}"),
                    "failed to reload {}, keeping the previous ones",
                    self.what
                ),
            }
        }
        current.value.clone()
    }
}

/// The metadata by which a replaced or overwritten file is recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    /// Returns the stamp of a file; `None` if it is missing.
    pub fn of(path: &Path) -> Option<FileStamp> {
        let file = fs::metadata(path).ok()?;
        Some(FileStamp {
            device: file.dev(),
            inode: file.ino(),
            bytes: file.len(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        })
    }
}

/// Returns the stamp of each file; `None` for one that is missing.
fn stamps(paths: &[PathBuf]) -> Vec<Option<FileStamp>> {
    paths.iter().map(|path| FileStamp::of(path)).collect()
}
