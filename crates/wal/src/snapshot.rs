//! Snapshots: the state at a record of the log, so that the log before it can go.
//!
//! ```text
//! file:  magic "K1MSNP" (6) · format u16 · covered u64 · salt u32, 0 · crc32c u32   = 24 bytes
//!        record  record  …  empty record
//! ```
//! Records are those of the log ([`crate::segment`]), numbered from 1; the empty
//! one at the end says that the file is complete. A snapshot gets its name only
//! when it is complete and durable, so a file with a name that does not read to
//! its end is damaged.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::Error;
use crate::data_dir;
use crate::direct::DirectWriter;
use crate::discard;
use crate::segment::{self, HEADER_BYTES, Header, RECORD_HEADER_BYTES};

const EXTENSION: &str = "snap";
const UNFINISHED: &str = "unfinished";
/// A snapshot is read from its start, never searched, so it needs none.
pub(crate) const NO_SALT: u32 = 0;

/// The snapshots in a directory, which may lie on another disk than the log.
#[derive(Clone, Debug)]
pub struct Snapshots {
    directory: PathBuf,
}

/// A snapshot being written. Dropped before it is finished, it leaves nothing
/// that is ever read.
pub struct SnapshotWriter {
    file: DirectWriter,
    path: PathBuf,
    named: PathBuf,
    chunks: u64,
    bytes: u64,
    buffer: Vec<u8>,
}

impl Snapshots {
    /// The snapshots in `directory`, which is created if it is missing; what a
    /// crash left unfinished there is removed.
    pub fn open(directory: PathBuf) -> Result<Self, Error> {
        fs::create_dir_all(&directory).map_err(Error::io("create", &directory))?;
        discard::sweep(&directory).map_err(Error::io("clean", &directory))?;
        let snapshots = Snapshots { directory };
        for path in snapshots.files(UNFINISHED)? {
            fs::remove_file(&path).map_err(Error::io("remove", path))?;
        }
        Ok(snapshots)
    }

    /// The snapshots in `directory` as they are, for looking only.
    pub fn existing(directory: PathBuf) -> Self {
        Snapshots { directory }
    }

    /// The newest snapshot, if there is one.
    pub fn newest(&self) -> Result<Option<PathBuf>, Error> {
        Ok(self.files(EXTENSION)?.pop())
    }

    /// What the newest snapshot covers, as its name has it; 0 without a snapshot.
    pub fn newest_covers(&self) -> Result<u64, Error> {
        let newest = self.newest()?;
        let name = newest.as_ref().and_then(|path| path.file_stem()?.to_str()?.parse().ok());
        Ok(name.unwrap_or(0))
    }

    /// Takes a damaged snapshot out of the way, and returns where it is now.
    pub fn set_aside(&self, path: &Path) -> Result<PathBuf, Error> {
        let aside = data_dir::free_name(path);
        fs::rename(path, &aside).map_err(Error::io("rename", path))?;
        let sync = || File::open(&self.directory)?.sync_all();
        sync().map_err(Error::io("fsync", &self.directory))?;
        Ok(aside)
    }

    /// Starts a snapshot of the state after record `covered`.
    pub fn create(&self, covered: u64) -> Result<SnapshotWriter, Error> {
        fs::create_dir_all(&self.directory).map_err(Error::io("create", &self.directory))?;
        let named = self.directory.join(format!("{covered:020}.{EXTENSION}"));
        let path = named.with_extension(UNFINISHED);
        let file = DirectWriter::create(&path).map_err(Error::io("create", &path))?;
        let mut writer =
            SnapshotWriter { file, path, named, chunks: 0, bytes: 0, buffer: Vec::new() };
        writer.write(&segment::encode_header(segment::SNAPSHOT, covered, NO_SALT))?;
        Ok(writer)
    }

    /// Hands the chunks of the newest snapshot to `visit`, in order, and returns
    /// which record it covers; 0 without a snapshot.
    pub fn load(&self, mut visit: impl FnMut(&[u8]) -> Result<(), String>) -> Result<u64, Error> {
        let Some(path) = self.newest()? else { return Ok(0) };
        let file = File::open(&path).map_err(Error::io("open", &path))?;
        let mut reader = Reader::new(BufReader::with_capacity(1 << 20, file), path);
        let covered = reader.header()?;
        while let Some(chunk) = reader.chunk()? {
            visit(&chunk).map_err(|reason| reader.corrupt(reason))?;
        }
        Ok(covered)
    }

    /// Removes all snapshots but the newest.
    pub fn trim(&self) -> Result<(), Error> {
        let mut files = self.files(EXTENSION)?;
        files.pop();
        files
            .into_iter()
            .try_for_each(|path| discard::discard(&path).map_err(Error::io("remove", path)))
    }

    /// Paths with an extension, in the order of what they cover.
    fn files(&self, extension: &str) -> Result<Vec<PathBuf>, Error> {
        let list = || -> io::Result<Vec<PathBuf>> {
            fs::read_dir(&self.directory)?.map(|entry| Ok(entry?.path())).collect()
        };
        let mut paths = match list() {
            // None was taken yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            paths => paths.map_err(Error::io("list", &self.directory))?,
        };
        paths.retain(|path| path.extension().is_some_and(|found| found == extension));
        paths.sort_unstable();
        Ok(paths)
    }
}

