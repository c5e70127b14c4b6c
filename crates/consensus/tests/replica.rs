//! The interface of a replica, call by call. Clusters with faults are in `src/simulation`.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use consensus::evaluation::{NotReady, Outcome};
use consensus::id::{ClusterId, MemberId, Position};
use consensus::identity::LogMode;
use consensus::membership::{Change, ChangeError, MemberInfo, Membership};
use consensus::message::{Body, Ignored, Message};
use consensus::output::{CommittedContent, Output, Role};
use consensus::{Config, ProposeChangeError, Replica, Start, TransferError};

const CLUSTER: ClusterId = ClusterId(5);

fn id(number: u64) -> MemberId {
    MemberId::new(number).unwrap()
}

fn info(number: u64) -> MemberInfo {
    let name = format!("m{number}");
    MemberInfo { id: id(number), name, peer_urls: Vec::new(), client_urls: Vec::new() }
}

fn config(number: u64, mode: LogMode) -> Config {
    Config {
        cluster: CLUSTER,
        member: id(number),
        mode,
        heartbeat_ticks: 1,
        election_ticks: 10,
        seed: number,
        max_uncommitted_bytes: 1000,
        max_message_bytes: 1000,
        max_inflight_messages: 16,
    }
}

fn new_cluster(members: u64) -> Start {
    Start::new_cluster(Membership::of_voters((1..=members).map(info)))
}

/// Three replicas without disks, and a network that can lose members.
struct Cluster {
    replicas: Vec<Replica>,
    cut_off: BTreeSet<MemberId>,
    /// Number of messages that are delivered before all others are lost.
    budget: usize,
    /// What each replica was asked to do.
    outputs: Vec<Vec<Output>>,
}

impl Cluster {
    /// Starts a cluster in which the first member leads.
    fn new() -> Cluster {
        let replica = |number| {
            Replica::new(config(number, LogMode::Memory), new_cluster(3)).expect("valid settings")
        };
        let replicas = (1..=3).map(replica).collect();
        let (cut_off, outputs) = (BTreeSet::new(), Vec::new());
        let mut cluster = Cluster { replicas, cut_off, budget: usize::MAX, outputs };
        cluster.clear();
        cluster.elect(&[0]);
        cluster
    }

    fn clear(&mut self) {
        self.outputs = self.replicas.iter().map(|_| Vec::new()).collect();
    }

    /// Lets time pass for these members until one of them leads. Returns it.
    fn elect(&mut self, members: &[usize]) -> usize {
        let leader = self.try_to_elect(members);
        leader.unwrap_or_else(|| panic!("none of the members {members:?} was elected"))
    }

    fn try_to_elect(&mut self, members: &[usize]) -> Option<usize> {
        for _ in 0..100 {
            members.iter().for_each(|member| self.replicas[*member].tick());
            self.run();
            let ready = |member: &&usize| self.replicas[**member].begin_evaluation().is_ok();
            if let Some(leader) = members.iter().find(ready).copied() {
                self.clear();
                return Some(leader);
            }
        }
        None
    }

    /// Does everything that the replicas ask for, until there is nothing left.
    fn run(&mut self) {
        let mut messages = VecDeque::new();
        loop {
            for (replica, outputs) in self.replicas.iter_mut().zip(&mut self.outputs) {
                loop {
                    let mut output = replica.output().unwrap();
                    if output.is_empty() {
                        break;
                    }
                    messages.extend(output.messages.drain(..));
                    if let Some(snapshot) = &output.restore {
                        replica.applied(snapshot.position.index);
                    }
                    if let Some(last) = output.committed.last() {
                        replica.applied(last.position.index);
                    }
                    outputs.push(output);
                }
            }
            let Some(message) = messages.pop_front() else { return };
            let lost = self.cut_off.contains(&message.from) || self.cut_off.contains(&message.to);
            if !lost && self.budget > 0 {
                self.budget -= 1;
                let (from, to) = (message.from.get() as usize - 1, message.to);
                let is_snapshot = matches!(message.body, Body::Snapshot(_));
                let result = self.replicas[to.get() as usize - 1].receive(message);
                if is_snapshot {
                    self.replicas[from].snapshot_sent(to, true);
                }
                // A member that was removed may not know it yet.
                let is_expected = matches!(result, Ok(()) | Err(Ignored::UnknownSender(_)));
                assert!(is_expected, "{result:?}");
            }
        }
    }

    fn propose(&mut self, member: usize, payload: &'static [u8]) -> Position {
        let replica = &mut self.replicas[member];
        let permission = replica.begin_evaluation().unwrap();
        replica.propose(permission, Bytes::from_static(payload)).unwrap()
    }

    fn outcomes(&self, member: usize) -> Vec<(Position, Outcome)> {
        self.outputs[member].iter().flat_map(|output| output.outcomes.clone()).collect()
    }

    /// The contents of the entries that a member got at this position.
    fn committed(&self, member: usize, position: Position) -> Vec<CommittedContent> {
        let entries = self.outputs[member].iter().flat_map(|output| &output.committed);
        entries.filter(|e| e.position == position).map(|e| e.content.clone()).collect()
    }
}

