//! The snapshots in a directory.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use files::{Error, discard};

use crate::file::{SnapshotReader, SnapshotWriter};

/// Extension of a complete snapshot.
const EXTENSION: &str = "snap";
/// Extension of a snapshot that is being written.
const UNFINISHED: &str = "unfinished";

/// The snapshots in a directory, which may be on another disk than the log.
#[derive(Clone, Debug)]
pub struct Snapshots {
    directory: PathBuf,
}

impl Snapshots {
    /// Opens `directory`, and creates it if it is missing. Removes the unfinished files
    /// that a crash has left.
    pub fn open(directory: PathBuf) -> Result<Self, Error> {
        fs::create_dir_all(&directory).map_err(Error::io("create", &directory))?;
        discard::remove_discarded(&directory).map_err(Error::io("clean", &directory))?;
        let snapshots = Snapshots { directory };
        for path in snapshots.list(UNFINISHED)? {
            fs::remove_file(&path).map_err(Error::io("remove", path))?;
        }
        Ok(snapshots)
    }

    /// Returns the snapshots in `directory`, without creating or removing any file.
    pub fn existing(directory: PathBuf) -> Self {
        Snapshots { directory }
    }

    /// Returns the path of the newest snapshot.
    pub fn newest(&self) -> Result<Option<PathBuf>, Error> {
        Ok(self.list(EXTENSION)?.pop())
    }

    /// Returns the covered record in the file name of the newest snapshot; 0 without a
    /// snapshot.
    pub fn newest_covered_record(&self) -> Result<u64, Error> {
        let newest = self.newest()?;
        let covered = newest.as_ref().and_then(|path| path.file_stem()?.to_str()?.parse().ok());
        Ok(covered.unwrap_or(0))
    }

    /// Renames the damaged snapshot at `path` to `renamed`, a name that readers ignore.
    pub fn set_aside(&self, path: &Path, renamed: &Path) -> Result<(), Error> {
        fs::rename(path, renamed).map_err(Error::io("rename", path))?;
        let sync = || File::open(&self.directory)?.sync_all();
        sync().map_err(Error::io("fsync", &self.directory))
    }

    /// Starts a snapshot of the store after record `covered`.
    pub fn create(&self, covered: u64) -> Result<SnapshotWriter, Error> {
        fs::create_dir_all(&self.directory).map_err(Error::io("create", &self.directory))?;
        let final_path = self.directory.join(format!("{covered:020}.{EXTENSION}"));
        SnapshotWriter::create(final_path.with_extension(UNFINISHED), final_path, covered)
    }

    /// Passes the chunks of the newest snapshot to `visit`, in order. Returns the covered
    /// record of the snapshot; 0 without a snapshot. Reports an error of `visit` as
    /// damage.
    pub fn load(&self, mut visit: impl FnMut(&[u8]) -> Result<(), String>) -> Result<u64, Error> {
        let Some(path) = self.newest()? else { return Ok(0) };
        let file = File::open(&path).map_err(Error::io("open", &path))?;
        let mut reader = SnapshotReader::new(BufReader::with_capacity(1 << 20, file), path);
        let covered = reader.read_header()?;
        while let Some(chunk) = reader.read_chunk()? {
            visit(&chunk).map_err(|reason| reader.corrupt(reason))?;
        }
        Ok(covered)
    }

    /// Removes all snapshots but the newest.
    pub fn remove_older(&self) -> Result<(), Error> {
        let mut older = self.list(EXTENSION)?;
        older.pop();
        older
            .into_iter()
            .try_for_each(|path| discard::discard(&path).map_err(Error::io("remove", path)))
    }

    /// Returns the paths with an extension, in ascending order of their covered records.
    fn list(&self, extension: &str) -> Result<Vec<PathBuf>, Error> {
        let read = || -> io::Result<Vec<PathBuf>> {
            fs::read_dir(&self.directory)?.map(|entry| Ok(entry?.path())).collect()
        };
        let mut paths = match read() {
            // The directory does not exist before the first snapshot.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            paths => paths.map_err(Error::io("list", &self.directory))?,
        };
        paths.retain(|path| path.extension().is_some_and(|found| found == extension));
        paths.sort_unstable();
        Ok(paths)
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
        chunks.iter().for_each(|chunk| writer.write_chunk(chunk).unwrap());
        writer.finish().unwrap();
    }

    #[test]
    fn load_reads_the_newest_complete_snapshot() {
        let dir = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::open(dir.path().join("snap")).unwrap();
        assert_eq!(load(&snapshots).unwrap(), (0, vec![]));
        write(&snapshots, 9, &[b"old"]);
        write(&snapshots, 10, &[b"one", &[7; 5000]]);
        // A crash interrupts the next snapshot.
        let mut unfinished = snapshots.create(11).unwrap();
        unfinished.write_chunk(b"lost").unwrap();
        drop(unfinished);
        let snapshots = Snapshots::open(dir.path().join("snap")).unwrap();
        let expected = (10, vec![b"one".to_vec(), vec![7; 5000]]);
        assert_eq!(load(&snapshots).unwrap(), expected);
        snapshots.remove_older().unwrap();
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
            assert!(refused, "changed byte {byte}: {error}");
            fs::write(&path, &good[..byte]).unwrap();
            assert!(load(&snapshots).is_err(), "truncated at byte {byte}");
        }
    }
}
