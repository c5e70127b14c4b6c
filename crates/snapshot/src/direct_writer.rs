//! Writes a large file without the page cache (`O_DIRECT`).
//!
//! The kernel writes dirty pages to the disk in long bursts. On a small machine, a burst
//! delays all other disk accesses. A large snapshot would also evict pages from the cache
//! that are in use.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, fcntl_setfl};

/// Size of a write in bytes.
const WRITE_BYTES: usize = 1 << 20;
/// The alignment of addresses, offsets and lengths in bytes that satisfies all common
/// devices.
const ALIGNMENT: usize = 4096;

/// A new file that is written from its start to its end.
pub(crate) struct DirectWriter {
    file: File,
    /// Larger than a write, so that it contains an aligned part of that size.
    buffer: Box<[u8]>,
    /// Offset of the aligned part in the buffer.
    start: usize,
    /// Number of bytes in the aligned part that still have to be written.
    filled: usize,
    /// Number of bytes that are written to the file.
    written: u64,
}

impl DirectWriter {
    /// Creates the file at `path`, or truncates it.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let open = |flags: OFlags| {
            let flags = flags.bits() as i32;
            OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .custom_flags(flags)
                .open(path)
        };
        let file = match open(OFlags::DIRECT) {
            // The file system does not support O_DIRECT, for example tmpfs.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => open(OFlags::empty()),
            file => file,
        }?;
        let buffer = vec![0; WRITE_BYTES + ALIGNMENT].into_boxed_slice();
        let start = buffer.as_ptr().align_offset(ALIGNMENT);
        Ok(DirectWriter { file, buffer, start, filled: 0, written: 0 })
    }

    /// Appends `bytes`.
    pub(crate) fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(WRITE_BYTES - self.filled));
            let end = self.start + self.filled;
            self.buffer[end..end + now.len()].copy_from_slice(now);
            self.filled += now.len();
            if self.filled == WRITE_BYTES {
                self.write_buffer(WRITE_BYTES)?;
            }
            bytes = later;
        }
        Ok(())
    }

    /// Writes the rest of the buffer and makes the file durable.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        let len = self.written + self.filled as u64;
        // Only whole blocks can be written. The padding is truncated afterwards.
        self.write_buffer(self.filled.next_multiple_of(ALIGNMENT))?;
        self.file.set_len(len)?;
        self.file.sync_all()
    }

    /// Writes the first `len` bytes of the aligned part.
    fn write_buffer(&mut self, len: usize) -> io::Result<()> {
        let bytes = &self.buffer[self.start..self.start + len];
        match self.file.write_all_at(bytes, self.written) {
            // The device requires a larger alignment, or an earlier call wrote only a
            // part of the bytes. Write through the page cache instead.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                fcntl_setfl(&self.file, OFlags::empty())?;
                self.file.write_all_at(bytes, self.written)?;
            }
            written => written?,
        }
        self.written += len as u64;
        self.filled = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_the_written_bytes_for_any_size() {
        let content: Vec<u8> = (0..WRITE_BYTES + 12_345).map(|i| (i / 7) as u8).collect();
        for directory in [tempfile::tempdir().unwrap(), memory_directory()] {
            for len in [0, 1, ALIGNMENT, WRITE_BYTES - 1, WRITE_BYTES, content.len()] {
                let path = directory.path().join(len.to_string());
                std::fs::write(&path, "earlier content").unwrap();
                let mut writer = DirectWriter::create(&path).unwrap();
                for part in content[..len].chunks(1000) {
                    writer.write_all(part).unwrap();
                }
                writer.finish().unwrap();
                assert!(std::fs::read(&path).unwrap() == content[..len], "{len} bytes");
            }
        }
    }

    /// A directory on a file system that may not support direct writes.
    fn memory_directory() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
    }
}
