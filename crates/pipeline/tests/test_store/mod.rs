//! A store whose log is on the simulated disk of `crates/wal`, for tests that kill it.
//!
//! To simulate a kill, the test copies the disk and the data directory while the store runs,
//! and continues with the copy.

// Each test binary uses only a part of this module.
#![allow(dead_code)]

#[path = "../../../wal/tests/disk/mod.rs"]
pub mod disk;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use data_dir::Identity;
use disk::Disk;
use etcdpb::rpc::{PutRequest, RangeRequest};
use futures_executor::block_on;
use mvcc::{Command, Reply};
use pipeline::{ClientId, Error, Pipeline, PipelineOptions, WalMode};

pub const IDENTITY: Identity = Identity { cluster_id: 1, member_id: 2 };

/// A store with its simulated disk and its options.
pub struct TestStore {
    pub disk: Disk,
    pub dir: tempfile::TempDir,
    pub options: PipelineOptions,
    /// `None` while the store is stopped.
    pipeline: Option<Pipeline>,
}

impl TestStore {
    pub fn new(default: WalMode, prefixes: &[(&str, WalMode)]) -> TestStore {
        let dir = tempfile::tempdir().unwrap();
        let prefix = |(prefix, mode): &(&str, WalMode)| (prefix.as_bytes().to_vec(), *mode);
        let options = PipelineOptions {
            data_dir: dir.path().to_owned(),
            wal_mode: default,
            wal_mode_prefixes: prefixes.iter().map(prefix).collect(),
            boot_id: b"boot 0".to_vec(),
            // The flush interval is longer than the test, so that a power cut can lose
            // writes.
            flush_interval: Duration::from_secs(3600),
            snapshot_log_bytes: 400,
            ..PipelineOptions::default()
        };
        let mut test_store = TestStore { disk: Disk::default(), dir, options, pipeline: None };
        test_store.start();
        test_store
    }

    pub fn start(&mut self) {
        let disk = self.disk.clone();
        let opened = Pipeline::open_on(&self.options, IDENTITY, |_| Ok(disk));
        self.pipeline = Some(opened.unwrap());
    }

    pub fn store(&self) -> &Pipeline {
        self.pipeline.as_ref().unwrap()
    }

    /// Shuts the store down cleanly.
    pub fn stop(&mut self) {
        self.pipeline = None;
    }

    /// Simulates a kill: the copies of the disk and of the data directory remain.
    pub fn kill(&mut self) {
        let dir = tempfile::tempdir().unwrap();
        let disk = self.disk.copy_with(|| copy_all(self.dir.path(), dir.path()));
        self.pipeline = None;
        (self.dir, self.disk) = (dir, disk);
        self.options.data_dir = self.dir.path().to_owned();
    }

    /// Simulates a power cut: `keep` returns for each unsynced block whether it survives.
    pub fn cut_power(&mut self, keep: impl FnMut() -> bool) {
        self.kill();
        self.disk.cut_power(keep);
        let boots: u32 = std::str::from_utf8(&self.options.boot_id[5..]).unwrap().parse().unwrap();
        self.options.boot_id = format!("boot {}", boots + 1).into_bytes();
    }

    /// Returns the names of the complete snapshots; the newest is the last.
    pub fn snapshots(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path().join("snap")).into_iter().flatten();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| name.ends_with(".snap")).collect();
        names.sort();
        names
    }

    /// Returns the remaining TTL of a lease in seconds.
    pub fn lease_seconds_left(&self, id: i64) -> i64 {
        self.store().lease_time_to_live(id).unwrap().0
    }

    /// Sets the free space on the simulated disk; `None` for no limit.
    pub fn set_free_bytes(&self, bytes: Option<u64>) {
        self.disk.0.lock().unwrap().free_bytes = bytes;
    }

    pub fn run(&self, command: Command) -> Result<Reply, Error> {
        block_on(self.store().propose(ClientId(0), command, 0))
    }

    pub fn put(&self, key: &str, value: &str) -> Result<Reply, Error> {
        self.run(Command::Put(put(key, value, 0)))
    }

    pub fn get(&self, key: &str) -> Option<String> {
        self.all().remove(key).map(|(value, _)| value)
    }

    /// Returns every key with its value and its mod revision.
    pub fn all(&self) -> Keys {
        let (key, range_end) = (vec![0].into(), vec![0].into());
        let request = RangeRequest { key, range_end, ..Default::default() };
        let found = self.store().range(&request).unwrap().finish();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let kvs = found.kvs.iter();
        kvs.map(|kv| (text(kv.key()), (text(kv.value()), kv.mod_revision()))).collect()
    }
}

/// The value and the mod revision of each key.
pub type Keys = BTreeMap<String, (String, i64)>;

fn copy_all(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_all(&entry.path(), &target),
            // The file may be renamed or removed concurrently.
            false => drop(std::fs::copy(entry.path(), target)),
        }
    }
}

pub fn put(key: &str, value: &str, lease: i64) -> PutRequest {
    let (key, value) = (key.as_bytes().to_vec().into(), value.as_bytes().to_vec().into());
    PutRequest { key, value, lease, ..Default::default() }
}
