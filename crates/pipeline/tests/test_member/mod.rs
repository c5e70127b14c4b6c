//! Members of clusters in one process, with real transports on loopback addresses.

use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use consensus::identity::LogMode;
use etcdpb::rpc::{PutRequest, RangeRequest};
use futures_executor::block_on;
use mvcc::{Command, Reply};
use pipeline::{
    ClientId, ClusterOptions, Error, HashCheckIntervals, Pipeline, PipelineOptions, RangeRead,
};

/// A test that has waited for so long has failed.
pub const DEADLINE: Duration = Duration::from_secs(180);

/// Returns peer URLs with free ports. They stay free until the members bind them, unless another
/// process is very quick.
pub fn free_urls(count: usize) -> Vec<String> {
    let listeners: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|l| format!("http://{}", l.local_addr().unwrap())).collect()
}

/// Returns the options of a member with this name and peer URL, which forms a cluster with `initial`.
pub fn cluster_options(
    name: &str,
    url: &str,
    initial: impl IntoIterator<Item = (String, String)>,
    log: LogMode,
    root: &Path,
) -> ClusterOptions {
    let member = |(name, url): (String, String)| (name, vec![url.parse().unwrap()]);
    ClusterOptions {
        name: name.to_owned(),
        initial_cluster: initial.into_iter().map(member).collect(),
        token: "test".to_owned(),
        is_existing: false,
        listen_peer_urls: vec![url.parse().unwrap()],
        client_urls: vec![format!("http://{name}")],
        tls: None,
        log,
        data_dir: root.join(name),
        heartbeat_interval: Duration::from_millis(20),
        election_timeout: Duration::from_millis(400),
        force_new_cluster: false,
        is_replaced: false,
        strict_reconfig_check: true,
        max_learners: 1,
        hash_checks: HashCheckIntervals::default(),
        snapshot_bytes_per_second: None,
    }
}

pub fn open(options: &PipelineOptions, cluster: &ClusterOptions) -> Pipeline {
    let stop = AtomicBool::new(false);
    // The port of a member that was just stopped may be in use for a moment.
    eventually("a member", || match Pipeline::open_member(options, cluster, &stop) {
        Ok(pipeline) => Some(pipeline),
        Err(error) if error.to_string().contains("in use") => None,
        Err(error) => panic!("{error}"),
    })
}

pub fn try_put(member: &Pipeline, key: &str, value: &str) -> Result<i64, Error> {
    let request = PutRequest {
        key: key.as_bytes().to_vec().into(),
        value: value.as_bytes().to_vec().into(),
        ..Default::default()
    };
    match block_on(member.propose(ClientId(1), Command::Put(request), 100))? {
        Reply::Put(response) => Ok(response.header.unwrap().revision),
        other => panic!("unexpected {other:?}"),
    }
}

/// Puts a value. Tries again after errors that say that nothing was changed, and after uncertain ones,
/// because the value is the same.
pub fn put(member: &Pipeline, key: &str, value: &str) -> i64 {
    eventually("a put", || match try_put(member, key, value) {
        Ok(revision) => Some(revision),
        Err(error) => {
            assert!(is_temporary(&error), "{error}");
            None
        }
    })
}

/// Reads a value, as soon as the member can.
pub fn get(member: &Pipeline, key: &str) -> Option<String> {
    let request = RangeRequest { key: key.as_bytes().to_vec().into(), ..Default::default() };
    let response = eventually("a read", || {
        block_on(member.linearize()).ok()?;
        member.range(&request).map(RangeRead::finish).ok()
    });
    response.kvs.first().map(|kv| String::from_utf8(kv.value().to_vec()).unwrap())
}

pub fn is_temporary(error: &Error) -> bool {
    matches!(
        error,
        Error::NoLeader
            | Error::NoConnection
            | Error::LeaderChanged
            | Error::LeaderFailed
            | Error::ConnectionLost
            | Error::TimedOut
    )
}

pub fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
