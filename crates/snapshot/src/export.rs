//! Exported snapshots: the files that `etcdctl snapshot save` writes.
//!
//! ```text
//! snapshot (crate::file) · zeros up to a multiple of 512 · SHA-256 of all bytes before
//! ```
//! etcd's tools accept a file as complete if its size is 32 bytes more than a multiple of
//! 512 and the hash matches.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::path::Path;

use files::{Error, PayloadError, framing};
use ring::digest::{Context, SHA256};

use crate::file::{NO_SALT, SnapshotReader};
use crate::header::Header;

/// Size of the hash at the end of the file in bytes.
const HASH_BYTES: u64 = 32;
/// The size of the file without the hash is a multiple of this number of bytes.
const ALIGNMENT: u64 = 512;
/// Size of a read in bytes.
const READ_BYTES: usize = 1 << 20;

/// Encodes an exported snapshot in parts. The file consists of the parts that the methods
/// return, in order.
pub struct Exporter {
    /// Hashes the parts returned so far.
    hash: Context,
    /// Number of records so far, including the empty one at the end.
    records: u64,
    /// Size of the parts returned so far in bytes.
    bytes: u64,
}

impl Exporter {
    /// Starts a snapshot. Also returns its first part, the header.
    pub fn new() -> (Exporter, Vec<u8>) {
        let mut exporter = Exporter { hash: Context::new(&SHA256), records: 0, bytes: 0 };
        let header = Header { covered: 0, owner: None }.encode();
        exporter.add(&header);
        (exporter, header)
    }

    /// Returns the part with a chunk. `payload` must not be empty.
    pub fn encode_chunk(&mut self, payload: &[u8]) -> Vec<u8> {
        assert!(!payload.is_empty(), "an empty record marks the end");
        self.encode_record(payload)
    }

    /// Returns the last two parts: the end of the snapshot, and the hash.
    pub fn finish(mut self) -> (Vec<u8>, Vec<u8>) {
        let mut end = self.encode_record(&[]);
        let zeros = vec![0; (self.bytes.next_multiple_of(ALIGNMENT) - self.bytes) as usize];
        self.add(&zeros);
        end.extend(zeros);
        (end, self.hash.finish().as_ref().to_vec())
    }

    fn encode_record(&mut self, payload: &[u8]) -> Vec<u8> {
        self.records += 1;
        let mut bytes = Vec::with_capacity(framing::RECORD_HEADER_BYTES + payload.len());
        framing::encode_record(NO_SALT, self.records, 0, payload, &mut bytes);
        self.add(&bytes);
        bytes
    }

    /// Adds a part to the hash and to the size.
    fn add(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
    }
}

/// A snapshot file that is to be read: an exported one, or one from a data directory.
pub struct Import {
    reader: SnapshotReader,
    /// Size in bytes, without the hash.
    bytes: u64,
    /// Whether the file has a hash at its end.
    has_hash: bool,
}

impl Import {
    /// Opens `path`, and verifies its hash unless `skip_hash_check` is set.
    pub fn open(path: &Path, skip_hash_check: bool) -> Result<Import, Error> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let size = file.metadata().map_err(Error::io("read", path))?.len();
        let has_hash = size % ALIGNMENT == HASH_BYTES;
        let bytes = if has_hash { size - HASH_BYTES } else { size };
        let mut file = BufReader::with_capacity(READ_BYTES, file);
        if !skip_hash_check {
            check_hash(&mut file, path, bytes, has_hash)?;
        }
        Ok(Import { reader: SnapshotReader::new(file, path.to_owned()), bytes, has_hash })
    }

    /// Whether the file has a hash at its end.
    pub fn has_hash(&self) -> bool {
        self.has_hash
    }

    /// Returns the size in bytes, without the hash.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Passes the chunks to `visit`, in order.
    pub fn read(
        self,
        mut visit: impl FnMut(&[u8]) -> Result<(), PayloadError>,
    ) -> Result<(), Error> {
        let mut reader = self.reader;
        let as_bad_snapshot = |error: Error, path: &Path| match error {
            Error::Corrupt { offset, reason, .. } => {
                bad_snapshot(path, format!("{reason} at offset {offset}"))
            }
            other => other,
        };
        let path = reader.path().to_owned();
        reader.read_header().map_err(|error| as_bad_snapshot(error, &path))?;
        while let Some(chunk) =
            reader.read_chunk().map_err(|error| as_bad_snapshot(error, &path))?
        {
            visit(&chunk).map_err(|error| match error {
                PayloadError::Damaged(reason) => bad_snapshot(&path, reason),
                newer => reader.payload_error(newer),
            })?;
        }
        Ok(())
    }
}

/// Verifies the hash at the end of `file`. `bytes` is the size of the file without the
/// hash. Then seeks back to the start of the file.
fn check_hash(
    file: &mut BufReader<File>,
    path: &Path,
    bytes: u64,
    has_hash: bool,
) -> Result<(), Error> {
    if !has_hash {
        let reason = "it has no hash at its end: it is truncated, or it is a snapshot from a data directory, which needs --skip-hash-check";
        return Err(bad_snapshot(path, reason.into()));
    }
    let mut context = Context::new(&SHA256);
    let mut buffer = vec![0; READ_BYTES];
    let mut remaining = bytes;
    while remaining > 0 {
        let len = remaining.min(READ_BYTES as u64) as usize;
        file.read_exact(&mut buffer[..len]).map_err(Error::io("read", path))?;
        context.update(&buffer[..len]);
        remaining -= len as u64;
    }
    let mut expected = [0; HASH_BYTES as usize];
    file.read_exact(&mut expected).map_err(Error::io("read", path))?;
    if context.finish().as_ref() != expected {
        return Err(bad_snapshot(path, "its hash does not match: it is damaged".into()));
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
        chunks.iter().for_each(|chunk| file.extend(exporter.encode_chunk(chunk)));
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
    fn an_import_reads_what_was_exported_and_detects_damage() {
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
            assert!(matches!(read(&path), Err(Error::BadSnapshot { .. })), "changed byte {byte}");
            fs::write(&path, &good[..byte]).unwrap();
            assert!(
                matches!(read(&path), Err(Error::BadSnapshot { .. })),
                "truncated at byte {byte}"
            );
        }
    }

    #[test]
    fn a_snapshot_from_a_data_directory_needs_skip_hash_check() {
        let dir = tempfile::tempdir().unwrap();
        let identity = files::Identity { cluster_id: 1, member_id: 2 };
        let manifest = dir.path().join("MANIFEST");
        let snapshots = crate::Snapshots::open(dir.path().to_owned(), manifest, identity).unwrap();
        let mut writer = snapshots.create(5).unwrap();
        writer.write_chunk(b"chunk").unwrap();
        writer.finish().unwrap();
        let path = dir.path().join("00000000000000000005.snap");
        assert!(Import::open(&path, false).is_err());
        let import = Import::open(&path, true).unwrap();
        assert!(!import.has_hash());
        let mut chunks = 0;
        let count = |_: &[u8]| {
            chunks += 1;
            Ok(())
        };
        import.read(count).unwrap();
        assert_eq!(chunks, 1);
    }
}
