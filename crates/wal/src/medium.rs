//! The disk as the log sees it: the seam at which tests put one that fails.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, fallocate};

use crate::discard;

/// A directory of log files. All methods are those of a POSIX file system.
pub trait Medium: Send + Sync + 'static {
    /// For messages only.
    fn path(&self) -> &Path;
    /// Names of the files, in no order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Makes a new file of `bytes` zeros, with its space allocated and its name
    /// durable. On failure no file is left.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn LogFile>>;
    /// Opens an existing file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Arc<dyn LogFile>>;
    /// Removes a file, durably.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Removes a large file, durably, and takes its time for it.
    fn discard(&self, name: &str) -> io::Result<()> {
        self.remove(name)
    }
    /// Makes `bytes` the content of a small file, at once and durably: a crash
    /// leaves what was or what is to be.
    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()>;
}

/// One file of a [`Medium`].
pub trait LogFile: Send + Sync {
    /// The whole content.
    fn read(&self) -> io::Result<Vec<u8>>;
    /// Writes all of `bytes` at `offset`.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Fills with zeros from `offset` to the end.
    fn zero_from(&self, offset: u64) -> io::Result<()>;
    /// Makes the content durable (`fdatasync`).
    fn sync(&self) -> io::Result<()>;
}

/// A directory of the operating system.
pub struct OsMedium {
    directory: PathBuf,
}

impl OsMedium {
    /// The log files in `directory`, which is created if it is missing.
    pub fn new(directory: PathBuf) -> io::Result<Self> {
        std::fs::create_dir_all(&directory)?;
        discard::sweep(&directory)?;
        Ok(OsMedium { directory })
    }

    fn sync_directory(&self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()
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
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        let made = allocate(&file, 0, bytes)
            .and_then(|()| file.sync_all())
            .and_then(|()| self.sync_directory());
        if let Err(error) = made {
            // The first error is the one to report; a file left behind is
            // empty and dropped at the next start.
            let _ = std::fs::remove_file(&path);
            return Err(error);
        }
        Ok(Arc::new(file))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn LogFile>> {
        Ok(Arc::new(OpenOptions::new().read(true).write(true).open(self.directory.join(name))?))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.directory.join(name))?;
        self.sync_directory()
    }

    fn discard(&self, name: &str) -> io::Result<()> {
        discard::discard(&self.directory.join(name))?;
        self.sync_directory()
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let path = self.directory.join(name);
        let new = path.with_extension("new");
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(new, path)?;
        self.sync_directory()
    }
}

/// Extends a file that ends at `from` with zeros to `to`, and reserves real space
/// for them, so that a later write cannot run out of it.
fn allocate(file: &File, from: u64, to: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), from, to - from) {
        // The file system cannot reserve, so write the zeros.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => write_zeros(file, from, to),
        result => Ok(result?),
    }
}

fn write_zeros(file: &File, from: u64, to: u64) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    for offset in (from..to).step_by(zeros.len()) {
        let len = zeros.len().min((to - offset) as usize);
        FileExt::write_all_at(file, &zeros[..len], offset)?;
    }
    Ok(())
}

impl LogFile for File {
    fn read(&self) -> io::Result<Vec<u8>> {
        let len = usize::try_from(self.metadata()?.len()).map_err(io::Error::other)?;
        let mut content = vec![0; len];
        self.read_exact_at(&mut content, 0)?;
        Ok(content)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        FileExt::write_all_at(self, bytes, offset)
    }

    fn zero_from(&self, offset: u64) -> io::Result<()> {
        let len = self.metadata()?.len();
        self.set_len(offset)?;
        match len > offset {
            true => allocate(self, offset, len),
            false => Ok(()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_spare_what_is_before_them() {
        let file = tempfile::tempfile().unwrap();
        FileExt::write_all_at(&file, &[7; 100], 0).unwrap();
        LogFile::zero_from(&file, 40).unwrap();
        let expected = [[7; 40].as_slice(), &[0; 60]].concat();
        assert_eq!(LogFile::read(&file).unwrap(), expected);
        // And on a file system that cannot reserve.
        write_zeros(&file, 20, 100).unwrap();
        let expected = [[7; 20].as_slice(), &[0; 80]].concat();
        assert_eq!(LogFile::read(&file).unwrap(), expected);
    }
}
