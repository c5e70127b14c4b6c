//! Writing a large file around the page cache.
//!
//! What goes through the page cache is written back by the kernel later, in long
//! runs at moments of its own choice; on a small machine everybody waits for
//! them. A snapshot as large as the memory would also throw out of the cache what
//! others need.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, fcntl_setfl};

/// Bytes written at a time.
const PIECE: usize = 1 << 20;
/// What devices ask of addresses, offsets and lengths, at most.
const ALIGNMENT: usize = 4096;

/// A new file that is written from its start to its end.
pub(crate) struct DirectWriter {
    file: File,
    /// Larger than a piece, so that an aligned one lies in it.
    buffer: Box<[u8]>,
    start: usize,
    filled: usize,
    /// Bytes in the file.
    written: u64,
}

impl DirectWriter {
    /// Creates a file, or empties it.
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
            // A file system without it, such as one in memory.
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

    /// Writes what is left, and makes the file durable.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        let len = self.written + self.filled as u64;
        // Only whole blocks can be written; what is too much is cut off again.
        self.write_piece(self.filled.next_multiple_of(ALIGNMENT))?;
        self.file.set_len(len)?;
        self.file.sync_all()
    }

    /// Writes the first `len` bytes of the buffer.
    fn write_piece(&mut self, len: usize) -> io::Result<()> {
        let piece = &self.buffer[self.start..self.start + len];
        match self.file.write_all_at(piece, self.written) {
            // The device asks for more than we give, or took a part: then the
            // ordinary way.
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
    fn a_file_has_the_bytes_written_whatever_their_sizes() {
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

    /// A directory on a file system that may not know direct writes.
    fn in_memory() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
    }
}
