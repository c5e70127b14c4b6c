//! Clusters of three members in one process, with real transports on loopback addresses.
//!
//! A member is stopped without notice by dropping it: its transport ends, and its log stays as it is.

mod test_member;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use consensus::identity::LogMode;
use etcdpb::rpc::RangeRequest;
use futures_executor::block_on;
use mvcc::Command;
use pipeline::{ClientId, ClusterOptions, Error, Pipeline, PipelineOptions};
use test_member::{
    DEADLINE, cluster_options, eventually, free_urls, get, is_temporary, open, put, try_put,
};
use watch::Delivery;

struct Cluster {
    root: tempfile::TempDir,
    log: LogMode,
    urls: Vec<String>,
    snapshot_log_bytes: u64,
    /// Whether the members have directories for their snapshots beside their data directories.
    has_snapshot_dirs: bool,
    members: Vec<Option<Pipeline>>,
}

const NAMES: [&str; 3] = ["a", "b", "c"];

impl Cluster {
    /// Starts three members.
    fn start(log: LogMode) -> Cluster {
        Cluster::start_with(log, 256 << 20, false)
    }

    fn start_with(log: LogMode, snapshot_log_bytes: u64, has_snapshot_dirs: bool) -> Cluster {
        let urls = free_urls(NAMES.len());
        let root = tempfile::tempdir().unwrap();
        let members = NAMES.iter().map(|_| None).collect();
        let mut cluster =
            Cluster { root, log, urls, snapshot_log_bytes, has_snapshot_dirs, members };
        cluster.restart(&[0, 1, 2]);
        cluster
    }