#[test]
fn a_leader_publishes_what_it_has_evaluated_and_others_apply_it() {
    let mut cluster = Cluster::new();
    let first = cluster.propose(0, b"first");
    let second = cluster.propose(0, b"second");
    cluster.run();
    let expected = [(first, Outcome::Committed), (second, Outcome::Committed)];
    assert_eq!(cluster.outcomes(0), expected);
    assert_eq!(cluster.committed(0, first), [CommittedContent::Publish]);
    for member in [1, 2] {
        let [CommittedContent::Apply(data)] = &cluster.committed(member, second)[..] else {
            panic!("member {member} does not apply the entry");
        };
        assert_eq!((&data.payload[..], data.previous), (&b"second"[..], first.index));
    }
}

#[test]
fn a_permission_is_valid_for_one_batch_on_one_state() {
    let mut cluster = Cluster::new();
    let leader = &mut cluster.replicas[0];
    let (one, other) = (leader.begin_evaluation().unwrap(), leader.begin_evaluation().unwrap());
    leader.propose(one, Bytes::from_static(b"one")).unwrap();
    assert_eq!(leader.propose(other, Bytes::from_static(b"other")), Err(NotReady::Stale));
    // Too much is uncommitted: one more batch is accepted, and no further one.
    let permission = leader.begin_evaluation().unwrap();
    leader.propose(permission, Bytes::from(vec![0; 997])).unwrap();
    assert_eq!(leader.begin_evaluation(), Err(NotReady::TooManyUncommitted));
    cluster.run();
    assert!(cluster.replicas[0].begin_evaluation().is_ok());
    assert_eq!(cluster.replicas[1].begin_evaluation(), Err(NotReady::NotLeader));
}

#[test]
fn a_leader_that_is_cut_off_undoes_what_is_not_committed() {
    let mut cluster = Cluster::new();
    let kept = cluster.propose(0, b"kept");
    cluster.run();
    cluster.clear();
    cluster.cut_off.insert(id(1));
    let lost = cluster.propose(0, b"lost");
    cluster.run();
    let leader = cluster.elect(&[1, 2]);
    let other = cluster.propose(leader, b"other");
    cluster.run();
    cluster.cut_off.clear();
    cluster.replicas[leader].tick();
    cluster.run();
    let undone: Vec<_> = cluster.outputs[0].iter().filter_map(|output| output.undo_to).collect();
    assert_eq!(undone, [kept.index]);
    assert_eq!(cluster.outcomes(0), [(lost, Outcome::Lost)]);
    assert!(matches!(cluster.committed(0, other)[..], [CommittedContent::Apply(_)]));
    let mut roles = cluster.outputs[0].iter().filter_map(|output| output.role);
    assert_eq!(roles.next_back().unwrap().role, Role::Follower);
}

#[test]
fn reads_of_all_members_wait_for_a_majority() {
    let mut cluster = Cluster::new();
    let written = cluster.propose(0, b"value");
    cluster.run();
    for member in 0..3 {
        let number = cluster.replicas[member].read();
        cluster.clear();
        cluster.run();
        let ready = cluster.outputs[member].iter().filter_map(|output| output.reads_ready).next();
        assert_eq!(ready, Some(number));
        assert!(cluster.replicas[member].status().applied >= written.index);
    }
    // Without a majority, no read is served.
    cluster.cut_off.insert(id(1));
    cluster.replicas[0].read();
    cluster.clear();
    cluster.run();
    assert!(cluster.outputs[0].iter().all(|output| output.reads_ready.is_none()));
}

#[test]
fn the_leadership_is_transferred_on_request() {
    let mut cluster = Cluster::new();
    assert_eq!(cluster.replicas[1].transfer_leadership(id(1)), Err(TransferError::NotLeader));
    let leader = &mut cluster.replicas[0];
    assert_eq!(leader.transfer_leadership(id(9)), Err(TransferError::NotVoter(id(9))));
    leader.transfer_leadership(id(2)).unwrap();
    assert_eq!(leader.begin_evaluation(), Err(NotReady::Transferring));
    cluster.run();
    assert_eq!(cluster.replicas[1].status().role.role, Role::Leader);
    assert_eq!(cluster.replicas[0].status().role.leader, Some(id(2)));
}

#[test]
fn changes_of_the_members_are_checked_before_they_are_proposed() {
    let mut cluster = Cluster::new();
    let leader = &mut cluster.replicas[0];
    let refused = leader.change_members(Change::Promote(id(9)));
    assert_eq!(refused, Err(ProposeChangeError::Refused(ChangeError::NotFound(id(9)))));
    let refused = leader.change_members(Change::Remove(id(1)));
    assert_eq!(refused, Err(ProposeChangeError::Leader(id(1))));
    leader.change_members(Change::Remove(id(3))).unwrap();
    assert_eq!(leader.change_members(Change::Remove(id(2))), Err(ProposeChangeError::Pending));
    cluster.run();
    let members = cluster.replicas[1].status().members;
    assert_eq!(members.iter().map(|member| member.info.id).collect::<Vec<_>>(), [id(1), id(2)]);
}

