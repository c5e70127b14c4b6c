//! Which snapshots a store trusts, keeps and removes, also if its snapshot directory
//! contains files of other stores, and which files an inspection may change.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use data_dir::Identity;
use etcdpb::rpc::{PutRequest, RangeRequest};
use files::Error;
use futures_executor::block_on;
use mvcc::Command;
use pipeline::{ClientId, OpenError, Pipeline, PipelineOptions, Repair, SavedSnapshot, WalMode};

/// A store with a snapshot directory outside of its data directory.
struct TestStore {
    identity: Identity,
    options: PipelineOptions,
}

impl TestStore {
    fn new(root: &Path, name: &str, wal_mode: WalMode) -> TestStore {
        let number = name.bytes().map(u64::from).sum();
        let options = PipelineOptions {
            data_dir: root.join(name),
            snapshot_dir: Some(root.join("snapshots")),
            wal_mode,
            boot_id: b"boot".to_vec(),
            snapshot_log_bytes: 200_000,
            ..PipelineOptions::default()
        };
        TestStore { identity: Identity { cluster_id: number, member_id: number + 1 }, options }
    }

    fn open(&self) -> Result<Pipeline, OpenError> {
        Pipeline::open(&self.options, self.identity)
    }

    fn snapshots(&self) -> &Path {
        self.options.snapshot_dir.as_ref().unwrap()
    }

    fn check(&self) -> Result<pipeline::DirectoryReport, OpenError> {
        let options = &self.options;
        pipeline::check(&options.data_dir, options.snapshot_dir.clone(), &options.boot_id)
    }

    fn plan_repair(&self) -> Result<Option<Repair>, OpenError> {
        let options = &self.options;
        Repair::plan(&options.data_dir, options.snapshot_dir.clone(), &options.boot_id)
    }