impl SnapshotWriter {
    /// Appends a chunk, which must not be empty.
    pub fn chunk(&mut self, payload: &[u8]) -> Result<(), Error> {
        assert!(!payload.is_empty(), "the empty chunk is the end");
        self.record(payload)
    }

    /// Completes the snapshot and makes it durable; only then has it its name.
    /// Returns its size in bytes.
    pub fn finish(mut self) -> Result<u64, Error> {
        self.record(&[])?;
        let (path, named) = (&self.path, &self.named);
        self.file.finish().map_err(Error::io("complete", path))?;
        fs::rename(path, named).map_err(Error::io("rename", path))?;
        let directory = named.parent().unwrap_or(Path::new("."));
        let sync = || File::open(directory)?.sync_all();
        sync().map_err(Error::io("fsync", directory))?;
        Ok(self.bytes)
    }

    fn record(&mut self, payload: &[u8]) -> Result<(), Error> {
        self.chunks += 1;
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        segment::encode_record(NO_SALT, self.chunks, 0, payload, &mut buffer);
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
pub(crate) struct Reader {
    file: BufReader<File>,
    path: PathBuf,
    offset: u64,
}

impl Reader {
    pub(crate) fn new(file: BufReader<File>, path: PathBuf) -> Self {
        Reader { file, path, offset: 0 }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What the snapshot covers.
    pub(crate) fn header(&mut self) -> Result<u64, Error> {
        let mut header = [0; HEADER_BYTES];
        self.read(&mut header)?;
        match segment::decode_header(segment::SNAPSHOT, &header) {
            Header::Valid { first, .. } => Ok(first),
            Header::Damaged => Err(self.corrupt("it does not begin like a snapshot".into())),
            Header::Newer { format } => Err(Error::NewerFormat {
                path: self.path.clone(),
                found: format.into(),
                supported: segment::FORMAT.into(),
            }),
        }
    }

    /// The next chunk; `None` at the end that was written.
    pub(crate) fn chunk(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let mut bytes = vec![0; RECORD_HEADER_BYTES];
        self.read(&mut bytes)?;
        let len = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]) as u64;
        // By `take` and not by a buffer of that size: the length may be damaged.
        let start = self.offset;
        let rest = io::Read::by_ref(&mut self.file).take(len).read_to_end(&mut bytes);
        self.offset += rest.map_err(Error::io("read", &self.path))? as u64;
        match segment::decode_record(NO_SALT, &bytes) {
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

    fn read(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        match self.file.read_exact(bytes) {
            Ok(()) => {
                self.offset += bytes.len() as u64;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(self.corrupt("it is cut short".into()))
            }
            Err(error) => Err(Error::io("read", &self.path)(error)),
        }
    }

    fn corrupt(&self, reason: String) -> Error {
        Error::Corrupt { file: self.path.clone(), offset: self.offset, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(snapshots: &Snapshots) -> Result<(u64, Vec<Vec<u8>>), Error> {
        let mut chunks = Vec::new();
        let covered = snapshots.load(|chunk| {
            chunks.push(chunk.to_vec());
            Ok(())
        })?;
        Ok((covered, chunks))
    }

    fn write(snapshots: &Snapshots, covered: u64, chunks: &[&[u8]]) {
        let mut writer = snapshots.create(covered).unwrap();
        chunks.iter().for_each(|chunk| writer.chunk(chunk).unwrap());
        writer.finish().unwrap();
    }

    #[test]
    fn the_newest_complete_one_counts() {
        let dir = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::open(dir.path().join("snap")).unwrap();
        assert_eq!(load(&snapshots).unwrap(), (0, vec![]));
        write(&snapshots, 9, &[b"old"]);
        write(&snapshots, 10, &[b"one", &[7; 5000]]);
        // A crash in the middle of the next one.
        let mut unfinished = snapshots.create(11).unwrap();
        unfinished.chunk(b"lost").unwrap();
        drop(unfinished);
        let snapshots = Snapshots::open(dir.path().join("snap")).unwrap();
        let expected = (10, vec![b"one".to_vec(), vec![7; 5000]]);
        assert_eq!(load(&snapshots).unwrap(), expected);
        snapshots.trim().unwrap();
        assert_eq!(load(&snapshots).unwrap(), expected);
        assert_eq!(fs::read_dir(dir.path().join("snap")).unwrap().count(), 1);
    }

    #[test]
    fn any_damage_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::open(dir.path().to_owned()).unwrap();
        write(&snapshots, 5, &[b"some", b"chunks"]);
        let path = dir.path().join("00000000000000000005.snap");
        let good = fs::read(&path).unwrap();
        for byte in 0..good.len() {
            let mut bad = good.clone();
            bad[byte] ^= 0x10;
            fs::write(&path, bad).unwrap();
            let error = load(&snapshots).unwrap_err();
            let refused = matches!(error, Error::Corrupt { .. } | Error::NewerFormat { .. });
            assert!(refused, "byte {byte}: {error}");
            fs::write(&path, &good[..byte]).unwrap();
            assert!(load(&snapshots).is_err(), "cut at {byte}");
        }
    }
}
