//! A snapshot as one run of bytes, to be kept elsewhere.
//!
//! ```text
//! a snapshot (crate::snapshot) · zeros up to a multiple of 512 · SHA-256 of all before
//! ```
//! The hash at the end, and that only it crosses a multiple of 512, is how etcd's
//! own tools tell a snapshot that arrived whole.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::path::Path;

use ring::digest::{Context, SHA256};

use crate::Error;
use crate::segment;
use crate::snapshot::{NO_SALT, Reader};

const HASH_BYTES: u64 = 32;
const ALIGNMENT: u64 = 512;
const READ_BYTES: usize = 1 << 20;

/// Makes the bytes, piece by piece. They are to be kept in the order in which
/// they are returned.
pub struct Exporter {
    hash: Context,
    chunks: u64,
    bytes: u64,
}

impl Exporter {
    /// Begins a snapshot; with its first bytes.
    pub fn new() -> (Exporter, Vec<u8>) {
        let mut exporter = Exporter { hash: Context::new(&SHA256), chunks: 0, bytes: 0 };
        let header = segment::encode_header(segment::SNAPSHOT, 0, NO_SALT).to_vec();
        exporter.note(&header);
        (exporter, header)
    }

    /// The bytes of a chunk, whose payload must not be empty.
    pub fn chunk(&mut self, payload: &[u8]) -> Vec<u8> {
        assert!(!payload.is_empty(), "the empty chunk is the end");
        self.record(payload)
    }

    /// The bytes of the end, and separately the hash.
    pub fn finish(mut self) -> (Vec<u8>, Vec<u8>) {
        let mut end = self.record(&[]);
        let zeros = vec![0; (self.bytes.next_multiple_of(ALIGNMENT) - self.bytes) as usize];
        self.note(&zeros);
        end.extend(zeros);
        (end, self.hash.finish().as_ref().to_vec())
    }

    fn record(&mut self, payload: &[u8]) -> Vec<u8> {
        self.chunks += 1;
        let mut bytes = Vec::with_capacity(segment::RECORD_HEADER_BYTES + payload.len());
        segment::encode_record(NO_SALT, self.chunks, 0, payload, &mut bytes);
        self.note(&bytes);
        bytes
    }

    fn note(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
    }
}

/// A file with an exported snapshot, or with one from a data directory.
pub struct Import {
    reader: Reader,
    /// Bytes without the hash.
    bytes: u64,
    hashed: bool,
}

impl Import {
    /// Opens `path`, and checks its hash unless that is to be skipped.
    pub fn open(path: &Path, skip_hash_check: bool) -> Result<Import, Error> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let size = file.metadata().map_err(Error::io("read", path))?.len();
        let hashed = size % ALIGNMENT == HASH_BYTES;
        let bytes = if hashed { size - HASH_BYTES } else { size };
        let mut file = BufReader::with_capacity(READ_BYTES, file);
        if !skip_hash_check {
            check_hash(&mut file, path, bytes, hashed)?;
        }
        Ok(Import { reader: Reader::new(file, path.to_owned()), bytes, hashed })
    }

    /// Whether a hash stands at the end.
    pub fn is_hashed(&self) -> bool {
        self.hashed
    }

    /// The size in bytes, without the hash.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Hands the payload of each chunk to `visit`, in order.
    pub fn read(self, mut visit: impl FnMut(&[u8]) -> Result<(), String>) -> Result<(), Error> {
        let mut reader = self.reader;
        let bad = |error: Error, path: &Path| match error {
            Error::Corrupt { offset, reason, .. } => {
                bad_snapshot(path, format!("{reason} at offset {offset}"))
            }
            other => other,
        };
        let path = reader.path().to_owned();
        reader.header().map_err(|error| bad(error, &path))?;
        while let Some(chunk) = reader.chunk().map_err(|error| bad(error, &path))? {
            visit(&chunk).map_err(|reason| bad_snapshot(&path, reason))?;
        }
        Ok(())
    }
}

fn check_hash(
    file: &mut BufReader<File>,
    path: &Path,
    bytes: u64,
    hashed: bool,
) -> Result<(), Error> {
    if !hashed {
        let reason = "it has no hash at its end; it was cut short, or comes from a data directory (--skip-hash-check)";
        return Err(bad_snapshot(path, reason.into()));
    }
    let mut context = Context::new(&SHA256);
    let mut buffer = vec![0; READ_BYTES];
    let mut left = bytes;
    while left > 0 {
        let len = left.min(READ_BYTES as u64) as usize;
        file.read_exact(&mut buffer[..len]).map_err(Error::io("read", path))?;
        context.update(&buffer[..len]);
        left -= len as u64;
    }
    let mut expected = [0; HASH_BYTES as usize];
    file.read_exact(&mut expected).map_err(Error::io("read", path))?;
    if context.finish().as_ref() != expected {
        return Err(bad_snapshot(path, "its hash does not fit: it is damaged".into()));
    }
    file.seek(io::SeekFrom::Start(0)).map_err(Error::io("read", path))?;
    Ok(())
}

fn bad_snapshot(path: &Path, reason: String) -> Error {
    Error::BadSnapshot { path: path.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn exported(chunks: &[&[u8]]) -> Vec<u8> {
        let (mut exporter, mut file) = Exporter::new();
        chunks.iter().for_each(|chunk| file.extend(exporter.chunk(chunk)));
        let (end, hash) = exporter.finish();
        file.extend(end);
        file.extend(hash);
        file
    }

    fn read(path: &Path) -> Result<Vec<Vec<u8>>, Error> {
        let mut chunks = Vec::new();
        Import::open(path, false)?.read(|chunk| {
            chunks.push(chunk.to_vec());
            Ok(())
        })?;
        Ok(chunks)
    }

    #[test]
    fn reads_what_it_wrote_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        for size in [1, 400, 440, 441, 512, 5000] {
            let chunk = vec![7; size];
            let good = exported(&[b"one", &chunk]);
            assert_eq!(good.len() % 512, 32);
            fs::write(&path, &good).unwrap();
            assert_eq!(read(&path).unwrap(), [b"one".to_vec(), chunk]);
        }
        let good = exported(&[b"some", b"chunks"]);
        for byte in 0..good.len() {
            let mut bad = good.clone();
            bad[byte] ^= 0x10;
            fs::write(&path, bad).unwrap();
            assert!(matches!(read(&path), Err(Error::BadSnapshot { .. })), "byte {byte}");
            fs::write(&path, &good[..byte]).unwrap();
            assert!(matches!(read(&path), Err(Error::BadSnapshot { .. })), "cut at {byte}");
        }
    }

    #[test]
    fn without_the_check_one_from_a_data_directory_will_do() {
        let dir = tempfile::tempdir().unwrap();
        let snapshots = crate::Snapshots::open(dir.path().to_owned()).unwrap();
        let mut writer = snapshots.create(5).unwrap();
        writer.chunk(b"chunk").unwrap();
        writer.finish().unwrap();
        let path = dir.path().join("00000000000000000005.snap");
        assert!(Import::open(&path, false).is_err());
        let import = Import::open(&path, true).unwrap();
        assert!(!import.is_hashed());
        let mut chunks = 0;
        let count = |_: &[u8]| {
            chunks += 1;
            Ok(())
        };
        import.read(count).unwrap();
        assert_eq!(chunks, 1);
    }
}
