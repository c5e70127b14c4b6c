//! Clusters whose members are changed by commands, in one process, with real transports on loopback
//! addresses.

#[path = "test_member/proxy.rs"]
mod proxy;
mod test_member;

use std::num::NonZeroU64;

use consensus::identity::LogMode;
use futures_executor::block_on;
use pipeline::{ClusterMember, ClusterOptions, Error, MemberError, Pipeline, PipelineOptions};
use proxy::{FORWARD, Proxy};
use test_member::{cluster_options, eventually, free_urls, get, is_temporary, open, put};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// Members that are started one after the other. The first one forms the cluster.
struct Cluster {
    root: tempfile::TempDir,
    log: LogMode,
    urls: Vec<String>,
    /// Where members listen that are reached at other URLs, through proxies.
    listen_urls: [Option<String>; NAMES.len()],
    members: Vec<Option<Pipeline>>,
    /// Whether members that are started continue alone.
    force_new_cluster: bool,
    /// Whether members that are started were replaced.
    is_replaced: bool,
    /// Rate at which states are sent.
    snapshot_bytes_per_second: Option<NonZeroU64>,
}

impl Cluster {
    /// Starts a cluster of one member.
    fn start(log: LogMode) -> Cluster {
        Cluster::start_with_rate(log, None)
    }

    /// Starts a cluster of one member that sends its state at this rate.
    fn start_with_rate(log: LogMode, bytes_per_second: Option<u64>) -> Cluster {
        let mut cluster = Cluster {
            root: tempfile::tempdir().unwrap(),
            log,
            urls: free_urls(NAMES.len()),
            listen_urls: Default::default(),
            members: NAMES.iter().map(|_| None).collect(),
            force_new_cluster: false,
            is_replaced: false,
            snapshot_bytes_per_second: bytes_per_second.and_then(NonZeroU64::new),
        };
        cluster.start_member(0);
        cluster
    }

    /// Starts a member. All but the first one join those that run.
    fn start_member(&mut self, number: usize) {
        let known = (0..NAMES.len()).filter(|i| *i == number || self.members[*i].is_some());
        let initial = known.map(|i| (NAMES[i].to_owned(), self.urls[i].clone()));
        let (name, url) = (NAMES[number], &self.urls[number]);
        let listen = self.listen_urls[number].as_ref().unwrap_or(url);
        let cluster = ClusterOptions {
            listen_peer_urls: vec![listen.parse().unwrap()],
            is_existing: number > 0,
            force_new_cluster: self.force_new_cluster,
            is_replaced: self.is_replaced,
            snapshot_bytes_per_second: self.snapshot_bytes_per_second,
            ..cluster_options(name, url, initial, self.log, self.root.path())
        };
        let options = PipelineOptions { boot_id: b"boot".to_vec(), ..PipelineOptions::default() };
        self.members[number] = Some(open(&options, &cluster));
    }

    fn member(&self, number: usize) -> &Pipeline {
        self.members[number].as_ref().expect("the member runs")
    }

    fn id(&self, number: usize) -> u64 {
        self.member(number).identity().member_id
    }

    /// Adds a member by a command at another one. Returns its ID.
    fn add(&self, at: usize, number: usize, is_learner: bool) -> u64 {
        let add =
            || block_on(self.member(at).add_member(vec![self.urls[number].clone()], is_learner));
        let changed = self.until_healthy("add a member", add);
        let added = changed.added.expect("a member was added");
        let member = changed.members.iter().find(|member| member.id == added).unwrap();
        assert_eq!((member.name.as_str(), member.is_learner), ("", is_learner));
        added
    }

    /// Tries again while the leader is not connected to enough members, or there is none.
    fn until_healthy<T>(
        &self,
        what: &str,
        mut command: impl FnMut() -> Result<T, MemberError>,
    ) -> T {
        eventually(what, || match command() {
            Ok(done) => Some(done),
            Err(MemberError::Unhealthy | MemberError::NotEnoughStarted) => None,
            Err(MemberError::Failed(error)) if is_temporary(&error) => None,
            Err(error) => panic!("{what}: {error}"),
        })
    }

    fn list(&self, number: usize) -> Vec<ClusterMember> {
        self.member(number).cluster_status().unwrap().members
    }

    /// Waits until a member is no learner and has started. It may vote only later.
    fn wait_for_voter(&self, at: usize, id: u64) {
        let is_voter = |m: &ClusterMember| m.id == id && !m.is_learner && !m.name.is_empty();
        eventually("a voter", || self.list(at).iter().any(is_voter).then_some(()));
    }

    fn put(&self, number: usize, key: &str) {
        put(self.member(number), key, key);
    }