    /// Writes keys with `prefix` until the store has taken another snapshot.
    fn write_until_snapshot(&self, pipeline: &Pipeline, prefix: &str) {
        let before = taken(self.snapshots());
        let deadline = Instant::now() + Duration::from_secs(180);
        for number in 0.. {
            put(pipeline, &format!("{prefix}{number}"), &[b'x'; 5000]);
            if !taken(self.snapshots()).is_subset(&before) {
                return;
            }
            assert!(Instant::now() < deadline, "no snapshot was taken");
            if number > 5000 {
                // The log has grown enough. Wait for a slow disk without writing much more.
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// Returns the names of the snapshots that stores wrote.
fn taken(directory: &Path) -> BTreeSet<String> {
    let named_by_store = |name: &String| name.len() == 25 && name.ends_with(".snap");
    names(directory).into_iter().filter(named_by_store).collect()
}

/// A covered record that no store of these tests reaches.
const OTHER: u64 = 999_999_999;

fn names(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn paths(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let found = names(directory).into_iter().map(|name| directory.join(name));
    found.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
}

/// Returns the content of all files below `directory`.
fn all_files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for name in names(directory) {
        let path = directory.join(name);
        match path.is_dir() {
            true => files.extend(all_files(&path)),
            false => drop(files.insert(path.clone(), fs::read(path).unwrap())),
        }
    }
    files
}

fn copy_all(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).unwrap();
    for (path, content) in all_files(from) {
        let target = to.join(path.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::write(target, content).unwrap();
    }
}

fn put(pipeline: &Pipeline, key: &str, value: &[u8]) {
    let (key, value) = (key.as_bytes().to_vec().into(), value.to_vec().into());
    let put = PutRequest { key, value, ..Default::default() };
    block_on(pipeline.propose(ClientId(0), Command::Put(put), 0)).unwrap();
}

/// Returns the keys with their mod revisions.
fn content(pipeline: &Pipeline) -> Vec<(String, i64)> {
    let (key, range_end) = (vec![0].into(), vec![0].into());
    let all = RangeRequest { key, range_end, ..Default::default() };
    let kvs = pipeline.range(&all).unwrap().finish().kvs;
    let text = |key: &[u8]| String::from_utf8(key.to_vec()).unwrap();
    kvs.iter().map(|kv| (text(kv.key()), kv.mod_revision())).collect()
}

/// Writes to `path` what `etcdctl snapshot save` would.
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

fn refusal(opened: Result<Pipeline, OpenError>) -> String {
    opened.err().expect("the store is refused").to_string()
}

/// A backup in the snapshot directory is not taken for a snapshot of the store, whatever
/// its name is, and it is not removed.
#[test]
fn a_saved_snapshot_in_the_directory_is_left_alone() {
    let numbered = format!("{OTHER:020}.snap");
    for name in ["backup.snap", numbered.as_str(), "other.unfinished", "notes.discarded"] {
        let root = tempfile::tempdir().unwrap();
        let store = TestStore::new(root.path(), "a", WalMode::Buffered);
        let pipeline = store.open().unwrap();
        put(&pipeline, "first", b"x");
        let file = store.snapshots().join(name);
        save(&pipeline, &file);
        let saved = fs::read(&file).unwrap();
        for round in ["1-", "2-", "3-"] {
            store.write_until_snapshot(&pipeline, round);
        }
        let written = content(&pipeline);
        drop(pipeline);
        let pipeline = store.open().unwrap_or_else(|error| panic!("beside {name}: {error}"));
        assert_eq!(content(&pipeline), written, "beside {name}");
        assert!(fs::read(&file).unwrap() == saved, "{name} has changed");
    }
}

#[test]
fn two_stores_cannot_use_a_snapshot_directory_at_the_same_time() {
    let root = tempfile::tempdir().unwrap();
    let a = TestStore::new(root.path(), "a", WalMode::Buffered);
    let b = TestStore::new(root.path(), "b", WalMode::Buffered);
    let running = a.open().unwrap();
    let error = refusal(b.open());
    assert!(error.contains("in use by another process"), "unexpected error: {error}");
    assert!(error.contains("--snapshot-dir"), "unexpected error: {error}");
    drop(running);
    b.open().unwrap();
}

/// Two stores use a snapshot directory in turn. Neither reads or removes the snapshots of
/// the other.
#[test]
fn the_snapshots_of_another_store_are_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let stores = ["a", "b"].map(|name| TestStore::new(root.path(), name, WalMode::Fsync));
    let mut written = [vec![], vec![]];
    for round in 0..4 {
        let (store, written) = (&stores[round % 2], &mut written[round % 2]);
        let pipeline = store.open().unwrap();
        assert_eq!(&content(&pipeline), written, "round {round}");
        for part in 0..3 {
            store.write_until_snapshot(&pipeline, &format!("{round}-{part}-"));
        }
        *written = content(&pipeline);
    }
}

/// A new store does not adopt the snapshots of a store that used the directory before,
/// also not those of earlier versions, which carry no identity.
#[test]
fn a_new_store_ignores_the_snapshots_of_an_earlier_store() {
    let fixture =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1/snapshot/data/snap");
    for earlier_version in [false, true] {
        let root = tempfile::tempdir().unwrap();
        let earlier = TestStore::new(root.path(), "earlier", WalMode::Buffered);
        if earlier_version {
            copy_all(&fixture, earlier.snapshots());
        } else {
            let pipeline = earlier.open().unwrap();
            earlier.write_until_snapshot(&pipeline, "key");
        }
        let before: Vec<_> = paths(earlier.snapshots(), "snap");
        assert!(!before.is_empty());
        let new = TestStore::new(root.path(), "new", WalMode::Buffered);
        let pipeline = new.open().unwrap();
        assert_eq!(content(&pipeline), []);
        put(&pipeline, "own", b"x");
        drop(pipeline);
        assert_eq!(content(&new.open().unwrap()), [("own".into(), 2)]);
        assert!(before.iter().all(|path| path.exists()));
    }
}

/// A restored store is not opened as an empty one if its snapshot is not in the snapshot
/// directory.
#[test]
fn a_restored_store_does_not_start_without_its_snapshot() {
    let root = tempfile::tempdir().unwrap();
    let source = TestStore::new(root.path(), "source", WalMode::Buffered);
    let pipeline = source.open().unwrap();
    put(&pipeline, "key", b"x");
    let file = root.path().join("saved");
    save(&pipeline, &file);
    drop(pipeline);
    let mut restored = TestStore::new(root.path(), "restored", WalMode::Buffered);
    let saved = SavedSnapshot::read(&file, false).unwrap();
    saved.write(&restored.options.data_dir, None, restored.identity).unwrap();
    let empty = root.path().join("empty");
    restored.options.snapshot_dir = Some(empty.clone());
    let error = refusal(restored.open());
    assert!(error.contains("--snapshot-dir"), "unexpected error: {error}");
    assert!(restored.check().is_err(), "check accepts what a start refuses");
    // The remedy: move the snapshot to that directory.
    for path in paths(&restored.options.data_dir.join("snap"), "snap") {
        fs::rename(&path, empty.join(path.file_name().unwrap())).unwrap();
    }
    assert_eq!(content(&restored.open().unwrap()), [("key".into(), 2)]);
}

/// A data directory that was restored from a backup does not continue from a snapshot that
/// was taken after the backup.
#[test]
fn a_snapshot_that_the_data_directory_does_not_list_is_ignored() {
    let root = tempfile::tempdir().unwrap();
    let store = TestStore::new(root.path(), "a", WalMode::Fsync);
    let backup = root.path().join("backup");
    let pipeline = store.open().unwrap();
    put(&pipeline, "before", b"x");
    let written = content(&pipeline);
    drop(pipeline);
    copy_all(&store.options.data_dir, &backup);
    let pipeline = store.open().unwrap();
    store.write_until_snapshot(&pipeline, "later");
    drop(pipeline);
    let later = paths(store.snapshots(), "snap");
    copy_all(&backup, &store.options.data_dir);
    assert_eq!(content(&store.open().unwrap()), written);
    assert_eq!(paths(store.snapshots(), "snap"), later);
}

/// A log that ends before the record that the snapshot covers has lost its end. That is
/// accepted only if a crash of the machine explains it.
#[test]
fn a_snapshot_beyond_the_log_needs_an_allowed_loss() {
    for (wal_mode, boot_id, allowed) in [
        (WalMode::Fsync, "other boot", false),
        (WalMode::Buffered, "boot", false),
        (WalMode::Buffered, "other boot", true),
    ] {
        let root = tempfile::tempdir().unwrap();
        let mut store = TestStore::new(root.path(), "a", wal_mode);
        let (log, early) = (store.options.data_dir.join("wal"), root.path().join("early"));
        let pipeline = store.open().unwrap();
        put(&pipeline, "before", b"x");
        copy_all(&log, &early);
        store.write_until_snapshot(&pipeline, "later");
        let revision = pipeline.revision();
        drop(pipeline);
        copy_all(&early, &log);
        store.options.boot_id = boot_id.into();
        if allowed {
            assert!(store.check().is_ok());
            assert!(store.open().unwrap().status().stats.live_keys > 1);
            continue;
        }
        let files = all_files(root.path());
        let error = refusal(store.open());
        assert!(error.contains("the log ends with record"), "unexpected error: {error}");
        assert!(matches!(store.check(), Err(OpenError::Files(Error::ShortLog { .. }))));
        let plan = store.plan_repair().unwrap().unwrap();
        let keys = plan.keys;
        let changed = |(path, content): (&PathBuf, &Vec<u8>)| fs::read(path).unwrap() != *content;
        assert!(!files.iter().any(changed), "a refused start has changed files");
        plan.carry_out().unwrap();
        let pipeline = store.open().unwrap();
        assert_eq!(pipeline.status().stats.live_keys, keys);
        assert!(keys > 1 && pipeline.revision() > revision);
    }
}

/// Flips a bit in the middle of a file. Returns its new content.
fn damage(path: &Path) -> Vec<u8> {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, &bytes).unwrap();
    bytes
}

/// A store that was stopped after its third snapshot, its content and its revision. The newest
/// snapshot covers the first segment of the log.
fn store_with_two_snapshots(root: &Path) -> (TestStore, Vec<(String, i64)>, i64) {
    let mut store = TestStore::new(root, "a", WalMode::Buffered);
    // More than two segments lie between two snapshots.
    store.options.snapshot_log_bytes = 2_500_000;
    let pipeline = store.open().unwrap();
    for round in 0..3 {
        store.write_until_snapshot(&pipeline, &format!("{round}-"));
    }
    let (written, revision) = (content(&pipeline), pipeline.revision());
    drop(pipeline);
    let snapshots = paths(store.snapshots(), "snap");
    assert_eq!(snapshots.len(), 2, "{snapshots:?}");
    (store, written, revision)
}

/// Two snapshots are kept, and the log after the older one. So nothing is lost if the newer
/// one is damaged.
#[test]
fn a_damaged_snapshot_is_replaced_by_the_generation_before() {
    let root = tempfile::tempdir().unwrap();
    let (store, written, revision) = store_with_two_snapshots(root.path());
    let newest = paths(store.snapshots(), "snap").pop().unwrap();
    let bytes = damage(&newest);
    let report = store.check().unwrap();
    assert!(report.damaged_newest.unwrap().contains("is corrupt at offset"));
    assert_eq!((report.damaged_older, report.revision), (None, revision));
    let pipeline = store.open().unwrap();
    assert_eq!((content(&pipeline), pipeline.revision()), (written, revision));
    // The damaged snapshot no longer counts as a generation.
    let set_aside = newest.with_extension("snap.damaged");
    assert!(fs::read(&set_aside).unwrap() == bytes && !newest.exists());
    for round in 3..5 {
        store.write_until_snapshot(&pipeline, &format!("{round}-"));
    }
    let written = content(&pipeline);
    drop(pipeline);
    assert_eq!(paths(store.snapshots(), "snap").len(), 2);
    let report = store.check().unwrap();
    assert_eq!((report.damaged_newest, report.damaged_older), (None, None));
    assert_eq!(content(&store.open().unwrap()), written);
}

/// The newest snapshot cannot be read. The snapshot before it replaces it at a start, and in a
/// repair.
#[test]
fn an_unreadable_snapshot_is_replaced_by_the_generation_before() {
    for repairs in [false, true] {
        let root = tempfile::tempdir().unwrap();
        let (store, written, revision) = store_with_two_snapshots(root.path());
        let newest = paths(store.snapshots(), "snap").pop().unwrap();
        // Reading the first page of a process fails with EIO.
        fs::remove_file(&newest).unwrap();
        std::os::unix::fs::symlink("/proc/self/mem", &newest).unwrap();
        let cause = fs::read(&newest).unwrap_err();
        assert_eq!(cause.raw_os_error(), Some(5), "{cause}");
        let report = store.check().unwrap();
        assert!(report.damaged_newest.unwrap().contains("it cannot be read"));
        let plan = store.plan_repair().unwrap().unwrap();
        assert!(plan.damage[0].ends_with("nothing is lost"), "{:?}", plan.damage);
        match repairs {
            true => drop(plan.carry_out().unwrap()),
            // The plan holds the lock of the data directory.
            false => drop(plan),
        }
        let pipeline = store.open().unwrap();
        assert_eq!(content(&pipeline), written);
        assert_eq!(pipeline.revision() == revision, !repairs);
        let set_aside = newest.with_extension("snap.damaged");
        assert!(set_aside.is_symlink() && !newest.is_symlink());
    }
}

/// A server refuses to start if the generation before cannot replace the damaged snapshot,
/// and says why.
#[test]
fn a_damaged_snapshot_is_refused_if_nothing_replaces_it() {
    for (what, expected) in [("snap", "is corrupt at offset"), ("log", "begins with record")] {
        let root = tempfile::tempdir().unwrap();
        let (store, ..) = store_with_two_snapshots(root.path());
        let snapshots = paths(store.snapshots(), "snap");
        damage(&snapshots[1]);
        match what {
            "snap" => drop(damage(&snapshots[0])),
            _ => fs::remove_file(&paths(&store.options.data_dir.join("wal"), "wal")[0]).unwrap(),
        }
        let before = all_files(root.path());
        for error in [refusal(store.open()), store.check().unwrap_err().to_string()] {
            let newest = snapshots[1].display().to_string();
            assert!(error.starts_with(&newest), "unexpected error: {error}");
            let why = "and the snapshot before it cannot replace it (";
            assert!(error.contains(why) && error.contains(expected), "unexpected error: {error}");
            assert!(error.contains("mem_etcd repair"), "unexpected error: {error}");
        }
        let changed = |(path, content): (&PathBuf, &Vec<u8>)| fs::read(path).unwrap() != *content;
        assert!(!before.iter().any(changed), "a refused start has changed files");
        assert!(store.plan_repair().unwrap().is_some());
    }
}

/// A server does not need the older snapshot. But a check says that it is damaged, or that
/// the log between the two is.
#[test]
fn the_older_snapshot_is_verified() {
    for part in ["snap", "wal"] {
        let root = tempfile::tempdir().unwrap();
        let (store, written, _) = store_with_two_snapshots(root.path());
        assert_eq!(store.check().unwrap().damaged_older, None);
        match part {
            "snap" => drop(damage(&paths(store.snapshots(), "snap")[0])),
            _ => fs::remove_file(&paths(&store.options.data_dir.join("wal"), "wal")[0]).unwrap(),
        }
        let report = store.check().unwrap();
        assert_eq!(report.damaged_newest, None);
        assert!(report.damaged_older.is_some(), "{part}");
        assert!(store.plan_repair().unwrap().is_none(), "{part}: nothing that is used is damaged");
        let pipeline = store.open().unwrap();
        assert_eq!(content(&pipeline), written);
        // The next snapshot makes both generations good again.
        store.write_until_snapshot(&pipeline, "later");
        drop(pipeline);
        assert_eq!(store.check().unwrap().damaged_older, None, "{part}");
    }
}

/// A repair loses nothing either.
#[test]
fn a_damaged_snapshot_is_repaired_from_the_generation_before() {
    let root = tempfile::tempdir().unwrap();
    let (store, written, revision) = store_with_two_snapshots(root.path());
    let bytes = damage(&paths(store.snapshots(), "snap")[1]);
    let plan = store.plan_repair().unwrap().unwrap();
    assert_eq!(plan.revision, revision, "changes are lost");
    let set_aside = plan.carry_out().unwrap();
    assert!(set_aside.iter().any(|path| fs::read(path).is_ok_and(|content| content == bytes)));
    assert!(store.plan_repair().unwrap().is_none());
    assert_eq!(content(&store.open().unwrap()), written);
}

/// `mem_etcd check`, and `mem_etcd repair` without --yes, change no file.
#[test]
fn an_inspection_changes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let store = TestStore::new(root.path(), "a", WalMode::Buffered);
    let pipeline = store.open().unwrap();
    store.write_until_snapshot(&pipeline, "key");
    drop(pipeline);
    let log = store.options.data_dir.join("wal");
    for left in [log.join("00000000000000000000.wal.discarded"), log.join("HEAD.new")] {
        fs::write(left, "left by a crash").unwrap();
    }
    for name in ["00000000000000000001.snap.discarded", "00000000000000000002.unfinished"] {
        fs::write(store.snapshots().join(name), "left by a crash").unwrap();
    }
    let locks = [store.options.data_dir.join("LOCK"), store.snapshots().join("LOCK")];
    locks.iter().for_each(|lock| drop(fs::remove_file(lock)));
    let before = all_files(root.path());
    store.check().unwrap();
    assert!(store.plan_repair().unwrap().is_none());
    assert!(all_files(root.path()) == before, "an inspection has changed files");
    // Damage the newest segment.
    let segment = paths(&log, "wal").pop().unwrap();
    fs::write(&segment, b"K1MWAL damaged").unwrap();
    let before = all_files(root.path());
    assert!(store.check().is_err());
    assert!(store.plan_repair().unwrap().is_some());
    assert!(all_files(root.path()) == before, "an inspection has changed files");
    // Without its log, the directory of the log is not created.
    fs::remove_dir_all(&log).unwrap();
    assert!(store.plan_repair().unwrap().is_some());
    assert!(!log.exists());
}

/// After a failed write, a check announces the revision at which a server continues.
#[test]
fn a_check_after_a_failed_write_names_the_revision_of_the_restart() {
    let root = tempfile::tempdir().unwrap();
    let mut store = TestStore::new(root.path(), "a", WalMode::Buffered);
    let pipeline = store.open().unwrap();
    put(&pipeline, "key", b"x");
    let killed = root.path().join("killed");
    copy_all(&store.options.data_dir, &killed);
    drop(pipeline);
    store.options.data_dir = killed;
    assert_eq!(store.check().unwrap().restart, None, "the machine has kept running");
    fs::write(store.options.data_dir.join("wal/FAILED"), "").unwrap();
    let announced = store.check().unwrap().restart;
    let revision = store.open().unwrap().revision();
    assert!(revision > 2, "the revision did not jump");
    assert_eq!(announced, Some(revision));
}
