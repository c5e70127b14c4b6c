//! Reads and writes one snapshot file.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use files::framing::{self, RECORD_HEADER_BYTES};
use files::replace::sync_parent;
use files::{Error, PayloadError, discard};
use rustix::fs::{Advice, fadvise};

use crate::direct_writer::DirectWriter;
use crate::header::{self, Header, HeaderError};
use crate::manifest::{self, Entry};

/// Salt (start value) of the checksums. The log needs a random salt because recovery
/// searches its bytes for records. A snapshot is only read from its start, so 0 is
/// enough.
pub(crate) const NO_SALT: u32 = 0;
/// Size of a read in bytes.
const READ_BYTES: usize = 1 << 20;
/// Number of bytes after which the page cache of a file that is read back is freed.
const CACHED_BYTES: u64 = 8 << 20;

/// Writes one snapshot. If it is dropped before [`SnapshotWriter::finish`] has succeeded,
/// the unfinished file is removed: on a full disk, the log needs its space.
pub struct SnapshotWriter {
    file: DirectWriter,
    unfinished: Unfinished,
    target: Target,
    header: Header,
    /// Number of records so far, including the empty one at the end.
    records: u64,
    /// Size of the written records and the header in bytes.
    bytes: u64,
    buffer: Vec<u8>,
}

/// Where a complete snapshot is published.
pub(crate) struct Target {
    /// Path of the file once it is complete.
    pub(crate) path: PathBuf,
    /// Path of the manifest.
    pub(crate) manifest: PathBuf,
    /// The snapshots that the manifest lists beside this one.
    pub(crate) others: Vec<Entry>,
}

/// The file of a snapshot that is being written. Removes the file when it is dropped.
struct Unfinished {
    path: PathBuf,
    /// Whether the file stays: the manifest lists it.
    published: bool,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.published {
            // If the file cannot be removed, the next start does it.
            let _ = discard::discard(&self.path);
        }
    }
}

impl SnapshotWriter {
    /// Starts a snapshot, which is written to `path` until it is complete.
    pub(crate) fn create(path: PathBuf, target: Target, header: Header) -> Result<Self, Error> {
        let file = DirectWriter::create(&path).map_err(Error::io("create", &path))?;
        let unfinished = Unfinished { path, published: false };
        let buffer = Vec::new();
        let mut writer =
            SnapshotWriter { file, unfinished, target, header, records: 0, bytes: 0, buffer };
        writer.write(&header.encode())?;
        Ok(writer)
    }

    /// Appends a chunk. `payload` must not be empty.
    pub fn write_chunk(&mut self, payload: &[u8]) -> Result<(), Error> {
        assert!(!payload.is_empty(), "an empty record marks the end");
        self.write_record(payload)
    }

    /// Completes the snapshot, makes it durable, reads it back, lists it in the manifest
    /// and gives it its final name. Returns its size in bytes.
    pub fn finish(self) -> Result<u64, Error> {
        let finished = self.finish_unless(|_| false)?;
        Ok(finished.expect("it was not stopped"))
    }

    /// Completes the snapshot as [`SnapshotWriter::finish`] does, unless `stop` returns
    /// true while it is read back. Then returns `None`. `stop` is called after each chunk with
    /// the number of bytes that were read back so far, and may pause.
    pub fn finish_unless(mut self, stop: impl FnMut(u64) -> bool) -> Result<Option<u64>, Error> {
        self.write_record(&[])?;
        let SnapshotWriter { file, mut unfinished, target, header, records, bytes, .. } = self;
        file.finish().map_err(Error::io("complete", &unfinished.path))?;
        if !read_back(&unfinished.path, header, records, bytes, stop)? {
            return Ok(None);
        }
        // If a crash prevents the renaming, the manifest lists an unfinished file. The next
        // start removes both.
        let entry = Entry { covered: header.covered, id: header.owner.map(|owner| owner.id) };
        manifest::write(&target.manifest, &[&target.others[..], &[entry]].concat())?;
        unfinished.published = true;
        if let Err(cause) = fs::rename(&unfinished.path, &target.path) {
            manifest::write(&target.manifest, &target.others)?;
            unfinished.published = false;
            return Err(Error::io("rename", &unfinished.path)(cause));
        }
        sync_parent(&target.path).map_err(Error::io("fsync the directory of", &target.path))?;
        Ok(Some(bytes))
    }

    /// Removes the unfinished file at once, which can delay other threads. Dropping the
    /// writer removes it in steps.
    pub fn abandon(mut self) -> Result<(), Error> {
        self.unfinished.published = true;
        let path = &self.unfinished.path;
        fs::remove_file(path).map_err(Error::io("remove", path))
    }

    fn write_record(&mut self, payload: &[u8]) -> Result<(), Error> {
        self.records += 1;
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        framing::encode_record(NO_SALT, self.records, 0, payload, &mut buffer);
        let written = self.write(&buffer);
        self.buffer = buffer;
        written
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes).map_err(Error::io("write to", &self.unfinished.path))
    }
}

