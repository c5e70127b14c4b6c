//! Creates a data directory from a saved snapshot (`mem_etcd restore`).

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use data_dir::{DataDir, Identity};
use mvcc::{Effect, Effects, HashCursor, Store};
use snapshot::{Import, Snapshots};

use crate::recovery_base::snapshot_directory;
use crate::replicated::restore::RestoredMember;
use crate::snapshot_write::write_snapshot;
use crate::store_builder::StoreBuilder;
use crate::{OpenError, etcd_snapshot, replicated};

/// Number of keys or events that are hashed in one step.
const STEP_ENTRIES: usize = 1000;
/// Number of bytes that suffice to recognise a file of etcd.
const SIGNATURE_BYTES: u64 = 64;
/// The covered record of the snapshot in a new directory. It is not 0, so the log starts
/// after record 1, and opening the log without the snapshot fails with `Error::Gap`.
const COVERED_RECORD: u64 = 1;

/// A saved snapshot. It was read, and its hash was verified unless that check was
/// skipped.
pub struct SavedSnapshot {
    store: Store,
    /// Size of the file in bytes, without the hash at its end.
    bytes: u64,
}

/// Status of a saved snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedSnapshotStatus {
    /// The hash that HashKV returned on the server that saved the snapshot.
    pub hash: u32,
    /// Revision of the last change.
    pub revision: i64,
    /// Number of live keys.
    pub keys: i64,
    /// Size of the file in bytes, without the hash at its end.
    pub bytes: u64,
}

/// The error of a revision that cannot be raised because it would become too large.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("revision {revision} cannot be raised by {bump}: the new revision would be too large")]
pub struct BumpTooLarge {
    revision: i64,
    bump: u64,
}

impl SavedSnapshot {
    /// Reads the snapshot in `file`, which was saved from mem_etcd or from etcd. Verifies
    /// its hash unless `skip_hash_check` is set.
    pub fn read(file: &Path, skip_hash_check: bool) -> Result<SavedSnapshot, OpenError> {
        let import = Import::open(file, skip_hash_check)?;
        let bytes = import.bytes();
        if is_from_etcd(file)? {
            let store = etcd_snapshot::read(file, bytes).map_err(|error| {
                files::Error::BadSnapshot { path: file.to_owned(), reason: error.to_string() }
            })?;
            return Ok(SavedSnapshot { store, bytes });
        }
        let mut builder = StoreBuilder::default();
        import.read(|chunk| builder.add(chunk))?;
        let mut store = builder.finish();
        // Renewals after the snapshot are unknown. So every lease gets its full TTL.
        let at_ms = store.clock_ms();
        store
            .replay(Effect::AllLeasesRenewed { at_ms })
            .expect("replaying a lease renewal never fails");
        Ok(SavedSnapshot { store, bytes })
    }

    /// Returns the status of the snapshot. Reads all keys and their history.
    pub fn status(&self) -> SavedSnapshotStatus {
        let (store, revision) = (&self.store, self.store.revision());
        let mut cursor =
            HashCursor::new(store, revision, revision).expect("the newest revision is readable");
        while cursor.gather(store, STEP_ENTRIES) {
            cursor.digest();
        }
        let (hash, _) = cursor.finish();
        SavedSnapshotStatus { hash, revision, keys: store.stats().live_keys, bytes: self.bytes }
    }

    /// Raises the revision by `bump` and compacts all history before it. A client that
    /// saw a revision after the snapshot then gets the error that its revision is
    /// compacted, and lists again. 0 changes nothing.
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
            self.store.replay(effect).expect("the revision is higher");
        }
        while self.store.collect(i64::MAX, usize::MAX) {}
        Ok(())
    }

    /// Writes the data directory of a new store with the identity `fresh`. `data_dir`
    /// must be empty or missing. The snapshot is written to `snapshot_dir` if it is set, where
    /// files of other stores are left alone. A server refuses the directory if the write was
    /// interrupted.
    pub fn write(
        &self,
        data_dir: &Path,
        snapshot_dir: Option<PathBuf>,
        fresh: Identity,
    ) -> Result<(), OpenError> {
        DataDir::create_filled(data_dir, fresh, |dir| {
            // Without a manifest, the store would adopt an older snapshot in that directory.
            snapshot::create_manifest(&dir.manifest())?;
            let writer = new_snapshots(dir, snapshot_dir)?.create(COVERED_RECORD)?;
            write_snapshot(&self.store, Effects::new(), writer)
        })?;
        Ok(())
    }

    /// Writes the data directory of a member, which is the only one of a new cluster. `data_dir` must be
    /// empty or missing. The snapshot is written to `snapshot_dir` if it is set. A server ignores the
    /// directory if the write was interrupted.
    ///
    /// # Errors
    /// If the directory is not empty, or cannot be written.
    pub fn write_member(
        &self,
        data_dir: &Path,
        snapshot_dir: Option<&Path>,
        member: RestoredMember,
    ) -> Result<(), OpenError> {
        replicated::restore::create(data_dir, snapshot_dir, member, &self.store)
    }

    /// Returns the revision of the last change.
    pub fn revision(&self) -> i64 {
        self.store.revision()
    }
}

