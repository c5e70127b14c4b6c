//! The size of the log over restarts. The log is removed up to a snapshot once it has grown
//! by `snapshot_log_bytes`, whether or not the store was restarted meanwhile.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use data_dir::Identity;
use etcdpb::rpc::PutRequest;
use futures_executor::block_on;
use mvcc::Command;
use pipeline::{ClientId, Pipeline, PipelineOptions};

const IDENTITY: Identity = Identity { cluster_id: 1, member_id: 2 };
/// The log grows by this many bytes between two snapshots.
const LIMIT: u64 = 4 << 20;
const VALUE_BYTES: usize = 100_000;

fn open(dir: &Path) -> Pipeline {
    open_with_limit(dir, LIMIT)
}

fn open_with_limit(dir: &Path, snapshot_log_bytes: u64) -> Pipeline {
    let options = PipelineOptions {
        data_dir: dir.to_owned(),
        snapshot_log_bytes,
        boot_id: b"boot".to_vec(),
        ..PipelineOptions::default()
    };
    Pipeline::open(&options, IDENTITY).unwrap()
}

fn put(pipeline: &Pipeline, key: &str) {
    let value = vec![7; VALUE_BYTES].into();
    let put = PutRequest { key: key.to_owned().into(), value, ..Default::default() };
    block_on(pipeline.propose(ClientId(0), Command::Put(put), 0)).unwrap();
}

/// Removes the history, so that the next snapshot is small.
fn compact(pipeline: &Pipeline) {
    let compact = Command::Compact { revision: pipeline.revision() };
    block_on(pipeline.propose(ClientId(0), compact, 0)).unwrap();
}

/// Returns the total size of the segments in bytes.
fn log_bytes(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir.join("wal")).unwrap().map(|entry| entry.unwrap());
    let segments = entries.filter(|e| e.path().extension().is_some_and(|found| found == "wal"));
    segments.map(|entry| entry.metadata().map_or(0, |metadata| metadata.len())).sum()
}

/// Returns the names of the complete snapshots; empty while one is being written.
fn snapshots(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir.join("snap")) else { return Vec::new() };
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut names: Vec<_> = entries.map(|entry| name(entry.unwrap())).collect();
    if names.iter().any(|name| name.ends_with(".unfinished")) {
        return Vec::new();
    }
    names.retain(|name| name.ends_with(".snap"));
    names.sort();
    names
}

/// Waits until the store has so many snapshots, and none is being written.
fn wait_for_snapshots(dir: &Path, count: usize) {
    let deadline = Instant::now() + Duration::from_secs(180);
    while snapshots(dir).len() < count {
        let bytes = log_bytes(dir);
        assert!(Instant::now() < deadline, "no {count} snapshots, {} MiB of log", bytes >> 20);
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A store that is restarted each time just before its next snapshot takes snapshots all the
/// same, so its log does not grow without limit.
#[test]
fn growth_before_a_restart_counts() {
    let dir = tempfile::tempdir().unwrap();
    let puts = LIMIT as usize / VALUE_BYTES - 2;
    for start in 0..20 {
        let pipeline = open(dir.path());
        for _ in 0..puts {
            put(&pipeline, "key");
        }
        compact(&pipeline);
        if start > 0 {
            wait_for_snapshots(dir.path(), 1);
        }
    }
    // The log reaches back to the older of two snapshots.
    let bytes = log_bytes(dir.path());
    assert!(bytes <= 6 * LIMIT, "the log has {} MiB", bytes >> 20);
}

/// A snapshot is not repeated at each start if the last one is larger than the growth of the
/// log.
#[test]
fn a_restart_does_not_repeat_a_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = open(dir.path());
    // Each batch is more than the growth that leads to a snapshot, and less than two times that,
    // so the log is then far from the next snapshot.
    let batch = LIMIT as usize / VALUE_BYTES + 8;
    for count in 1..=2 {
        for number in 0..batch {
            put(&pipeline, &format!("key{count}-{number}"));
        }
        wait_for_snapshots(dir.path(), count);
    }
    let before = snapshots(dir.path());
    drop(pipeline);
    assert_eq!(snapshots(dir.path()), before, "a snapshot was taken while the store stopped");
    let pipeline = open(dir.path());
    put(&pipeline, "key");
    std::thread::sleep(Duration::from_millis(300));
    drop(pipeline);
    assert_eq!(snapshots(dir.path()), before, "the log has grown by less than the last snapshot");
}

/// An idle store with leases writes to its log every five seconds. These records count, so the
/// log of an idle store does not grow without limit. The snapshot has the time of these records.
#[test]
fn an_idle_store_takes_snapshots() {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = open(dir.path());
    let grant = Command::LeaseGrant { id: 1, ttl_seconds: 1000 };
    block_on(pipeline.propose(ClientId(0), grant, 0)).unwrap();
    drop(pipeline);
    let segments = pipeline::check(dir.path(), None, b"boot").unwrap().log.segments;
    let bytes: u64 = segments.iter().map(|segment| segment.bytes).sum();
    // More than the next process writes when it starts.
    let pipeline = open_with_limit(dir.path(), bytes + 60);
    std::thread::sleep(Duration::from_secs(2));
    assert!(snapshots(dir.path()).is_empty(), "the start alone has led to a snapshot");
    wait_for_snapshots(dir.path(), 1);
    // Simulates a kill.
    let copy = tempfile::tempdir().unwrap();
    for name in ["", "wal", "snap"] {
        fs::create_dir_all(copy.path().join(name)).unwrap();
        let entries = fs::read_dir(dir.path().join(name)).unwrap().map(|entry| entry.unwrap());
        for file in entries.filter(|entry| entry.file_type().unwrap().is_file()) {
            fs::copy(file.path(), copy.path().join(name).join(file.file_name())).unwrap();
        }
    }
    let (left, _) = pipeline.lease_time_to_live(1).unwrap();
    let (recovered, _) = open(copy.path()).lease_time_to_live(1).unwrap();
    assert!(recovered <= left + 1, "{recovered} s of the TTL after a kill, {left} s before");
}
