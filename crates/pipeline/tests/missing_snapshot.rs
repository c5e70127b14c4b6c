//! What a start, a check and a repair do if a snapshot that `MANIFEST` lists is missing: its
//! disk is not mounted, or a crash prevented the renaming of the file.

#[path = "../../wal/tests/disk/mod.rs"]
mod disk;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use data_dir::Identity;
use disk::Disk;
use etcdpb::rpc::{PutRequest, RangeRequest};
use futures_executor::block_on;
use mvcc::Command;
use pipeline::{ClientId, OpenError, Pipeline, PipelineOptions, Repair, WalMode};

const IDENTITY: Identity = Identity { cluster_id: 1, member_id: 2 };

/// Number of keys after which a snapshot is due at the latest.
const DUE_AFTER: usize = 40;

/// A store whose snapshots are on another disk.
struct TestStore {
    options: PipelineOptions,
}

impl TestStore {
    fn new(root: &Path, wal_mode: WalMode) -> TestStore {
        let options = PipelineOptions {
            data_dir: root.join("data"),
            snapshot_dir: Some(root.join("snapshots")),
            wal_mode,
            boot_id: b"boot".to_vec(),
            snapshot_log_bytes: 200_000,
            flush_interval: Duration::from_secs(3600),
            ..PipelineOptions::default()
        };
        TestStore { options }
    }

    fn open(&self) -> Pipeline {
        Pipeline::open(&self.options, IDENTITY).unwrap()
    }

    fn open_on(&self, disk: &Disk) -> Pipeline {
        Pipeline::open_on(&self.options, IDENTITY, |_| Ok(disk.clone())).unwrap()
    }

    fn snapshots(&self) -> &Path {
        self.options.snapshot_dir.as_ref().unwrap()
    }

    /// Returns the newest snapshot.
    fn newest(&self) -> Option<PathBuf> {
        let files = fs::read_dir(self.snapshots()).into_iter().flatten();
        let paths = files.map(|file| file.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|found| found == "snap")).max()
    }

    /// Writes keys with `prefix` until the first snapshot is due, and waits for it. Returns
    /// their number.
    fn write_until_snapshot(&self, pipeline: &Pipeline, prefix: &str) -> usize {
        let deadline = Instant::now() + Duration::from_secs(180);
        let before = self.newest();
        let number = DUE_AFTER + 5;
        for number in 0..number {
            put(pipeline, &format!("{prefix}{number}"), &[b'x'; 5000]);
        }
        while self.newest() == before {
            assert!(Instant::now() < deadline, "no snapshot was taken");
            std::thread::sleep(Duration::from_millis(10));
        }
        number
    }

    /// The disk of the snapshots is no longer mounted.
    fn unmount(&self) {
        fs::rename(self.snapshots(), self.snapshots().with_extension("away")).unwrap();
    }

    /// The disk of the snapshots is mounted again.
    fn mount(&self) {
        let _ = fs::remove_dir_all(self.snapshots());
        fs::rename(self.snapshots().with_extension("away"), self.snapshots()).unwrap();
    }

    fn plan_repair(&self) -> Result<Option<Repair>, OpenError> {
        let options = &self.options;
        Repair::plan(&options.data_dir, options.snapshot_dir.clone(), &options.boot_id)
    }

    /// Flips a bit of the first segment at `offset`.
    fn damage_log(&self, offset: usize) {
        let segment = self.options.data_dir.join("wal/00000000000000000001.wal");
        let mut bytes = fs::read(&segment).unwrap();
        bytes[offset] ^= 1;
        fs::write(&segment, bytes).unwrap();
    }
}

fn put(pipeline: &Pipeline, key: &str, value: &[u8]) {
    let (key, value) = (key.as_bytes().to_vec().into(), value.to_vec().into());
    let put = PutRequest { key, value, ..Default::default() };
    block_on(pipeline.propose(ClientId(0), Command::Put(put), 0)).unwrap();
}