/// Opens the snapshots of a directory that is created.
fn new_snapshots(dir: &DataDir, chosen: Option<PathBuf>) -> Result<Snapshots, files::Error> {
    Snapshots::open(snapshot_directory(dir, chosen), dir.manifest(), dir.identity())
}

/// Whether the content of `file` is a bolt database, as in a snapshot of etcd.
fn is_from_etcd(file: &Path) -> Result<bool, files::Error> {
    let is_bolt = || {
        let mut signature = Vec::new();
        File::open(file)?.take(SIGNATURE_BYTES).read_to_end(&mut signature)?;
        Ok(bolt::is_bolt(&signature))
    };
    is_bolt().map_err(|cause| files::Error::Io { action: "read", path: file.to_owned(), cause })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{ClientId, Pipeline, PipelineOptions};

    const FRESH: Identity = Identity { cluster_id: 1, member_id: 2 };

    fn put(pipeline: &Pipeline, key: &str) {
        let (key, value) = (key.to_owned().into(), "value".into());
        let request = etcdpb::rpc::PutRequest { key, value, ..Default::default() };
        let put = pipeline.propose(ClientId(0), mvcc::Command::Put(request), 10);
        futures_executor::block_on(put).unwrap();
    }

    fn save(pipeline: &Pipeline, path: &Path) {
        let (mut exporter, mut file) = snapshot::Exporter::new();
        for payload in pipeline.export_unless(&|_| false).unwrap() {
            file.extend(exporter.encode_chunk(&payload.unwrap()));
        }
        let (end, hash) = exporter.finish();
        file.extend(end);
        file.extend(hash);
        fs::write(path, file).unwrap();
    }

    #[test]
    fn a_saved_snapshot_can_be_restored() {
        let dir = tempfile::tempdir().unwrap();
        let options = |name| PipelineOptions {
            data_dir: dir.path().join(name),
            ..PipelineOptions::default()
        };
        let first = Pipeline::open(&options("first"), FRESH).unwrap();
        ["a", "b", "a"].iter().for_each(|key| put(&first, key));
        let file = dir.path().join("file");
        save(&first, &file);

        let mut saved = SavedSnapshot::read(&file, false).unwrap();
        let status = saved.status();
        assert_eq!((status.revision, status.keys), (4, 2));
        assert_eq!(status.hash, first.hash(0).unwrap().hash);
        let target = dir.path().join("second");
        saved.write(&target, None, FRESH).unwrap();
        let again = saved.write(&target, None, FRESH).unwrap_err();
        assert!(again.to_string().contains("is not empty"), "unexpected error: {again}");
        let second = Pipeline::open(&options("second"), FRESH).unwrap();
        assert_eq!(second.hash(3).unwrap(), first.hash(3).unwrap());

        saved.bump(1000).unwrap();
        assert!(saved.bump(u64::MAX).is_err());
        saved.write(&dir.path().join("third"), None, FRESH).unwrap();
        let third = Pipeline::open(&options("third"), FRESH).unwrap();
        let state = third.status();
        assert_eq!((state.revision, state.compacted, state.stats.live_keys), (1004, 1004, 2));
        put(&third, "c");
        drop(third);
        let third = Pipeline::open(&options("third"), FRESH).unwrap();
        assert_eq!(third.revision(), 1005);
    }

    #[test]
    fn an_interrupted_restore_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let options =
            PipelineOptions { data_dir: dir.path().join("data"), ..PipelineOptions::default() };
        let stopped = DataDir::create_filled(&options.data_dir, FRESH, |dir| {
            new_snapshots(dir, None)?.create(COVERED_RECORD)?.finish()?;
            Err(files::Error::Poisoned)
        });
        assert!(stopped.is_err());
        let error = Pipeline::open(&options, FRESH)
            .err()
            .expect("an interrupted restore is refused")
            .to_string();
        assert!(error.contains("it contains snap"), "unexpected error: {error}");
    }
}
