//! The lock of the data directory while a store stops.

#[path = "../../wal/tests/disk/mod.rs"]
mod disk;

use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use data_dir::{DataDir, Identity};
use disk::Disk;
use etcdpb::rpc::PutRequest;
use futures_executor::block_on;
use mvcc::Command;
use pipeline::{ClientId, Pipeline, PipelineOptions, WalMode};
use wal::{LogFile, Medium};

const IDENTITY: Identity = Identity { cluster_id: 1, member_id: 2 };

/// A disk on which the flusher takes as long to create a file as the test wants.
struct SlowDisk {
    disk: Disk,
    creating: Sender<()>,
    go_on: Mutex<Receiver<()>>,
}

impl Medium for SlowDisk {
    fn path(&self) -> &Path {
        self.disk.path()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn LogFile>> {
        if std::thread::current().name() == Some("flusher") {
            let _ = self.creating.send(());
            let _ = self.go_on.lock().unwrap().recv();
        }
        self.disk.create(name, bytes)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn sync_names(&self) -> io::Result<()> {
        self.disk.sync_names()
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn LogFile>> {
        self.disk.open(name)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.disk.replace(name, bytes)
    }

    fn mark(&self, name: &str) -> io::Result<()> {
        self.disk.mark(name)
    }
}

/// The flusher still writes to the directory when the applier has stopped. No other process may
/// open the directory before it has ended.
#[test]
fn the_directory_is_locked_until_all_threads_have_ended() {
    let root = tempfile::tempdir().unwrap();
    let options = PipelineOptions {
        data_dir: root.path().to_owned(),
        wal_mode: WalMode::Buffered,
        boot_id: b"boot".to_vec(),
        flush_interval: Duration::from_millis(1),
        // A segment has a quarter of this.
        snapshot_log_bytes: 8 << 20,
        ..PipelineOptions::default()
    };
    let (creating, created) = channel();
    let (release, go_on) = channel();
    let disk = SlowDisk { disk: Disk::default(), creating, go_on: Mutex::new(go_on) };
    let pipeline = Pipeline::open_on(&options, IDENTITY, |_| Ok(disk)).unwrap();
    // Half of the first segment is used, so the flusher prepares another one.
    let value = vec![b'x'; 700 << 10];
    for _ in 0..2 {
        let put = PutRequest {
            key: b"key".to_vec().into(),
            value: value.clone().into(),
            ..Default::default()
        };
        block_on(pipeline.propose(ClientId(0), Command::Put(put), 0)).unwrap();
    }
    created.recv_timeout(Duration::from_secs(180)).expect("the flusher prepares a segment");
    // `DataDir::open` would create the log of a store that has none on this disk.
    let open = || DataDir::open(root.path(), IDENTITY, |_| Ok(()));
    std::thread::scope(|scope| {
        let stopped = scope.spawn(|| pipeline.shutdown());
        for _ in 0..30 {
            assert!(open().is_err(), "the directory is free while the flusher writes to it");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!stopped.is_finished());
        drop(release);
        stopped.join().unwrap();
    });
    let error = open().err().map(|error| error.to_string()).unwrap_or_default();
    assert!(!error.contains("use"), "still locked: {error}");
}
