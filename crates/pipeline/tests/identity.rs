//! Data directories whose file `IDENTITY` is missing or damaged.

use std::fs;
use std::path::Path;

use data_dir::Identity;
use etcdpb::rpc::PutRequest;
use futures_executor::block_on;
use mvcc::Command;
use pipeline::{ClientId, OpenError, Pipeline, PipelineOptions, Repair, WalMode};

const IDENTITY: Identity = Identity { cluster_id: 1, member_id: 2 };

fn options(root: &Path) -> PipelineOptions {
    PipelineOptions {
        data_dir: root.join("data"),
        snapshot_dir: Some(root.join("snapshots")),
        wal_mode: WalMode::Fsync,
        snapshot_log_bytes: 50_000,
        ..PipelineOptions::default()
    }
}

fn open(root: &Path) -> Result<Pipeline, OpenError> {
    Pipeline::open(&options(root), IDENTITY)
}

fn put(pipeline: &Pipeline, key: &str) {
    let (key, value) = (key.as_bytes().to_vec().into(), vec![b'x'; 5000].into());
    let put = PutRequest { key, value, ..Default::default() };
    block_on(pipeline.propose(ClientId(0), Command::Put(put), 0)).unwrap();
}

/// Creates a store with a snapshot.
fn create_store(root: &Path) {
    let pipeline = open(root).unwrap();
    let is_snapshot = |path: &Path| path.extension().is_some_and(|found| found == "snap");
    let has_snapshot = || {
        let mut files = fs::read_dir(root.join("snapshots")).unwrap();
        files.any(|file| is_snapshot(&file.unwrap().path()))
    };
    while !has_snapshot() {
        put(&pipeline, "key");
    }
}

/// Requires that a start, a check and a plan of a repair blame `IDENTITY`, and change nothing
/// in the directory.
fn require_blame(root: &Path, reason: &str) {
    let options = options(root);
    let manifest = fs::read(options.data_dir.join("MANIFEST")).unwrap();
    let (dir, snapshots) = (&options.data_dir, &options.snapshot_dir);
    let started = Pipeline::open(&options, Identity { cluster_id: 9, member_id: 9 }).map(drop);
    let checked = pipeline::check(dir, snapshots.clone(), b"").map(drop);
    let planned = Repair::plan(dir, snapshots.clone(), b"").map(drop);
    for result in [started, checked, planned] {
        let error = result.expect_err("the directory is refused").to_string();
        assert!(error.contains("IDENTITY") && error.contains(reason), "unexpected error: {error}");
        assert!(error.contains("from a backup"), "no remedy: {error}");
        assert!(!error.contains("mem_etcd repair"), "a repair does not help: {error}");
    }
    assert!(fs::read(options.data_dir.join("MANIFEST")).unwrap() == manifest);
}

/// A directory that has lost its identity is not opened as a new store.
#[test]
fn a_directory_that_lost_its_identity_is_refused() {
    let root = tempfile::tempdir().unwrap();
    create_store(root.path());
    let identity = root.path().join("data/IDENTITY");
    let content = fs::read(&identity).unwrap();
    fs::remove_file(&identity).unwrap();
    require_blame(root.path(), "is missing");
    // With an empty log, the listed snapshot shows that the store is not new.
    let (log, away) = (root.path().join("data/wal"), root.path().join("away"));
    fs::rename(&log, &away).unwrap();
    fs::create_dir(&log).unwrap();
    require_blame(root.path(), "is missing");
    fs::remove_dir(&log).unwrap();
    fs::rename(&away, &log).unwrap();
    fs::write(&identity, content).unwrap();
    open(root.path()).unwrap();
}

/// An ID that has changed is not reported as a damaged snapshot, also without a checksum.
#[test]
fn a_damaged_identity_is_not_blamed_on_a_snapshot() {
    for with_checksum in [true, false] {
        let root = tempfile::tempdir().unwrap();
        create_store(root.path());
        let identity = root.path().join("data/IDENTITY");
        let text = fs::read_to_string(&identity).unwrap();
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        if !with_checksum {
            lines.truncate(3);
        }
        let changed = lines.join("\n").replace("0001\n", "0003\n") + "\n";
        assert!(changed.contains("cluster_id 0000000000000003"), "{changed}");
        fs::write(&identity, changed).unwrap();
        require_blame(root.path(), if with_checksum { "checksum" } else { ".snap" });
    }
}