/// Reads a written snapshot from the disk and verifies all of it. Returns false if `stop`
/// returns true meanwhile.
fn read_back(
    path: &Path,
    header: Header,
    records: u64,
    bytes: u64,
    mut stop: impl FnMut(u64) -> bool,
) -> Result<bool, Error> {
    let mut reader = SnapshotReader::open(path)?;
    // Read from the disk, and do not evict other files from the page cache. Without this
    // advice, both would still be correct.
    let free_cache = |reader: &SnapshotReader, from: u64, to: u64| {
        let len = NonZeroU64::new(to - from);
        let _ = fadvise(reader.file.get_ref(), from, len, Advice::DontNeed);
    };
    free_cache(&reader, 0, bytes);
    let failed = |reason: String| Error::io("read back", path)(io::Error::other(reason));
    let as_failed = |error: Error| match error {
        Error::Corrupt { offset, reason, .. } => failed(format!("{reason} (offset {offset})")),
        other => other,
    };
    if reader.read_header().map_err(as_failed)? != header {
        return Err(failed("it has another header".into()));
    }
    let (mut read, mut freed) = (1, 0);
    while reader.read_chunk().map_err(as_failed)?.is_some() {
        read += 1;
        if reader.offset - freed >= CACHED_BYTES {
            free_cache(&reader, freed, reader.offset);
            freed = reader.offset;
        }
        if stop(reader.offset) {
            return Ok(false);
        }
    }
    match (read, reader.offset) == (records, bytes) {
        true => Ok(true),
        false => Err(failed("it has another size".into())),
    }
}

/// Reads one snapshot from its start.
pub(crate) struct SnapshotReader<F = File> {
    file: BufReader<F>,
    path: PathBuf,
    /// Offset of the next byte to be read.
    offset: u64,
}

impl SnapshotReader {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        Ok(SnapshotReader::new(BufReader::with_capacity(READ_BYTES, file), path.to_owned()))
    }
}

impl<F: Read> SnapshotReader<F> {
    pub(crate) fn new(file: BufReader<F>, path: PathBuf) -> Self {
        SnapshotReader { file, path, offset: 0 }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the header.
    pub(crate) fn read_header(&mut self) -> Result<Header, Error> {
        match Header::read(&mut self.file) {
            Ok((header, size)) => {
                self.offset += size as u64;
                Ok(header)
            }
            Err(HeaderError::Damaged) => {
                Err(self.corrupt("it has no valid snapshot header".into()))
            }
            Err(HeaderError::Truncated) => Err(self.corrupt("it is truncated".into())),
            Err(HeaderError::Newer(found)) => Err(Error::NewerFormat {
                path: self.path.clone(),
                found: found.into(),
                supported: header::FORMAT.into(),
            }),
            Err(HeaderError::Io(cause)) => Err(Error::read(&self.path, self.offset)(cause)),
        }
    }

    /// Reads the next chunk; `None` at the end of the snapshot.
    pub(crate) fn read_chunk(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let mut bytes = vec![0; RECORD_HEADER_BYTES];
        self.read(&mut bytes)?;
        let len = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]) as u64;
        // The length may be damaged. So use `take`, and do not allocate a buffer of that
        // size.
        let start = self.offset - RECORD_HEADER_BYTES as u64;
        let payload_len = io::Read::by_ref(&mut self.file).take(len).read_to_end(&mut bytes);
        self.offset += payload_len.map_err(Error::read(&self.path, start))? as u64;
        match framing::decode_record(NO_SALT, &bytes) {
            None => {
                self.offset = start;
                Err(self.corrupt("a chunk is damaged".into()))
            }
            Some(record) if record.payload.is_empty() => Ok(None),
            Some(_) => {
                bytes.drain(..RECORD_HEADER_BYTES);
                Ok(Some(bytes))
            }
        }
    }

    /// Returns the error of a snapshot that is damaged at the current offset.
    pub(crate) fn corrupt(&self, reason: String) -> Error {
        Error::Corrupt { file: self.path.clone(), offset: self.offset, reason }
    }

    /// Returns the error of a snapshot whose last chunk cannot be used.
    pub(crate) fn payload_error(&self, error: PayloadError) -> Error {
        error.at(&self.path, self.offset)
    }

    /// Fills `bytes` from the file. Fails if the file ends before.
    fn read(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        match self.file.read_exact(bytes) {
            Ok(()) => {
                self.offset += bytes.len() as u64;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(self.corrupt("it is truncated".into()))
            }
            Err(error) => Err(Error::read(&self.path, self.offset)(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file whose first bytes can be read, and the next cannot.
    struct Unreadable(io::Cursor<Vec<u8>>);

    impl Read for Unreadable {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            match self.0.read(bytes)? {
                0 => Err(io::Error::from_raw_os_error(5)),
                read => Ok(read),
            }
        }
    }

    /// A part that cannot be read is damage, at the offset of its header or chunk.
    #[test]
    fn an_unreadable_part_is_damage() {
        let mut content = Header { covered: 7, owner: None }.encode();
        let header_bytes = content.len();
        framing::encode_record(NO_SALT, 1, 0, b"chunk", &mut content);
        let chunk_end = content.len();
        framing::encode_record(NO_SALT, 2, 0, b"another chunk", &mut content);
        for (readable, expected) in [
            (3, 0),
            (header_bytes + 2, header_bytes),
            (chunk_end, chunk_end),
            (content.len() - 2, chunk_end),
        ] {
            let file = Unreadable(io::Cursor::new(content[..readable].to_vec()));
            let mut reader = SnapshotReader::new(BufReader::new(file), "file".into());
            let error = match reader.read_header() {
                Err(error) => error,
                Ok(_) => loop {
                    if let Err(error) = reader.read_chunk() {
                        break error;
                    }
                },
            };
            let Error::Corrupt { offset, reason, .. } = &error else { panic!("{error}") };
            let found = (*offset, reason.contains("cannot be read"));
            assert_eq!(found, (expected as u64, true), "{readable} bytes: {error}");
        }
    }
}
