//! From a snapshot that was kept elsewhere to a data directory.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use mvcc::{Effect, Effects, HashCursor, Store};
use wal::{DataDir, Identity, Import, Snapshots};

use crate::replay::Replay;
use crate::snapshotter::write_all;
use crate::{OpenError, etcd_file};

/// Keys or events that are hashed at a time.
const STEP: usize = 1000;
/// By so many bytes a file of etcd is told from ours.
const LOOK_BYTES: u64 = 64;
/// What the snapshot in a new directory covers: a log that does not exist, so
/// that the log which begins behind it is known to need it.
const COVERED: u64 = 1;

/// A snapshot that was read and understood.
pub struct Saved {
    store: Store,
    bytes: u64,
}

/// What is in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedStatus {
    /// The hash of keys and history, as the server's HashKV gave it.
    pub hash: u32,
    /// The revision of the last change.
    pub revision: i64,
    /// Keys that exist.
    pub keys: i64,
    /// Size of the file in bytes, without the hash at its end.
    pub bytes: u64,
}

/// The revision would be larger than there are numbers.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("revision {revision} cannot be raised by {bump}: the sum is too large")]
pub struct BumpTooLarge {
    revision: i64,
    bump: u64,
}

impl Saved {
    /// Reads the snapshot in `file`, ours or etcd's, after checking its hash unless
    /// that is to be skipped.
    pub fn read(file: &Path, skip_hash_check: bool) -> Result<Saved, OpenError> {
        let import = Import::open(file, skip_hash_check)?;
        let bytes = import.bytes();
        if is_etcds(file)? {
            let store = etcd_file::read(file, bytes).map_err(|error| wal::Error::BadSnapshot {
                path: file.to_owned(),
                reason: error.to_string(),
            })?;
            return Ok(Saved { store, bytes });
        }
        let mut replay = Replay::default();
        import.read(|chunk| replay.record(chunk))?;
        let mut store = replay.finish();
        // What their owners did since is not known, so leases begin anew.
        let at_ms = store.clock_ms();
        store.replay(Effect::AllLeasesRenewed { at_ms }).expect("it is no write");
        Ok(Saved { store, bytes })
    }

    /// What it holds.
    pub fn status(&self) -> SavedStatus {
        let (store, revision) = (&self.store, self.store.revision());
        let mut cursor = HashCursor::new(store, revision, revision).expect("the present is there");
        while cursor.gather(store, STEP) {
            cursor.digest();
        }
        let (hash, _) = cursor.finish();
        SavedStatus { hash, revision, keys: store.stats().live_keys, bytes: self.bytes }
    }

    /// Raises the revision by `bump` and gives up all history before, so that
    /// nobody who knew the store from after the snapshot takes it for what they
    /// knew: their revisions are compacted. With 0 nothing is changed.
    pub fn bump(&mut self, bump: u64) -> Result<(), BumpTooLarge> {
        if bump == 0 {
            return Ok(());
        }
        let before = self.store.revision();
        let revision = before
            .checked_add_unsigned(bump)
            .filter(|revision| *revision < i64::MAX / 2)
            .ok_or(BumpTooLarge { revision: before, bump })?;
        for effect in [Effect::Revision(revision), Effect::Compacted { revision }] {
            self.store.replay(effect).expect("a later revision");
        }
        while self.store.collect(i64::MAX, usize::MAX) {}
        Ok(())
    }

    /// Writes the data directory of a new store, `fresh` by identity. The
    /// directory must be empty or not exist; should this be cut off, a server
    /// refuses what it left.
    pub fn write(&self, data_dir: &Path, fresh: Identity) -> Result<(), OpenError> {
        DataDir::create_filled(data_dir, fresh, |snap| {
            let writer = Snapshots::open(snap)?.create(COVERED)?;
            write_all(&self.store, Effects::new(), writer)
        })?;
        Ok(())
    }

    /// The revision of the last change.
    pub fn revision(&self) -> i64 {
        self.store.revision()
    }
}

fn is_etcds(file: &Path) -> Result<bool, wal::Error> {
    let look = || {
        let mut begin = Vec::new();
        File::open(file)?.take(LOOK_BYTES).read_to_end(&mut begin)?;
        Ok(bolt::is_bolt(&begin))
    };
    look().map_err(|cause| wal::Error::Io { action: "read", path: file.to_owned(), cause })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{Options, Pipeline};

    const FRESH: Identity = Identity { cluster_id: 1, member_id: 2 };

    fn put(pipeline: &Pipeline, key: &str) {
        let (key, value) = (key.to_owned().into(), "value".into());
        let request = etcdpb::rpc::PutRequest { key, value, ..Default::default() };
        let put = pipeline.propose(mvcc::Command::Put(request), 10);
        futures_executor::block_on(put).unwrap();
    }

    fn save(pipeline: &Pipeline, path: &Path) {
        let (mut exporter, mut file) = wal::Exporter::new();
        for payload in pipeline.export().unwrap() {
            file.extend(exporter.chunk(&payload.unwrap()));
        }
        let (end, hash) = exporter.finish();
        file.extend(end);
        file.extend(hash);
        fs::write(path, file).unwrap();
    }

    #[test]
    fn what_is_saved_can_be_restored() {
        let dir = tempfile::tempdir().unwrap();
        let options = |name| Options { data_dir: dir.path().join(name), ..Options::default() };
        let first = Pipeline::open(&options("first"), FRESH).unwrap();
        ["a", "b", "a"].iter().for_each(|key| put(&first, key));
        let file = dir.path().join("file");
        save(&first, &file);

        let mut saved = Saved::read(&file, false).unwrap();
        let status = saved.status();
        assert_eq!((status.revision, status.keys), (4, 2));
        assert_eq!(status.hash, first.hash(0).unwrap().hash);
        let target = dir.path().join("second");
        saved.write(&target, FRESH).unwrap();
        let again = saved.write(&target, FRESH).unwrap_err();
        assert!(again.to_string().contains("is not empty"), "{again}");
        let second = Pipeline::open(&options("second"), FRESH).unwrap();
        assert_eq!(second.hash(3).unwrap(), first.hash(3).unwrap());

        saved.bump(1000).unwrap();
        assert!(saved.bump(u64::MAX).is_err());
        saved.write(&dir.path().join("third"), FRESH).unwrap();
        let third = Pipeline::open(&options("third"), FRESH).unwrap();
        let state = third.status();
        assert_eq!((state.revision, state.compacted, state.stats.live_keys), (1004, 1004, 2));
        put(&third, "c");
        drop(third);
        let third = Pipeline::open(&options("third"), FRESH).unwrap();
        assert_eq!(third.revision(), 1005);
    }

    #[test]
    fn half_a_restore_is_not_taken_for_a_store() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { data_dir: dir.path().join("data"), ..Options::default() };
        let stopped = DataDir::create_filled(&options.data_dir, FRESH, |snap| {
            Snapshots::open(snap)?.create(COVERED)?.finish()?;
            Err(wal::Error::Poisoned)
        });
        assert!(stopped.is_err());
        let error = Pipeline::open(&options, FRESH).err().expect("refused").to_string();
        assert!(error.contains("it holds snap"), "{error}");
    }
}