    fn has(&self, number: usize, key: &str) -> bool {
        get(self.member(number), key).is_some()
    }
}

#[test]
fn one_member_grows_to_three_and_back() {
    for log in [LogMode::Memory, LogMode::Fsync] {
        let mut cluster = Cluster::start(log);
        cluster.put(0, "alone");
        let second = cluster.add(0, 1, false);
        cluster.put(0, "before the second member");
        cluster.start_member(1);
        assert_eq!(cluster.id(1), second, "a member keeps the ID with which it was added");
        cluster.wait_for_voter(0, second);
        cluster.put(1, "two");

        let third = cluster.add(1, 2, true);
        cluster.start_member(2);
        assert_eq!(cluster.id(2), third);
        eventually("a learner that knows it", || cluster.member(2).is_learner().then_some(()));
        // It can be promoted when it has the log.
        let promote = || match block_on(cluster.member(1).promote_member(third)) {
            Err(MemberError::LearnerNotReady) => Err(MemberError::Unhealthy),
            other => other,
        };
        cluster.until_healthy("promote the learner", promote);
        cluster.wait_for_voter(2, third);
        cluster.put(2, "three");

        // The first one leads, unless the machine is very slow.
        let first = cluster.id(0);
        let remove = || match block_on(cluster.member(2).remove_member(first)) {
            // An attempt before has succeeded after all.
            Err(MemberError::NotFound) => Ok(()),
            other => other.map(|_| ()),
        };
        cluster.until_healthy("remove the first member", remove);
        eventually("its end", || cluster.member(0).is_removed().then_some(()));
        cluster.members[0] = None;
        cluster.put(1, "two again");

        // A member can remove itself.
        let own = || match block_on(cluster.member(1).remove_member(second)) {
            Err(MemberError::Failed(Error::Stopped)) if cluster.member(1).is_removed() => Ok(()),
            other => other.map(|_| ()),
        };
        cluster.until_healthy("remove the second member", own);
        eventually("its end", || cluster.member(1).is_removed().then_some(()));
        cluster.members[1] = None;
        cluster.put(2, "alone again");
        let all = ["alone", "before the second member", "two", "three", "two again", "alone again"];
        assert!(all.iter().all(|key| cluster.has(2, key)), "{log:?}");
        assert_eq!(cluster.list(2).len(), 1);
        let last = block_on(cluster.member(2).remove_member(third)).unwrap_err();
        assert!(matches!(last, MemberError::NotEnoughStarted), "{last}");
    }
}

/// A member without a log that restarts is another process: it gets another identity.
#[test]
fn an_added_member_may_restart() {
    let mut cluster = Cluster::start(LogMode::Memory);
    let added = cluster.add(0, 1, true);
    cluster.start_member(1);
    assert_eq!(cluster.id(1), added);
    cluster.members[1] = None;
    cluster.start_member(1);
    let second = cluster.id(1);
    assert_ne!(second, added);
    let is_only_learner = || {
        let learners: Vec<_> = cluster.list(0).into_iter().filter(|m| m.is_learner).collect();
        (learners.len() == 1 && learners[0].id == second).then_some(())
    };
    eventually("the new identity only", is_only_learner);
    let promote = || match block_on(cluster.member(0).promote_member(second)) {
        Err(MemberError::LearnerNotReady) => Err(MemberError::Unhealthy),
        other => other,
    };
    cluster.until_healthy("promote it", promote);
    cluster.put(1, "key");
    assert!(cluster.has(0, "key"));
}

/// A process whose member is removed before it got the state, and at whose URL another one is added, becomes the
/// other one.
#[test]
fn a_process_without_state_becomes_the_next_member_at_its_url() {
    for log in [LogMode::Memory, LogMode::Fsync] {
        // The state is never complete.
        let mut cluster = Cluster::start_with_rate(log, Some(1));
        let value = "x".repeat(1 << 20);
        put(cluster.member(0), "large", &value);
        let first = cluster.add(0, 1, true);
        cluster.start_member(1);
        assert_eq!(cluster.id(1), first);
        let remove = || block_on(cluster.member(0).remove_member(first)).map(drop);
        cluster.until_healthy("remove the member", remove);
        let second = cluster.add(0, 1, true);
        assert!(!cluster.member(1).has_state());
        // It is told that it was removed if it connects at the right moment.
        let has_ended = || cluster.member(1).is_replaced() || cluster.member(1).is_removed();
        eventually("its end", || has_ended().then_some(()));
        cluster.members[1] = None;
        cluster.is_replaced = true;
        cluster.start_member(1);
        assert_eq!(cluster.id(1), second, "{log:?}");
    }
}

