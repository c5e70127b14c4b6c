//! The content of a file of which the disk cannot read a part.

use std::io;
use std::ops::Range;
use std::path::Path;

use files::{Error, is_unreadable};

use crate::medium::LogFile;

/// Size of a read after a failure in bytes. What cannot be read is found in units of this
/// size, which is that of a page.
const BLOCK_BYTES: usize = 4096;

/// The content of a file, with zeros instead of what cannot be read.
pub(crate) struct Content {
    pub(crate) bytes: Vec<u8>,
    /// The ranges that cannot be read, in order.
    unreadable: Vec<(Range<usize>, io::Error)>,
}

impl Content {
    /// Reads the whole content. Fails if the reason is another one than that the disk has lost
    /// a part.
    pub(crate) fn read(file: &dyn LogFile) -> io::Result<Content> {
        match file.read() {
            Ok(bytes) => return Ok(Content { bytes, unreadable: Vec::new() }),
            Err(error) if !is_unreadable(&error) => return Err(error),
            Err(_) => {}
        }
        let mut bytes = vec![0; file.size()?];
        let mut unreadable = Vec::new();
        for (index, block) in bytes.chunks_mut(BLOCK_BYTES).enumerate() {
            let start = index * BLOCK_BYTES;
            match file.fill(block, start as u64) {
                Ok(()) => {}
                Err(error) if is_unreadable(&error) => {
                    block.fill(0);
                    unreadable.push((start..start + block.len(), error));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Content { bytes, unreadable })
    }

    /// Fails if a part of the file `path` after the offset `from` cannot be read.
    pub(crate) fn require_readable(&self, path: &Path, from: usize) -> Result<(), Error> {
        let Some((range, error)) = self.unreadable.iter().find(|(range, _)| range.end > from)
        else {
            return Ok(());
        };
        let (file, offset) = (path.to_owned(), range.start as u64);
        Err(Error::Corrupt { file, offset, reason: format!("it cannot be read: {error}") })
    }
}
