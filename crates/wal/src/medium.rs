//! The operations on the disk that the log needs. Tests implement them with a simulated
//! disk.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, fallocate, statvfs};

use files::discard;

/// A directory of log files, with the operations of a POSIX file system.
pub trait Medium: Send + Sync + 'static {
    /// Returns the path of the directory, for messages only.
    fn path(&self) -> &Path;
    /// Returns the names of the files in no particular order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Creates a file of `bytes` zero bytes, and allocates its space. Replaces the content of
    /// an existing file: an earlier failure may have left it. If this fails, it removes the
    /// file.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn LogFile>>;
    /// Returns the free space in bytes, if it is known.
    fn free_bytes(&self) -> Option<u64> {
        None
    }
    /// Renames a file; replaces the file `to` if it exists. Does not wait for the disk.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Makes the names of created and renamed files durable.
    fn sync_names(&self) -> io::Result<()>;
    /// Opens an existing file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Arc<dyn LogFile>>;
    /// Removes a file. The removal is durable.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Removes a large file, in steps that do not delay other threads. The removal is
    /// durable.
    fn discard(&self, name: &str) -> io::Result<()> {
        self.remove(name)
    }
    /// Replaces the content of a small file atomically and durably: after a crash, the
    /// file has either the old or the new content. Creates the file if it is missing.
    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()>;
    /// Creates an empty file, unless it exists. It survives the end of the process, but not
    /// a crash of the machine. Does not wait for the disk.
    fn mark(&self, name: &str) -> io::Result<()>;
}

/// One file of a [`Medium`].
pub trait LogFile: Send + Sync {
    /// Returns the size in bytes.
    fn size(&self) -> io::Result<usize>;
    /// Reads as many bytes from `offset` on as `bytes` has.
    fn fill(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
    /// Reads the whole content.
    fn read(&self) -> io::Result<Vec<u8>> {
        let mut content = vec![0; self.size()?];
        self.fill(&mut content, 0)?;
        Ok(content)
    }
    /// Writes all of `bytes` at `offset`.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes the content and the size durable (`fdatasync`).
    fn sync(&self) -> io::Result<()>;
}

/// A directory of the file system.
pub struct OsMedium {
    directory: PathBuf,
    /// The open directory, so that a sync needs no free file descriptor. `None` if files are
    /// opened only for reading.
    handle: Option<File>,
}

impl OsMedium {
    /// Opens `directory`, which is created if it is missing, and removes files whose
    /// removal a crash interrupted.
    pub fn new(directory: PathBuf) -> io::Result<Self> {
        std::fs::create_dir_all(&directory)?;
        discard::remove_discarded(&directory)?;
        let handle = Some(File::open(&directory)?);
        Ok(OsMedium { directory, handle })
    }

    /// Opens the existing `directory` for [`crate::check`] and [`crate::salvage`]. Changes
    /// nothing.
    pub fn inspect(directory: PathBuf) -> Self {
        OsMedium { directory, handle: None }
    }
}

impl Medium for OsMedium {
    fn path(&self) -> &Path {
        &self.directory
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let names = std::fs::read_dir(&self.directory)?
            .map(|entry| entry.map(|e| e.file_name().to_string_lossy().into_owned()));
        names.collect()
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn LogFile>> {
        let path = self.directory.join(name);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(0o600);
        let file = options.open(&path)?;
        if let Err(error) = allocate(&file, bytes) {
            // Return the first error. If the file cannot be removed, it has no header and
            // no records, and the next attempt or the next start replaces it.
            let _ = std::fs::remove_file(&path);
            return Err(error);
        }
        Ok(Arc::new(file))
    }

    fn free_bytes(&self) -> Option<u64> {
        let found = statvfs(&self.directory).ok()?;
        Some(found.f_bavail.saturating_mul(found.f_frsize))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.directory.join(from), self.directory.join(to))
    }

    fn sync_names(&self) -> io::Result<()> {
        self.handle.as_ref().map_or(Ok(()), File::sync_all)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn LogFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(self.handle.is_some());
        Ok(Arc::new(options.open(self.directory.join(name))?))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.directory.join(name))?;
        self.sync_names()
    }

    fn discard(&self, name: &str) -> io::Result<()> {
        discard::discard(&self.directory.join(name))?;
        self.sync_names()
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let path = self.directory.join(name);
        let new = path.with_extension("new");
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(new, path)?;
        self.sync_names()
    }

    fn mark(&self, name: &str) -> io::Result<()> {
        let path = self.directory.join(name);
        OpenOptions::new().append(true).create(true).mode(0o600).open(path).map(drop)
    }
}

/// Extends an empty file to `bytes` zero bytes, and allocates disk space for them, so that
/// later writes do not fail on a full disk.
fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        // The file system cannot allocate space. Write the zeros instead.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => write_zeros(file, bytes),
        result => Ok(result?),
    }
}

/// Writes `bytes` zeros to the start of a file.
fn write_zeros(file: &File, bytes: u64) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    for offset in (0..bytes).step_by(zeros.len()) {
        let len = zeros.len().min((bytes - offset) as usize);
        FileExt::write_all_at(file, &zeros[..len], offset)?;
    }
    Ok(())
}

impl LogFile for File {
    fn size(&self) -> io::Result<usize> {
        usize::try_from(self.metadata()?.len()).map_err(io::Error::other)
    }

    fn fill(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(bytes, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        FileExt::write_all_at(self, bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file system that cannot allocate space gets zeros.
    #[test]
    fn both_ways_to_allocate_make_a_file_of_zeros() {
        let expected = vec![0; (1 << 20) + 100];
        let ways: [fn(&File, u64) -> io::Result<()>; 2] = [allocate, write_zeros];
        for way in ways {
            let file = tempfile::tempfile().unwrap();
            way(&file, expected.len() as u64).unwrap();
            assert_eq!(LogFile::read(&file).unwrap(), expected);
        }
    }
}