#[test]
fn what_etcd_refuses_is_refused() {
    let mut cluster = Cluster::start(LogMode::Memory);
    let url = |number: usize| vec![cluster.urls[number].clone()];
    let refused = |result: Result<_, MemberError>| result.map(drop).unwrap_err().to_string();
    let at = |cluster: &Cluster, number: usize| cluster.member(number).identity().member_id;
    eventually("a leader", || cluster.member(0).is_leader().then_some(()));
    let added = cluster.add(0, 1, true);
    let member = cluster.member(0);
    let own = at(&cluster, 0);
    for (result, expected) in [
        (block_on(member.add_member(url(1), false)), "Peer URLs already exists"),
        (block_on(member.add_member(url(2), true)), "too many learner members in cluster"),
        (block_on(member.promote_member(own)), "can only promote a learner member"),
        (block_on(member.promote_member(added)), "in sync with leader"),
        (block_on(member.promote_member(77)), "member not found"),
        (block_on(member.remove_member(77)), "member not found"),
        (block_on(member.update_member(77, url(3))), "member not found"),
        (block_on(member.update_member(added, url(0))), "Peer URLs already exists"),
        (block_on(member.remove_member(own)), "not enough started members"),
    ] {
        let error = refused(result);
        assert!(error.starts_with("etcdserver: ") && error.ends_with(expected), "{error}");
    }
    // The member is reached at its new URL.
    let updated = block_on(member.update_member(added, url(2))).unwrap();
    let member = updated.members.iter().find(|member| member.id == added).unwrap();
    assert_eq!(member.peer_urls, url(2));
    cluster.start_member(2);
    assert_eq!(at(&cluster, 2), added);
    // A member that was added as a voter counts, although it does not vote yet.
    let member = cluster.member(0);
    block_on(member.remove_member(added)).unwrap();
    block_on(member.add_member(vec![cluster.urls[1].clone()], false)).unwrap();
    let error = refused(block_on(member.add_member(vec![cluster.urls[3].clone()], false)));
    assert!(error.ends_with("not enough started members"), "{error}");
    cluster.put(0, "key");
}

/// One of two members is lost, so nothing is committed any more. The other one continues with its data.
#[test]
fn a_survivor_continues_alone() {
    let mut cluster = Cluster::start(LogMode::Fsync);
    let second = cluster.add(0, 1, false);
    cluster.start_member(1);
    cluster.wait_for_voter(0, second);
    cluster.put(0, "both");
    // Only a member that has stored the state can lead. Lists say earlier that it votes.
    let leads = || block_on(cluster.member(0).move_leader(second)).ok();
    eventually("the second member leads", leads);
    assert!(cluster.has(1, "both"));
    cluster.members[0] = None;
    cluster.members[1] = None;
    cluster.force_new_cluster = true;
    cluster.start_member(1);
    assert_eq!(cluster.id(1), second);
    cluster.put(1, "alone");
    assert_eq!(cluster.list(1).len(), 1);
    // It stays the only one without the flag, and can get others.
    cluster.force_new_cluster = false;
    cluster.members[1] = None;
    cluster.start_member(1);
    assert!(cluster.has(1, "both") && cluster.has(1, "alone"));
    assert_eq!(cluster.list(1).len(), 1);
    let third = cluster.add(1, 2, false);
    cluster.start_member(2);
    cluster.wait_for_voter(1, third);
    assert!(cluster.has(2, "both"));
}

/// The leader does not reach the member that a client asks, but gets what this member forwards. It must not carry it
/// out: its answer would be lost, and the client could not know that a member was added.
#[test]
fn commands_wait_until_the_leader_can_answer() {
    let mut cluster = Cluster::start(LogMode::Memory);
    let proxy = Proxy::start(&cluster.urls[1]);
    cluster.listen_urls[1] = Some(std::mem::replace(&mut cluster.urls[1], proxy.url.clone()));
    proxy.block(FORWARD);
    cluster.add(0, 1, false);
    cluster.start_member(1);
    let votes = || (!cluster.member(1).cluster_status().unwrap().is_learner).then_some(());
    eventually("a voter", votes);
    let is_added = || cluster.list(0).iter().any(|m| m.peer_urls.contains(&cluster.urls[2]));
    std::thread::scope(|scope| {
        let add = scope.spawn(|| cluster.add(1, 2, false));
        let put = scope.spawn(|| cluster.put(1, "key"));
        // Long enough for commands that do not wait.
        std::thread::sleep(std::time::Duration::from_millis(500));
        assert!(!is_added());
        assert_eq!(cluster.member(0).revision(), 1);
        proxy.block(0);
        put.join().unwrap();
        add.join().unwrap();
    });
    assert!(is_added() && cluster.has(0, "key"));
}