fn keys(pipeline: &Pipeline) -> Vec<String> {
    let all = RangeRequest { key: vec![0].into(), range_end: vec![0].into(), ..Default::default() };
    let kvs = pipeline.range(&all).unwrap().finish().kvs;
    kvs.iter().map(|kv| String::from_utf8(kv.key().to_vec()).unwrap()).collect()
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_all(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

/// Takes a snapshot that covers records which a power cut then removes from the log. Returns
/// the store and its disk after the power cut.
fn lose_covered_records(root: &Path) -> (TestStore, Disk) {
    let disk = Disk::default();
    let (before, after) = (root.join("before"), root.join("after"));
    let store = TestStore::new(&before, WalMode::Buffered);
    let pipeline = store.open_on(&disk);
    store.write_until_snapshot(&pipeline, "old");
    let disk = disk.copy_with(|| copy_all(&before, &after));
    disk.cut_power(|| false);
    drop(pipeline);
    let mut store = TestStore::new(&after, WalMode::Buffered);
    store.options.boot_id = b"next boot".to_vec();
    store.options.snapshot_log_bytes = 1 << 30;
    (store, disk)
}

/// The disk of the snapshots is not mounted at the first start after a power cut. This start
/// reuses the numbers of lost records that the missing snapshot covers. So the second start,
/// with the disk mounted, must not use this snapshot.
#[test]
fn a_snapshot_that_was_missing_at_a_start_is_not_used_later() {
    let root = tempfile::tempdir().unwrap();
    let (store, disk) = lose_covered_records(root.path());
    store.unmount();
    let pipeline = store.open_on(&disk);
    for number in 0..200 {
        put(&pipeline, &format!("new{number}"), b"acknowledged");
    }
    let written = keys(&pipeline);
    drop(pipeline);
    store.mount();
    assert_eq!(keys(&store.open_on(&disk)), written);
}

/// If the disk is mounted at the first start, the snapshot replaces the lost records.
#[test]
fn a_snapshot_replaces_records_that_a_power_cut_removed() {
    let root = tempfile::tempdir().unwrap();
    let (store, disk) = lose_covered_records(root.path());
    let pipeline = store.open_on(&disk);
    assert!(keys(&pipeline).len() >= 10);
}

/// A start does not need a missing snapshot if the log contains all of it. The snapshot stays
/// listed, and a later start uses it.
#[test]
fn a_missing_snapshot_that_the_log_replaces_stays_listed() {
    let root = tempfile::tempdir().unwrap();
    let mut store = TestStore::new(root.path(), WalMode::Fsync);
    let pipeline = store.open();
    store.write_until_snapshot(&pipeline, "key");
    drop(pipeline);
    let covered: u64 = {
        let newest = store.newest().unwrap();
        newest.file_stem().unwrap().to_str().unwrap().parse().unwrap()
    };
    store.options.snapshot_log_bytes = 1 << 30;
    store.unmount();
    let pipeline = store.open();
    put(&pipeline, "later", b"x");
    let written = keys(&pipeline);
    drop(pipeline);
    store.mount();
    let options = &store.options;
    let check = pipeline::check(&options.data_dir, options.snapshot_dir.clone(), b"boot");
    assert_eq!(check.unwrap().snapshots.last().unwrap().2, covered);
    assert_eq!(keys(&store.open()), written);
}

/// Without the newest listed snapshot, a repair would drop what only the snapshot contains.
#[test]
fn a_repair_without_the_listed_snapshot_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let mut store = TestStore::new(root.path(), WalMode::Fsync);
    let pipeline = store.open();
    let count = store.write_until_snapshot(&pipeline, "key");
    drop(pipeline);
    store.damage_log(20_000);
    let chosen = store.options.snapshot_dir.take();
    let refused = store.plan_repair().map(|plan| plan.map(|plan| plan.keys));
    let error = refused.expect_err("the repair is refused").to_string();
    assert!(error.contains(".snap is missing"), "unexpected error: {error}");
    assert!(error.contains("--snapshot-dir"), "unexpected error: {error}");
    // The damaged record is covered, so the snapshot contains all that was written before it
    // was taken.
    store.options.snapshot_dir = chosen;
    let plan = store.plan_repair().unwrap().unwrap();
    assert!(plan.keys >= count as i64 - 10, "{} of {count} keys: {:?}", plan.keys, plan.damage);
}

/// A repair does not need a missing snapshot if the intact part of the log contains all of
/// it.
#[test]
fn a_repair_without_a_snapshot_that_the_log_replaces_keeps_the_log() {
    let root = tempfile::tempdir().unwrap();
    let store = TestStore::new(root.path(), WalMode::Fsync);
    let pipeline = store.open();
    let count = store.write_until_snapshot(&pipeline, "key");
    (0..20).for_each(|number| put(&pipeline, &format!("later{number:02}"), &[b'y'; 5000]));
    drop(pipeline);
    store.unmount();
    let segment = fs::read(store.options.data_dir.join("wal/00000000000000000001.wal")).unwrap();
    let tenth = segment.windows(7).position(|bytes| bytes == b"later10").unwrap();
    store.damage_log(tenth);
    let plan = store.plan_repair().unwrap().unwrap();
    assert_eq!(plan.keys, count as i64 + 10, "{:?}", plan.damage);
}

/// A repair of a directory of an earlier version, which has no `MANIFEST`, ends between the
/// writing of `MANIFEST` and the renaming of the new snapshot. The next one keeps as much.
#[test]
fn an_interrupted_repair_without_a_manifest_can_be_repeated() {
    let root = tempfile::tempdir().unwrap();
    let store = TestStore::new(&root.path().join("store"), WalMode::Fsync);
    let pipeline = store.open();
    let count = store.write_until_snapshot(&pipeline, "key");
    drop(pipeline);
    // Only the snapshot contains this record.
    store.damage_log(20_000);
    let manifest = store.options.data_dir.join("MANIFEST");
    fs::remove_file(&manifest).unwrap();
    let before = root.path().join("before");
    copy_all(&root.path().join("store"), &before);
    let plan = store.plan_repair().unwrap().unwrap();
    let kept = plan.keys;
    assert!(kept >= count as i64 - 10, "{kept} of {count} keys: {:?}", plan.damage);
    plan.carry_out().unwrap();
    let (written, new) = (fs::read(&manifest).unwrap(), store.newest().unwrap());
    let new_content = fs::read(&new).unwrap();
    fs::remove_dir_all(root.path().join("store")).unwrap();
    copy_all(&before, &root.path().join("store"));
    fs::write(manifest, written).unwrap();
    fs::write(new.with_extension("unfinished"), new_content).unwrap();
    let plan = store.plan_repair().unwrap().unwrap();
    assert_eq!(plan.keys, kept, "{:?}", plan.damage);
    plan.carry_out().unwrap();
    assert_eq!(keys(&store.open()).len() as i64, kept);
}