/// The third member has lost its log, and the leader replaces it. The leader fails after each of the messages of
/// the replacement in turn. As soon as the new member counts, it and the second one are a majority.
#[test]
fn a_replaced_member_that_counts_makes_up_for_the_leader() {
    let (mut too_early, mut counted) = (0, 0);
    for budget in 0.. {
        let mut cluster = Cluster::new();
        cluster.cut_off.insert(id(3));
        cluster.replicas.push(Replica::new(config(4, LogMode::Memory), Start::blank()).unwrap());
        cluster.clear();
        cluster.budget = budget;
        let successor = MemberInfo { name: "m3".to_owned(), ..info(4) };
        cluster.replicas[0].found(id(3), successor, false);
        for _ in 0..10 {
            cluster.replicas[0].tick();
            cluster.run();
        }
        let is_complete = cluster.budget > 0;
        let membership = cluster.replicas[3].membership();
        let (votes, counts) = (membership.is_voter(id(4)), membership.counts(id(4)));
        cluster.cut_off.insert(id(1));
        cluster.budget = usize::MAX;
        let elected = cluster.try_to_elect(&[1, 3]);
        assert!(elected.is_some() || !counts, "no leader after {budget} messages");
        too_early += u32::from(votes && elected.is_none());
        counted += u32::from(counts);
        if is_complete {
            break;
        }
    }
    assert!(too_early > 0, "it counts too late: nothing was lost when it began to vote");
    assert!(counted > 1);
}

/// The leader replaces a member without waiting for a tick after each step.
#[test]
fn the_steps_of_a_replacement_follow_each_other_at_once() {
    let mut cluster = Cluster::new();
    cluster.cut_off.insert(id(3));
    cluster.replicas.push(Replica::new(config(4, LogMode::Memory), Start::blank()).unwrap());
    cluster.clear();
    let successor = MemberInfo { name: "m3".to_owned(), ..info(4) };
    cluster.replicas[0].found(id(3), successor, false);
    // The first tick adds the learner. The second one notices that it has the log.
    for _ in 0..2 {
        cluster.replicas[0].tick();
        cluster.run();
    }
    let members: Vec<_> = cluster.replicas[1].membership().members().map(|m| m.id).collect();
    assert_eq!(members, [id(1), id(2), id(4)]);
    assert!(cluster.replicas[1].membership().counts(id(4)));
}

#[test]
fn a_promise_is_sent_after_it_is_written() {
    let mut replica = Replica::new(config(1, LogMode::Fsync), new_cluster(3)).unwrap();
    let vote = |term| Message {
        cluster: CLUSTER,
        from: id(2),
        to: id(1),
        term,
        body: Body::Vote {
            pre: false,
            last: Position { term: 1, index: 1 },
            commit: Position::default(),
            transfer: false,
        },
    };
    replica.receive(vote(7)).unwrap();
    let output = replica.output().unwrap();
    assert!(output.messages.is_empty());
    let write = &output.writes[0];
    assert!(write.sync);
    let hard_state = write.hard_state.unwrap();
    assert_eq!((hard_state.term, hard_state.vote), (7, Some(id(2))));
    replica.persisted(write.number);
    let messages = replica.output().unwrap().messages;
    assert!(matches!(messages[0].body, Body::VoteResponse { granted: true, .. }));
}

#[test]
fn messages_that_no_correct_member_sends_are_ignored() {
    let mut cluster = Cluster::new();
    let replica = &mut cluster.replicas[1];
    let term = replica.status().role.term;
    let message = |body| Message { cluster: CLUSTER, from: id(1), to: id(2), term, body };
    let beyond = Body::Heartbeat { commit: 1000, read: Bytes::new() };
    let other_cluster = Message { cluster: ClusterId(6), ..message(Body::TimeoutNow) };
    let error = replica.receive(other_cluster);
    assert_eq!(error, Err(Ignored::OtherCluster(ClusterId(6))));
    let error = replica.receive(Message { to: id(3), ..message(Body::TimeoutNow) });
    assert_eq!(error, Err(Ignored::OtherReceiver(id(3))));
    let response = Body::VoteResponse { pre: false, granted: true, commit: Position::default() };
    let error = replica.receive(Message { from: id(9), ..message(response) });
    assert_eq!(error, Err(Ignored::UnknownSender(id(9))));
    let error = replica.receive(message(beyond));
    assert!(matches!(error, Err(Ignored::Contradiction(..))), "{error:?}");
}

/// Damaged messages are decoded or refused; nothing panics.
#[test]
fn damaged_messages_are_refused_without_a_panic() {
    let message = Message {
        cluster: CLUSTER,
        from: id(1),
        to: id(2),
        term: 3,
        body: Body::Snapshot(new_cluster(3).snapshot),
    };
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    assert_eq!(Message::decode(bytes.clone().into()), Ok(message));
    let mut refused = 0;
    for position in 0..bytes.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[position] = value;
            refused += u32::from(Message::decode(damaged.into()).is_err());
        }
        assert!(Message::decode(bytes[..position].to_vec().into()).is_err());
    }
    assert!(refused > 0);
}
