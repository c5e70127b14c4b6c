//! A member whose content is changed behind its back.

use std::net::TcpListener;
use std::sync::atomic::AtomicBool;

use consensus::identity::LogMode;
use etcdpb::Record;
use etcdpb::rpc::PutRequest;
use futures_executor::block_on;
use mvcc::{Effect, Reply, Store};

use super::*;
use crate::replicated::hash_check_state::HashCheckIntervals;
use crate::{ClientId, ClusterOptions, Pipeline, PipelineOptions};

const DEADLINE: Duration = Duration::from_secs(180);
const KEYS: usize = 10;

fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Starts three members without disks.
fn start(hash_checks: HashCheckIntervals) -> Vec<Pipeline> {
    let free = || TcpListener::bind("127.0.0.1:0").unwrap();
    let ports: Vec<_> = (0..3).map(|_| free()).collect();
    let url = |port: &TcpListener| format!("http://{}", port.local_addr().unwrap());
    let urls: Vec<_> = ports.iter().map(url).collect();
    drop(ports);
    let initial: Vec<_> = ["a", "b", "c"]
        .iter()
        .zip(&urls)
        .map(|(n, u)| (n.to_string(), vec![u.parse().unwrap()]))
        .collect();
    let options = |number: usize| ClusterOptions {
        name: initial[number].0.clone(),
        initial_cluster: initial.clone(),
        token: "test".to_owned(),
        is_existing: false,
        listen_peer_urls: initial[number].1.clone(),
        client_urls: vec![],
        tls: None,
        log: LogMode::Memory,
        data_dir: std::path::PathBuf::new(),
        heartbeat_interval: Duration::from_millis(20),
        election_timeout: Duration::from_millis(400),
        force_new_cluster: false,
        is_replaced: false,
        strict_reconfig_check: true,
        max_learners: 1,
        hash_checks,
        snapshot_bytes_per_second: None,
    };
    std::thread::scope(|scope| {
        let open = |number| {
            let options = options(number);
            let stop = AtomicBool::new(false);
            move || Pipeline::open_member(&PipelineOptions::default(), &options, &stop).unwrap()
        };
        let threads: Vec<_> = (0..3).map(|number| scope.spawn(open(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn propose(member: &Pipeline, command: &Command) -> Result<Reply, Error> {
    block_on(member.propose(ClientId(1), command.clone(), 100))
}

/// Puts keys, and waits until all members have them. Returns the history.
fn fill(members: &[Pipeline]) -> Vec<Record> {
    for number in 0..KEYS {
        let key = format!("key{number}").into_bytes().into();
        let put = Command::Put(PutRequest { key, value: "value".into(), ..Default::default() });
        eventually("a put", || propose(&members[0], &put).ok());
    }
    eventually("equal members", || {
        let revision = members[0].revision();
        members.iter().all(|member| member.revision() == revision).then_some(())
    });
    let store = members[0].shared().store.read();
    store.events_since(0).map(|event| event.record.clone()).collect()
}

/// Replaces the store of a member by one with the same history, but with another value of the first key.
fn corrupt(member: &Pipeline, history: &[Record], compacted: Option<i64>) {
    let mut store = Store::default();
    for (number, record) in history.iter().enumerate() {
        let record = match number {
            0 => Record::put(
                record.key(),
                b"other",
                record.mod_revision(),
                record.mod_revision(),
                1,
                0,
            ),
            _ => record.clone(),
        };
        store.replay(Effect::Write(record)).unwrap();
    }
    if let Some(revision) = compacted {
        store.replay(Effect::Compacted { revision }).unwrap();
    }
    *member.shared().store.write() = store;
}

fn has_alarm(member: &Pipeline, id: u64) -> bool {
    let alarm = Alarm { kind: AlarmKind::Corrupt, member_id: id };
    member.status().alarms.contains(&alarm)
}

#[test]
fn a_member_with_another_content_is_found() {
    let current = Some(Duration::from_millis(100));
    let members = start(HashCheckIntervals { current, compacted: None });
    let history = fill(&members);
    // Some checks find nothing.
    std::thread::sleep(Duration::from_millis(500));
    assert!(members.iter().all(|member| member.status().alarms.is_empty()));
    corrupt(&members[1], &history, None);
    let id = members[1].identity().member_id;
    eventually("an alarm", || members.iter().all(|member| has_alarm(member, id)).then_some(()));
    let put = Command::Put(PutRequest { key: b"key".to_vec().into(), ..Default::default() });
    let error = eventually("a refusal", || match propose(&members[0], &put) {
        Err(Error::NoConnection | Error::LeaderChanged | Error::LeaderFailed | Error::TimedOut) => {
            None
        }
        other => Some(other),
    });
    assert!(matches!(error, Err(Error::Refused(mvcc::Error::Corrupt))));
}

/// The leader itself may be the one that differs.
#[test]
fn a_leader_with_another_content_is_found_after_a_compaction() {
    let compacted = Some(Duration::from_millis(100));
    let members = start(HashCheckIntervals { current: None, compacted });
    let history = fill(&members);
    let revision = members[0].revision();
    let compact = |revision| match propose(&members[0], &Command::Compact { revision }) {
        // It was compacted, or the alarm is raised already.
        Err(Error::Refused(_)) => Some(()),
        other => other.ok().map(drop),
    };
    eventually("a compaction", || compact(revision - 1));
    let is_compacted = |member: &Pipeline| member.status().compacted == revision - 1;
    eventually("it everywhere", || members.iter().all(is_compacted).then_some(()));
    let leader = eventually("a leader", || members.iter().find(|member| member.is_leader()));
    corrupt(leader, &history, Some(revision - 1));
    let id = leader.identity().member_id;
    // A check before may have found that all are equal at the first compaction.
    eventually("another compaction", || compact(revision));
    eventually("an alarm", || members.iter().all(|member| has_alarm(member, id)).then_some(()));
}

#[test]
fn a_member_that_starts_learns_whether_it_differs() {
    let members = start(HashCheckIntervals::default());
    let history = fill(&members);
    for member in &members {
        assert_eq!(block_on(member.compare_members()).unwrap(), Vec::<u64>::new());
    }
    corrupt(&members[2], &history, None);
    let mut others = vec![members[0].identity().member_id, members[1].identity().member_id];
    others.sort_unstable();
    assert_eq!(block_on(members[2].compare_members()).unwrap(), others);
    let id = members[2].identity().member_id;
    assert_eq!(block_on(members[0].compare_members()).unwrap(), [id]);
    assert!(members.iter().all(|member| member.status().alarms.is_empty()));
}