    /// Starts members at the same time.
    fn restart(&mut self, numbers: &[usize]) {
        let opened: Vec<_> = std::thread::scope(|scope| {
            let start = |number: &usize| {
                let (options, cluster) = (self.options(*number), self.cluster_options(*number));
                scope.spawn(move || open(&options, &cluster))
            };
            let threads: Vec<_> = numbers.iter().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (number, pipeline) in numbers.iter().zip(opened) {
            self.members[*number] = Some(pipeline);
        }
    }

    fn options(&self, number: usize) -> PipelineOptions {
        PipelineOptions {
            snapshot_dir: self.has_snapshot_dirs.then(|| self.snapshot_dir(number)),
            boot_id: b"boot".to_vec(),
            snapshot_log_bytes: self.snapshot_log_bytes,
            ..PipelineOptions::default()
        }
    }

    fn snapshot_dir(&self, number: usize) -> PathBuf {
        self.root.path().join(format!("{}-snapshots", NAMES[number]))
    }

    fn cluster_options(&self, number: usize) -> ClusterOptions {
        let initial =
            NAMES.iter().zip(&self.urls).map(|(name, url)| (name.to_string(), url.clone()));
        let (name, url) = (NAMES[number], &self.urls[number]);
        cluster_options(name, url, initial, self.log, self.root.path())
    }

    fn member(&self, number: usize) -> &Pipeline {
        self.members[number].as_ref().expect("the member runs")
    }

    fn running(&self) -> impl Iterator<Item = &Pipeline> {
        self.members.iter().flatten()
    }

    /// Waits for a leader that all running members know. Returns its number.
    fn leader(&self) -> usize {
        let find = || {
            let leader =
                self.members.iter().position(|m| m.as_ref().is_some_and(Pipeline::is_leader))?;
            let id = self.member(leader).identity().member_id;
            let knows = |m: &Pipeline| m.cluster_status().unwrap().leader == id;
            self.running().all(knows).then_some(leader)
        };
        eventually("a leader", find)
    }

    /// Stops a member without notice.
    fn kill(&mut self, number: usize) {
        self.members[number] = None;
    }

    /// Puts a value at a member, until it is acknowledged.
    fn put(&self, number: usize, key: &str, value: &str) -> i64 {
        put(self.member(number), key, value)
    }

    /// Reads a value at a member.
    fn get(&self, number: usize, key: &str) -> Option<String> {
        get(self.member(number), key)
    }

    /// Waits until all members have the same revision and history.
    fn assert_equal(&self) {
        let hashes = || -> Option<Vec<u32>> {
            let revision = self.running().map(Pipeline::revision).max()?;
            let same = self.running().all(|member| member.revision() == revision);
            same.then(|| self.running().map(|m| m.hash(revision).unwrap().hash).collect())
        };
        let hashes = eventually("equal revisions", hashes);
        assert!(hashes.windows(2).all(|pair| pair[0] == pair[1]), "{hashes:?}");
    }
}

#[test]
fn every_member_takes_writes_and_sees_those_of_the_others() {
    for log in [LogMode::Memory, LogMode::Buffered, LogMode::Fsync] {
        let cluster = Cluster::start(log);
        cluster.leader();
        for number in 0..3 {
            cluster.put(number, &format!("key{number}"), "value");
            for reader in 0..3 {
                let found = cluster.get(reader, &format!("key{number}"));
                assert_eq!(found.as_deref(), Some("value"), "{log:?}");
            }
        }
        cluster.assert_equal();
        let status = cluster.member(0).cluster_status().unwrap();
        assert_eq!(status.members.len(), 3);
        assert!(status.members.iter().all(|member| !member.client_urls[0].is_empty()));
    }
}

/// Writes at all members while leaders are stopped without notice. Every acknowledged write is there
/// afterwards, at every member.
#[test]
fn acknowledged_writes_survive_their_leaders() {
    for log in [LogMode::Fsync, LogMode::Buffered] {
        let mut cluster = Cluster::start(log);
        let mut acknowledged = Vec::new();
        for round in 0..4 {
            let leader = cluster.leader();
            for write in 0..20 {
                let key = format!("{round}-{write}");
                cluster.put(write % 3, &key, &key);
                acknowledged.push(key);
            }
            cluster.kill(leader);
            let others = [(leader + 1) % 3, (leader + 2) % 3];
            for (write, member) in others.iter().cycle().take(10).enumerate() {
                let key = format!("{round}-after-{write}");
                cluster.put(*member, &key, &key);
                acknowledged.push(key);
            }
            cluster.restart(&[leader]);
        }
        cluster.leader();
        for number in 0..3 {
            for key in &acknowledged {
                assert_eq!(cluster.get(number, key).as_deref(), Some(key.as_str()), "{log:?}");
            }
        }
        cluster.assert_equal();
    }
}

/// Writes on their way when the leader stops are answered: each either took effect or the client
/// knows that it may have.
#[test]
fn writes_in_flight_are_answered_when_the_leader_stops() {
    let mut cluster = Cluster::start(LogMode::Memory);
    let leader = cluster.leader();
    let follower = (leader + 1) % 3;
    let stop = AtomicBool::new(false);
    let dead = cluster.members[leader].take();
    let acknowledged = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..8)
            .map(|writer| {
                let (member, stop) = (cluster.member(follower), &stop);
                scope.spawn(move || {
                    let mut acknowledged = Vec::new();
                    for number in 0.. {
                        let key = format!("{writer}-{number}");
                        match try_put(member, &key, &key) {
                            Ok(_) => acknowledged.push(key),
                            Err(error) => assert!(is_temporary(&error), "{error}"),
                        }
                        if stop.load(Ordering::Relaxed) {
                            return acknowledged;
                        }
                    }
                    unreachable!("the loop has no end")
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(300));
        drop(dead);
        eventually("another leader", || {
            let status = cluster.member(follower).cluster_status().unwrap();
            let dead = status.leader == 0;
            (!dead && cluster.running().any(Pipeline::is_leader)).then_some(())
        });
        std::thread::sleep(Duration::from_millis(300));
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(!acknowledged.is_empty());
    for key in acknowledged {
        assert_eq!(cluster.get(follower, &key).as_deref(), Some(key.as_str()));
    }
    cluster.assert_equal();
}

/// A member that has been without a leader for a while fails what needs one, so that clients ask another
/// member. With the time for an election, 40 requests would take four minutes.
#[test]
fn requests_do_not_wait_at_a_member_without_a_leader() {
    let mut cluster = Cluster::start(LogMode::Memory);
    let leader = cluster.leader();
    let alone = (leader + 1) % 3;
    cluster.put(alone, "key", "value");
    cluster.kill(leader);
    cluster.kill((leader + 2) % 3);
    let member = cluster.member(alone);
    let read = || matches!(block_on(member.linearize()), Err(Error::NoLeader));
    let write = || matches!(try_put(member, "key", "other"), Err(Error::NoConnection));
    eventually("no leader", || (read() && write()).then_some(()));
    let start = Instant::now();
    assert!((0..20).all(|_| read() && write()));
    assert!(start.elapsed() < DEADLINE / 2, "{:?}", start.elapsed());
    // What it has is read without a leader.
    let request = RangeRequest { key: b"key".to_vec().into(), ..Default::default() };
    assert_eq!(member.range(&request).unwrap().finish().kvs.len(), 1);
}

/// A member without disk has a new identity after a restart, and gets the state from the leader.
#[test]
fn a_member_without_disk_joins_again() {
    let mut cluster = Cluster::start(LogMode::Memory);
    for round in 0..3 {
        let leader = cluster.leader();
        let restarted = if round == 0 { leader } else { (leader + round) % 3 };
        for write in 0..50 {
            cluster.put(leader, &format!("{round}-{write}"), "value");
        }
        let before = cluster.member(restarted).identity().member_id;
        cluster.kill(restarted);
        cluster.restart(&[restarted]);
        assert_ne!(cluster.member(restarted).identity().member_id, before);
        let id = cluster.member(restarted).identity().member_id;
        eventually("the new identity votes", || {
            let members = cluster.member(restarted).cluster_status().unwrap().members;
            let joined = members.iter().any(|member| member.id == id && !member.is_learner);
            (joined && members.len() == 3).then_some(())
        });
        assert_eq!(cluster.get(restarted, "0-0").as_deref(), Some("value"));
    }
    cluster.leader();
    cluster.assert_equal();
}

/// Who waits until a restarted member without disk counts again may let the next one fail, the leader too.
#[test]
fn the_leader_may_fail_as_soon_as_a_restarted_member_counts() {
    let mut cluster = Cluster::start(LogMode::Memory);
    for round in 0..3 {
        let leader = cluster.leader();
        let (restarted, other) = ((leader + 1) % 3, (leader + 2) % 3);
        let key = format!("{round}");
        cluster.put(leader, &key, "value");
        cluster.kill(restarted);
        cluster.restart(&[restarted]);
        eventually("it counts", || {
            let status = cluster.member(restarted).cluster_status().unwrap();
            (!status.is_learner).then_some(())
        });
        cluster.kill(leader);
        cluster.put(other, &key, "after the leader has failed");
        let found = cluster.get(restarted, &key);
        assert_eq!(found.as_deref(), Some("after the leader has failed"));
        cluster.restart(&[leader]);
        eventually("the former leader counts", || {
            let status = cluster.member(leader).cluster_status().unwrap();
            (!status.is_learner).then_some(())
        });
    }
    cluster.assert_equal();
}

/// The log on the disk is shortened by snapshots. A member that was away for longer than the log of
/// the others reaches back still comes back.
#[test]
fn members_restart_from_snapshots() {
    for has_snapshot_dirs in [false, true] {
        restart_from_snapshots(has_snapshot_dirs);
    }
}

fn restart_from_snapshots(has_snapshot_dirs: bool) {
    let mut cluster = Cluster::start_with(LogMode::Fsync, 20_000, has_snapshot_dirs);
    let value = "x".repeat(1000);
    for write in 0..100 {
        cluster.put(write % 3, &format!("key{}", write % 10), &value);
    }
    let directory = |number: usize| match has_snapshot_dirs {
        true => cluster.snapshot_dir(number).join("replica"),
        false => cluster.root.path().join(NAMES[number]).join("replica/snap"),
    };
    let snapshots = |number: usize| {
        let dir = directory(number);
        let is_snapshot = |name: &std::ffi::OsStr| name.to_string_lossy().ends_with(".snap");
        let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
        files.filter(|file| is_snapshot(&file.file_name())).count()
    };
    eventually("snapshots", || (0..3).all(|number| snapshots(number) > 0).then_some(()));
    cluster.leader();
    cluster.assert_equal();
    let revision = cluster.member(0).revision();
    let lost = directory(0);
    for number in 0..3 {
        cluster.kill(number);
    }
    // A member without its snapshots would be empty.
    let hidden = cluster.root.path().join("hidden");
    std::fs::rename(&lost, &hidden).unwrap();
    let (options, stop) = (cluster.options(0), AtomicBool::new(false));
    let refused = Pipeline::open_member(&options, &cluster.cluster_options(0), &stop);
    let error = refused.err().expect("its snapshot is missing").to_string();
    assert!(error.contains("is --snapshot-dir the directory that was used before?"), "{error}");
    std::fs::remove_dir_all(&lost).unwrap();
    std::fs::rename(&hidden, &lost).unwrap();
    cluster.restart(&[0, 1, 2]);
    cluster.leader();
    for number in 0..3 {
        assert_eq!(cluster.get(number, "key3"), Some(value.clone()));
        assert_eq!(cluster.member(number).revision(), revision);
    }
    cluster.put(1, "key", "after");
    cluster.assert_equal();
}

#[test]
fn watches_at_every_member_see_every_event_once() {
    let mut cluster = Cluster::start(LogMode::Memory);
    let leader = cluster.leader();
    let follower = (leader + 1) % 3;
    let member = cluster.member(follower);
    let stream = member.watch_stream(|| {});
    stream.create(watch::Watch {
        id: 0,
        span: mvcc::Span::new(b"key", b"kez"),
        start_revision: 0,
        filter: watch::Filter::default(),
        prev_kv: false,
        progress_notify: false,
        fragment: false,
    });
    for write in 0..50 {
        cluster.put(write % 3, &format!("key{write}"), "value");
    }
    cluster.kill(leader);
    for write in 50..100 {
        cluster.put(follower, &format!("key{write}"), "value");
    }
    let member = cluster.member(follower);
    let mut revisions = Vec::new();
    eventually("all events", || {
        while let Some(delivery) = member.next_delivery(&stream) {
            if let Delivery::Events { events, .. } = delivery {
                revisions.extend(events.as_slice().iter().map(|event| event.revision()));
            }
        }
        (revisions.len() >= 100 && *revisions.last()? == member.revision()).then_some(())
    });
    assert!(revisions.windows(2).all(|pair| pair[0] < pair[1]), "{revisions:?}");
}

#[test]
fn leases_expire_at_the_leader_and_are_renewed_at_every_member() {
    let cluster = Cluster::start(LogMode::Memory);
    let leader = cluster.leader();
    for (id, ttl_seconds, member) in [(1, 600, leader), (2, 2, (leader + 1) % 3)] {
        let grant = Command::LeaseGrant { id, ttl_seconds };
        block_on(cluster.member(member).propose(ClientId(1), grant, 10)).unwrap();
    }
    for number in 0..3 {
        block_on(cluster.member(number).linearize()).unwrap();
        assert_eq!(block_on(cluster.member(number).lease_renew(1)).unwrap(), Some(600));
    }
    let exists = |number: usize, id: i64| {
        block_on(cluster.member(number).linearize()).unwrap();
        cluster.member(number).lease_time_to_live(id).is_some()
    };
    eventually("expiry", || (0..3).all(|number| !exists(number, 2)).then_some(()));
    assert_eq!(block_on(cluster.member(leader).lease_renew(2)).unwrap(), None);
}

#[test]
fn the_leadership_is_moved_on_request() {
    let cluster = Cluster::start(LogMode::Memory);
    let target = (cluster.leader() + 1) % 3;
    let id = cluster.member(target).identity().member_id;
    let followers_cannot = cluster.member(target);
    assert!(followers_cannot.is_leader() || block_on(followers_cannot.move_leader(id)).is_err());
    // On a busy machine, members may elect another leader at any time.
    eventually("the transfer", || {
        let leader = cluster.leader();
        let _ = block_on(cluster.member(leader).move_leader(id));
        (cluster.leader() == target).then_some(())
    });
    eventually("another leader", || {
        cluster.member(target).resign(DEADLINE);
        (cluster.leader() != target).then_some(())
    });
    cluster.put(target, "key", "value");
}
