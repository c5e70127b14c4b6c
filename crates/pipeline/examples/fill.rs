//! Fills a data directory with the objects of many nodes, or opens a data directory, to
//! measure the duration of a restart.
//!
//! ```sh
//! cargo run --release -p pipeline --example fill -- log DIR 1000000
//! cargo run --release -p pipeline --example fill -- snapshot DIR
//! cargo run --release -p pipeline --example fill -- open DIR
//! ```

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use data_dir::Identity;
use etcdpb::rpc::PutRequest;
use futures_executor::block_on;
use futures_util::{StreamExt, stream};
use mvcc::Command;
use pipeline::{ClientId, Pipeline, PipelineOptions};

/// The objects of a node: key prefix, and size of the value in bytes.
const KINDS: [(&str, usize); 3] = [
    ("/registry/minions/node", 1200),
    ("/registry/leases/kube-node-lease/node", 400),
    ("/registry/pods/default/pod", 1500),
];
/// Maximum number of concurrent writes.
const MAX_CONCURRENT_WRITES: usize = 4096;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["log", dir, nodes] => {
            write_log(Path::new(dir), nodes.parse().expect("NODES must be a number"))
        }
        ["snapshot", dir] => take_snapshot(Path::new(dir)),
        ["open", dir] => drop(open(Path::new(dir), u64::MAX)),
        _ => panic!("usage: fill log DIR NODES | fill snapshot DIR | fill open DIR"),
    }
}

/// Opens the store in `dir` and prints the duration.
fn open(dir: &Path, snapshot_log_bytes: u64) -> Pipeline {
    let boot_id = b"fill".to_vec();
    let data_dir = PathBuf::from(dir);
    let options =
        PipelineOptions { data_dir, boot_id, snapshot_log_bytes, ..PipelineOptions::default() };
    let started = Instant::now();
    let pipeline = Pipeline::open(&options, Identity { cluster_id: 1, member_id: 1 }).unwrap();
    let (elapsed, keys) = (started.elapsed(), pipeline.status().stats.live_keys);
    println!("opened a store with {keys} keys in {:.2} s", elapsed.as_secs_f64());
    pipeline
}

/// Writes every object once. Takes no snapshot.
fn write_log(dir: &Path, nodes: usize) {
    let pipeline = open(dir, u64::MAX);
    // As in a cluster, consecutive writes are not adjacent in key order.
    let numbers = (0..nodes).map(|number| number.wrapping_mul(7919) % nodes);
    let puts = numbers.flat_map(|number| {
        KINDS.map(|(prefix, bytes)| {
            let key = format!("{prefix}-{number:07}").into_bytes().into();
            let value = vec![number as u8; bytes].into();
            let put = Command::Put(PutRequest { key, value, ..Default::default() });
            pipeline.propose(ClientId(0), put, bytes)
        })
    });
    let replies = stream::iter(puts).buffered(MAX_CONCURRENT_WRITES);
    block_on(replies.for_each(|reply| async { drop(reply.unwrap()) }));
    println!("wrote {} keys", pipeline.status().stats.live_keys);
}

/// Compacts the store and takes two snapshots. The log before the first one is then removed.
fn take_snapshot(dir: &Path) {
    for round in 0..2 {
        let before = newest_snapshot(dir);
        let pipeline = open(dir, 1);
        // The log grows by more than 1 byte, which starts the snapshot.
        let (key, value) = (b"snapshot".to_vec().into(), vec![round].into());
        let put = Command::Put(PutRequest { key, value, ..Default::default() });
        block_on(pipeline.propose(ClientId(0), put, 0)).unwrap();
        let revision = pipeline.revision();
        block_on(pipeline.propose(ClientId(0), Command::Compact { revision }, 0)).unwrap();
        while newest_snapshot(dir) == before {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Returns the name of the newest complete snapshot.
fn newest_snapshot(dir: &Path) -> Option<OsString> {
    let entries = fs::read_dir(dir.join("snap")).into_iter().flatten();
    let names = entries.map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().ends_with(".snap")).max()
}
