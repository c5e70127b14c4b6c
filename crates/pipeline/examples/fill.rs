//! Fills a data directory with the objects of many nodes, or opens a data directory, to
//! measure the duration of a restart.
//!
//! ```sh
//! cargo run --release -p pipeline --example fill -- log DIR 1000000
//! cargo run --release -p pipeline --example fill -- snapshot DIR
//! cargo run --release -p pipeline --example fill -- open DIR
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use data_dir::Identity;
use etcdpb::rpc::PutRequest;
use futures_executor::block_on;
use futures_util::{StreamExt, stream};
use mvcc::Command;
use pipeline::{Pipeline, PipelineOptions};

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
            pipeline.propose(put, bytes)
        })
    });
    let replies = stream::iter(puts).buffered(MAX_CONCURRENT_WRITES);
    block_on(replies.for_each(|reply| async { drop(reply.unwrap()) }));
    println!("wrote {} keys", pipeline.status().stats.live_keys);
}

/// Compacts the store, waits for a snapshot, and for the removal of the log before it.
fn take_snapshot(dir: &Path) {
    let pipeline = open(dir, 1);
    let revision = pipeline.revision();
    // The compaction makes the log grow by more than 1 byte, which starts the snapshot.
    block_on(pipeline.propose(Command::Compact { revision }, 0)).unwrap();
    let count_log_files = || fs::read_dir(dir.join("wal")).unwrap().count();
    // The newest segment and HEAD remain.
    while count_log_files() > 2 {
        std::thread::sleep(Duration::from_millis(100));
    }
}
