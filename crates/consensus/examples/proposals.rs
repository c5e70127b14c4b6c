//! Measures the CPU time of a proposal: all that this crate and its library do, for all members of
//! a cluster, without a network and without a disk. Messages are encoded and decoded.
//!
//! ```sh
//! cargo run --release -p consensus --example proposals
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use consensus::id::{ClusterId, MemberId};
use consensus::identity::LogMode;
use consensus::membership::{MemberInfo, Membership};
use consensus::message::Message;
use consensus::{Config, Replica, Start};
use cpu_time::ProcessTime;

/// Proposals of a measurement.
const PROPOSALS: u64 = 50_000;
/// Number of entries after which the log in memory is compacted.
const COMPACT_ENTRIES: u64 = 10_000;
const SAMPLES: usize = 3;

struct Cluster {
    replicas: Vec<Replica>,
    messages: VecDeque<Bytes>,
    /// The size of all messages in bytes.
    sent: usize,
    committed: u64,
}

fn main() {
    println!("members  payload  in flight  CPU per proposal  sent per proposal");
    for (members, payload, in_flight) in
        [(1, 1024, 1), (3, 1024, 1), (3, 1024, 16), (3, 1024, 256), (3, 65_536, 1), (5, 1024, 16)]
    {
        let mut samples: Vec<_> =
            (0..SAMPLES).map(|_| measure(members, payload, in_flight)).collect();
        samples.sort_unstable();
        let (duration, sent) = samples[SAMPLES / 2];
        let nanos = duration.as_nanos() as u64 / PROPOSALS;
        println!(
            "{members:7}  {payload:7}  {in_flight:9}  {:13}.{:02} µs  {:15} B",
            nanos / 1000,
            nanos % 1000 / 10,
            sent / PROPOSALS as usize
        );
    }
}

/// Returns the CPU time and the size of all messages.
fn measure(members: u64, payload: usize, in_flight: u64) -> (Duration, usize) {
    let mut cluster = Cluster::new(members);
    cluster.elect();
    let payload = Bytes::from(vec![7; payload]);
    let (start, first, sent) = (ProcessTime::now(), cluster.committed, cluster.sent);
    let mut proposed = 0;
    while proposed < PROPOSALS {
        for _ in 0..in_flight.min(PROPOSALS - proposed) {
            let leader = &mut cluster.replicas[0];
            let permission = leader.begin_evaluation().expect("the first member leads");
            leader.propose(permission, payload.clone()).expect("the first member leads");
            proposed += 1;
        }
        cluster.run();
    }
    let duration = start.elapsed();
    assert_eq!(cluster.committed - first, PROPOSALS, "not all proposals are committed");
    (duration, cluster.sent - sent)
}

impl Cluster {
    fn new(members: u64) -> Cluster {
        let id = |number| MemberId::new(number).expect("it is not 0");
        let info = |number| MemberInfo {
            id: id(number),
            name: format!("m{number}"),
            peer_urls: Vec::new(),
            client_urls: Vec::new(),
        };
        let membership = Membership::of_voters((1..=members).map(info));
        let replica = |number| {
            let config = Config {
                cluster: ClusterId(1),
                member: id(number),
                mode: LogMode::Memory,
                heartbeat_ticks: 1,
                election_ticks: 10,
                seed: number,
                max_uncommitted_bytes: 1 << 30,
                max_message_bytes: 1 << 20,
                max_inflight_messages: 256,
            };
            Replica::new(config, Start::new_cluster(membership.clone())).expect("valid settings")
        };
        let replicas = (1..=members).map(replica).collect();
        Cluster { replicas, messages: VecDeque::new(), sent: 0, committed: 0 }
    }

    /// Lets only the first member ask for votes.
    fn elect(&mut self) {
        while self.replicas[0].begin_evaluation().is_err() {
            self.replicas[0].tick();
            self.run();
        }
    }

    /// Delivers all messages.
    fn run(&mut self) {
        loop {
            (0..self.replicas.len()).for_each(|member| self.output(member));
            if self.messages.is_empty() {
                return;
            }
            while let Some(bytes) = self.messages.pop_front() {
                let message = Message::decode(bytes).expect("it was encoded here");
                let member = message.to.get() as usize - 1;
                self.replicas[member].receive(message).expect("members send valid messages");
            }
        }
    }

    fn output(&mut self, member: usize) {
        let replica = &mut self.replicas[member];
        loop {
            let output = replica.output().expect("the log is consistent");
            for message in output.messages {
                let mut bytes = Vec::new();
                message.encode(&mut bytes);
                self.sent += bytes.len();
                self.messages.push_back(bytes.into());
            }
            let Some(last) = output.committed.last() else { return };
            let index = last.position.index;
            if member == 0 {
                self.committed += output.committed.len() as u64;
            }
            replica.applied(index);
            replica.compact(index.saturating_sub(COMPACT_ENTRIES));
        }
    }
}
