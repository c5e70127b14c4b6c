//! Writing a large file around the page cache (`O_DIRECT`).
//!
//! The kernel writes dirty pages back in long bursts, and on a small machine those
//! delay every other disk access. A large snapshot would also evict pages that are in
//! use from the cache.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, fcntl_setfl};

/// Bytes of one write.
const PIECE: usize = 1 << 20;
/// The strictest alignment that devices require of addresses, offsets and lengths.
const ALIGNMENT: usize = 4096;

/// A new file that is written from its start to its end.
pub(crate) struct DirectWriter {
    file: File,
    /// Larger than a piece, so that it contains an aligned one.
    buffer: Box<[u8]>,
    /// Offset of the aligned piece in the buffer.
    start: usize,
    /// Bytes of the piece that are filled.
    filled: usize,
    /// Bytes in the file.
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
                .custom_flags(flags)
                .open(path)
        };
        let file = match open(OFlags::DIRECT) {
            // The file system does not support O_DIRECT, for example tmpfs.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => open(OFlags::empty()),
            file => file,
        }?;
        let buffer = vec![0; PIECE + ALIGNMENT].into_boxed_slice();
        let start = buffer.as_ptr().align_offset(ALIGNMENT);
        Ok(DirectWriter { file, buffer, start, filled: 0, written: 0 })
    }

    /// Appends `bytes`.
    pub(crate) fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(PIECE - self.filled));
            let end = self.start + self.filled;
            self.buffer[end..end + now.len()].copy_from_slice(now);
            self.filled += now.len();
            if self.filled == PIECE {
                self.write_piece(PIECE)?;
            }
            bytes = later;
        }
        Ok(())
    }

    /// Writes the rest of the buffer and makes the file durable.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        let len = self.written + self.filled as u64;
        // Only whole blocks can be written; the padding is truncated afterwards.
        self.write_piece(self.filled.next_multiple_of(ALIGNMENT))?;
        self.file.set_len(len)?;
        self.file.sync_all()
    }

    /// Writes the first `len` bytes of the buffer.
    fn write_piece(&mut self, len: usize) -> io::Result<()> {
        let piece = &self.buffer[self.start..self.start + len];
        match self.file.write_all_at(piece, self.written) {
            // The device requires a stricter alignment, or wrote only a part: write
            // through the page cache instead.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                fcntl_setfl(&self.file, OFlags::empty())?;
                self.file.write_all_at(piece, self.written)?;
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
        let content: Vec<u8> = (0..PIECE + 12_345).map(|i| (i / 7) as u8).collect();
        for directory in [tempfile::tempdir().unwrap(), in_memory()] {
            for len in [0, 1, ALIGNMENT, PIECE - 1, PIECE, content.len()] {
                let path = directory.path().join(len.to_string());
                std::fs::write(&path, "what was there before").unwrap();
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
    fn in_memory() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
    }
}
