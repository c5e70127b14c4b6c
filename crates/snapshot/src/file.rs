//! Reads and writes one snapshot file.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use files::Error;
use files::framing::{self, HEADER_BYTES, Header, Magic, RECORD_HEADER_BYTES};

use crate::direct_writer::DirectWriter;

/// First bytes of every snapshot.
pub(crate) const MAGIC: Magic = *b"K1MSNP";
/// Salt (start value) of the checksums. The log needs a random salt because recovery
/// searches its bytes for records. A snapshot is only read from its start, so 0 is
/// enough.
pub(crate) const NO_SALT: u32 = 0;

/// Writes one snapshot. If it is dropped before [`SnapshotWriter::finish`], the
/// unfinished file remains, which is never read.
pub struct SnapshotWriter {
    file: DirectWriter,
    /// Path of the file while it is written.
    path: PathBuf,
    /// Path of the file once it is complete.
    final_path: PathBuf,
    /// Number of records so far, including the empty one at the end.
    records: u64,
    /// Size of the written records and the header in bytes.
    bytes: u64,
    buffer: Vec<u8>,
}

impl SnapshotWriter {
    /// Starts a snapshot. `covered` is the number of the last log record that it
    /// includes. The snapshot is written to `path`, and renamed to `final_path` when it
    /// is complete.
    pub(crate) fn create(path: PathBuf, final_path: PathBuf, covered: u64) -> Result<Self, Error> {
        let file = DirectWriter::create(&path).map_err(Error::io("create", &path))?;
        let mut writer =
            SnapshotWriter { file, path, final_path, records: 0, bytes: 0, buffer: Vec::new() };
        writer.write(&framing::encode_header(MAGIC, covered, NO_SALT))?;
        Ok(writer)
    }

    /// Appends a chunk. `payload` must not be empty.
    pub fn write_chunk(&mut self, payload: &[u8]) -> Result<(), Error> {
        assert!(!payload.is_empty(), "an empty record marks the end");
        self.write_record(payload)
    }

    /// Completes the snapshot, makes it durable, and gives it its final name. Returns its
    /// size in bytes.
    pub fn finish(mut self) -> Result<u64, Error> {
        self.write_record(&[])?;
        let (path, final_path) = (&self.path, &self.final_path);
        self.file.finish().map_err(Error::io("complete", path))?;
        fs::rename(path, final_path).map_err(Error::io("rename", path))?;
        let directory = final_path.parent().unwrap_or(Path::new("."));
        let sync = || File::open(directory)?.sync_all();
        sync().map_err(Error::io("fsync", directory))?;
        Ok(self.bytes)
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
        self.file.write_all(bytes).map_err(Error::io("write to", &self.path))
    }
}

/// Reads one snapshot from its start.
pub(crate) struct SnapshotReader {
    file: BufReader<File>,
    path: PathBuf,
    /// Offset of the next byte to be read.
    offset: u64,
}

impl SnapshotReader {
    pub(crate) fn new(file: BufReader<File>, path: PathBuf) -> Self {
        SnapshotReader { file, path, offset: 0 }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the header. Returns the number of the last log record that the snapshot
    /// includes.
    pub(crate) fn read_header(&mut self) -> Result<u64, Error> {
        let mut header = [0; HEADER_BYTES];
        self.read(&mut header)?;
        match framing::decode_header(MAGIC, &header) {
            Header::Valid { number, .. } => Ok(number),
            Header::Damaged => Err(self.corrupt("it has no valid snapshot header".into())),
            Header::Newer { format } => Err(Error::newer_format(&self.path, format)),
        }
    }

    /// Reads the next chunk; `None` at the end of the snapshot.
    pub(crate) fn read_chunk(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let mut bytes = vec![0; RECORD_HEADER_BYTES];
        self.read(&mut bytes)?;
        let len = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]) as u64;
        // The length may be damaged. So use `take`, and do not allocate a buffer of that
        // size.
        let start = self.offset;
        let payload_len = io::Read::by_ref(&mut self.file).take(len).read_to_end(&mut bytes);
        self.offset += payload_len.map_err(Error::io("read", &self.path))? as u64;
        match framing::decode_record(NO_SALT, &bytes) {
            None => {
                self.offset = start - RECORD_HEADER_BYTES as u64;
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
            Err(error) => Err(Error::io("read", &self.path)(error)),
        }
    }
}
