//! Messages between members: order, identities, reconnecting, slow receivers.

mod node;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use consensus::id::ClusterId;
use consensus::membership::MemberInfo;
use consensus::message::Body;
use node::{Node, Settings, eventually, id, pair};
use peer::{Answer, Class, Event};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_a_class_arrive_in_order() {
    let (a, mut b) = pair(&Settings::default()).await;
    for number in 1..=2000 {
        a.append(b.info.id, number, (number % 7) as usize * 1000);
        a.heartbeat(b.info.id, number);
    }
    let (mut last_control, mut last_log) = (0, 0);
    while last_control < 2000 || last_log < 2000 {
        let choose = |event| match event {
            Event::Message(message) => Some(message),
            _ => None,
        };
        let message = b.wait("message", choose).await;
        let last = match Class::of(&message) {
            Class::Control => &mut last_control,
            _ => &mut last_log,
        };
        assert_eq!(node::number(&message), *last + 1);
        *last += 1;
    }
}

#[tokio::test]
async fn a_message_larger_than_the_window_arrives() {
    let (a, mut b) = pair(&Settings::default()).await;
    a.append(b.info.id, 1, 10);
    a.append(b.info.id, 2, 20 << 20);
    a.append(b.info.id, 3, 10);
    for number in 1..=3 {
        assert_eq!(b.wait_for(Class::Log).await.0, number);
    }
    // This one is larger than the maximum. The stream survives it.
    a.append(b.info.id, 4, 70 << 20);
    let dropped = || a.stream(b.info.id, Class::Log).unwrap().dropped_messages;
    eventually("a dropped message", || dropped() == 1).await;
    a.append(b.info.id, 5, 10);
    assert_eq!(b.wait_for(Class::Log).await.0, 5);
}

#[tokio::test]
async fn the_round_trip_is_measured() {
    let (mut a, mut b) = pair(&Settings::default()).await;
    a.reach(&mut b).await;
    let measured = || a.transport.status().peers[0].round_trip.is_some();
    eventually("a round trip", measured).await;
}

#[tokio::test]
async fn a_member_of_another_cluster_is_refused() {
    let a = Node::start(1, "a", &Settings::default()).await;
    let other = Settings { cluster: ClusterId(9), ..Settings::default() };
    let b = Node::start(2, "b", &other).await;
    a.transport.set_members([&b.info]);
    let refused = || b.transport.status().refused.contains_key(&Answer::OtherCluster);
    eventually("a refusal", refused).await;
    a.heartbeat(b.info.id, 1);
    let count = || b.transport.status().refused[&Answer::OtherCluster];
    let before = count();
    eventually("another attempt", || count() > before + 1).await;
    assert!(b.transport.events().is_empty() && b.transport.status().peers.is_empty());
    let found = |event: &Event| matches!(event, Event::Found { .. });
    assert!(!a.transport.events().iter().any(found), "it is no member of this cluster");
}

#[tokio::test]
async fn a_member_with_a_new_identity_is_found_and_gets_no_message_for_the_old_one() {
    let settings = Settings::default();
    let (mut a, mut b) = pair(&settings).await;
    a.reach(&mut b).await;
    let url = b.info.peer_urls[0].clone();
    b.transport.stop().await;
    drop(b);
    let mut reborn = Node::start(3, "b", &Settings { url, ..settings }).await;
    let choose = |event| match event {
        Event::Found { identity, .. } => Some(identity.member),
        _ => None,
    };
    assert_eq!(a.wait("identity", choose).await, reborn.info);
    a.heartbeat(id(2), 1);
    a.append(id(2), 1, 10);
    a.transport.set_members([&reborn.info]);
    assert!(a.stream(id(2), Class::Log).is_none());
    a.append(reborn.info.id, 5, 10);
    let mut wait = reborn.wait_for(Class::Log).await;
    while wait.0 != 5 {
        wait = reborn.wait_for(Class::Log).await;
        assert_ne!(wait.0, 1, "it is for the old identity");
    }
}

/// A process is called by the identity that it got, and speaks under it from then on.
#[tokio::test]
async fn a_process_gets_the_identity_of_an_added_member() {
    let settings = Settings::default();
    let mut a = Node::start(1, "a", &settings).await;
    let mut process = Node::start(9, "b", &settings).await;
    let added = MemberInfo { id: id(2), ..process.info.clone() };
    a.transport.set_members([&added]);
    let choose = |event| match event {
        Event::Found { expected, identity } => Some((expected, identity.member, identity.is_blank)),
        _ => None,
    };
    assert_eq!(a.wait("process", choose).await, (id(2), process.info.clone(), true));
    a.transport.set_claims(&BTreeMap::from([(id(2), id(8))]));
    assert!(a.stream(id(2), Class::Log).is_none_or(|stream| !stream.is_connected));
    a.transport.set_claims(&BTreeMap::from([(id(2), id(9))]));
    assert_eq!(process.transport.called().await, id(2));
    process.transport.set_id(id(2));
    process.info.id = id(2);
    a.reach(&mut process).await;
}

#[tokio::test]
async fn a_stranger_is_answered_at_its_url_and_forgotten() {
    let (mut a, mut b) = {
        let settings = Settings::default();
        (Node::start(1, "a", &settings).await, Node::start(2, "b", &settings).await)
    };
    a.transport.set_members([&b.info]);
    a.reach(&mut b).await;
    let stranger = b.transport.status().peers.remove(0);
    assert!(!stranger.is_member && stranger.info == a.info);
    b.reach(&mut a).await;
    a.transport.stop().await;
    eventually("forgotten", || b.transport.status().peers.is_empty()).await;
}

#[tokio::test]
async fn strangers_are_limited_but_members_are_not() {
    let settings = Settings::default();
    let mut b = Node::start(100, "b", &settings).await;
    let mut strangers = Vec::new();
    for number in 1..=20 {
        let node = Node::start(number, "x", &settings).await;
        node.transport.set_members([&b.info]);
        strangers.push(node);
    }
    let refused = || b.transport.status().refused.contains_key(&Answer::TooMany);
    eventually("a refusal", refused).await;
    assert!(b.transport.status().peers.len() <= 16);
    let mut member = Node::start(21, "m", &settings).await;
    b.transport.set_members([&member.info]);
    member.transport.set_members([&b.info]);
    member.reach(&mut b).await;
}

#[tokio::test]
async fn a_removed_member_is_told_and_may_return() {
    let (mut a, mut b) = pair(&Settings::default()).await;
    a.reach(&mut b).await;
    a.transport.set_members([&a.info]);
    let choose = |event| match event {
        Event::RemovedBy(id) => Some(id),
        _ => None,
    };
    assert_eq!(b.wait("removal", choose).await, a.info.id);
    b.heartbeat(a.info.id, 1);
    assert!(a.transport.status().peers.is_empty());
    a.transport.set_members([&b.info]);
    b.reach(&mut a).await;
}

#[tokio::test]
async fn a_member_does_not_talk_to_itself() {
    let a = Node::start(1, "a", &Settings::default()).await;
    a.transport.set_members([&a.info]);
    assert!(a.transport.status().peers.is_empty());
    // The address of another member leads to the own one.
    let b = MemberInfo { id: id(2), ..a.info.clone() };
    a.transport.set_members([&b]);
    eventually("a refusal", || a.transport.status().refused.contains_key(&Answer::OtherMember))
        .await;
    let is_self = |peer: &peer::PeerStatus| peer.info.id == a.info.id;
    assert!(!a.transport.status().peers.iter().any(is_self));
}

#[tokio::test]
async fn streams_are_opened_again_after_a_restart() {
    let settings = Settings::default();
    let (mut a, mut b) = pair(&settings).await;
    a.reach(&mut b).await;
    let url = b.info.peer_urls[0].clone();
    for _ in 0..3 {
        b.transport.stop().await;
        drop(b);
        let unreachable = |event| matches!(event, Event::Unreachable(_)).then_some(());
        a.wait("notice", unreachable).await;
        a.append(id(2), 1, 10);
        b = Node::start(2, "b", &Settings { url: url.clone(), ..settings.clone() }).await;
        b.transport.set_members([&a.info]);
        a.reach(&mut b).await;
        b.reach(&mut a).await;
        eventually("the log", || a.stream(id(2), Class::Log).unwrap().is_connected).await;
        a.append(id(2), 2, 10);
        while b.wait_for(Class::Log).await.0 != 2 {}
    }
}

#[tokio::test]
async fn members_that_move_are_found_at_the_new_url() {
    let settings = Settings::default();
    let (mut a, mut b) = pair(&settings).await;
    a.reach(&mut b).await;
    b.transport.stop().await;
    let mut moved = Node::start(2, "b", &settings).await;
    a.transport.set_members([&moved.info]);
    a.reach(&mut moved).await;
    // A URL that does not work does not matter if another one does.
    let mut peer_urls = vec!["http://127.0.0.1:1".to_owned(), "http://192.0.2.1:1".to_owned()];
    peer_urls.extend(moved.info.peer_urls.clone());
    let mut other = Node::start(4, "c", &settings).await;
    other.transport.set_members([&MemberInfo { peer_urls, ..moved.info.clone() }]);
    other.reach(&mut moved).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_receiver_bounds_memory_and_delays_no_heartbeat() {
    let (mut a, mut b) = pair(&Settings::default()).await;
    a.reach(&mut b).await;
    eventually("the log", || a.stream(id(2), Class::Log).unwrap().is_connected).await;
    let log = |node: &Node, of| node.stream(of, Class::Log).unwrap();
    a.transport.events();
    // The receiver takes nothing. The sender stops before its memory is full.
    let mut sent = 0;
    while log(&a, id(2)).dropped_messages == 0 {
        sent += 1;
        a.append(id(2), sent, 1 << 20);
        assert!(sent < 1000, "nothing bounds the queue: {:?}", log(&a, id(2)));
        tokio::task::yield_now().await;
    }
    let unreachable = |event| matches!(event, Event::Unreachable(_)).then_some(());
    a.wait("notice", unreachable).await;
    assert!(log(&a, id(2)).queued_bytes <= 65 << 20);
    assert!(log(&b, id(1)).received_bytes <= 9 << 20, "{:?}", log(&b, id(1)));
    // Heartbeats arrive meanwhile, and the stream stays open: the receiver is alive.
    let received = |node: &Node| node.stream(id(1), Class::Control).unwrap().received_messages;
    let before = received(&b);
    a.heartbeat(id(2), 1);
    eventually("a heartbeat", || received(&b) > before).await;
    assert_eq!(log(&a, id(2)).connects, 1);
    // All but the dropped one arrive when the receiver continues.
    for number in 1..sent {
        assert_eq!(b.wait_for(Class::Log).await.0, number);
    }
    eventually("an empty queue", || log(&a, id(2)).queued_messages == 0).await;
}

/// One member cannot reach the other one yet. It must not be asked for anything: its answer would be lost.
#[tokio::test]
async fn nothing_is_asked_before_the_answer_has_a_stream() {
    let settings = Settings::default();
    let mut a = Node::start(1, "a", &settings).await;
    let mut b = Node::start(2, "b", &settings).await;
    let peer_urls = vec!["http://127.0.0.1:1".to_owned()];
    a.transport.set_members([&a.info, &MemberInfo { peer_urls, ..b.info.clone() }]);
    b.transport.set_members([&a.info, &b.info]);
    let is_connected = |node: &Node, to| node.stream(to, Class::Forward).unwrap().is_connected;
    eventually("a stream in one direction", || is_connected(&b, id(1))).await;
    let said = |text: &'static str| {
        move |event| match event {
            Event::Forwarded { body, .. } => (body == text).then_some(()),
            _ => None,
        }
    };
    assert!(!b.transport.ask(id(1), Bytes::from_static(b"too early")));
    assert!(b.transport.forward(id(1), Bytes::from_static(b"needs no answer")));
    b.transport.flush();
    a.wait("what needs no answer", said("needs no answer")).await;
    a.transport.set_members([&a.info, &b.info]);
    eventually("the way back", || b.transport.ask(id(1), Bytes::from_static(b"question"))).await;
    b.transport.flush();
    a.wait("the question", said("question")).await;
    assert!(a.transport.forward(id(2), Bytes::from_static(b"answer")));
    a.transport.flush();
    b.wait("the answer", said("answer")).await;
    // Whoever has asked is told when the way back ends.
    b.transport.events();
    a.transport.stop().await;
    let lost = |event| matches!(event, Event::ForwardLost(_)).then_some(());
    b.wait("the loss", lost).await;
    eventually("the end of the way back", || !b.transport.ask(id(1), Bytes::new())).await;
}

#[tokio::test]
async fn messages_to_unknown_members_are_dropped() {
    let mut a = Node::start(1, "a", &Settings::default()).await;
    a.heartbeat(id(2), 1);
    assert!(a.transport.events().is_empty());
    a.append(id(2), 1, 10);
    let choose = |event| match event {
        Event::Unreachable(id) => Some(id),
        _ => None,
    };
    assert_eq!(a.wait("notice", choose).await, id(2));
}

/// A member that was removed before it got the state learns that another one was added at its address.
#[tokio::test]
async fn a_member_without_state_learns_that_another_one_is_expected() {
    let settings = Settings::default();
    let a = Node::start(1, "a", &settings).await;
    let mut b = Node::start(2, "b", &settings).await;
    a.transport.set_members([&b.info]);
    eventually("a stream", || b.transport.is_reached()).await;
    a.transport.set_members([&MemberInfo { id: id(3), ..b.info.clone() }]);
    let choose = |event| match event {
        Event::Expected(id) => Some(id),
        _ => None,
    };
    assert_eq!(b.wait("notice", choose).await, id(3));
    eventually("the end of the streams", || !b.transport.is_reached()).await;
    // One that has state ignores it.
    b.transport.set_state();
    b.transport.events();
    let refused = || b.transport.status().refused[&Answer::OtherMember];
    let before = refused();
    eventually("other attempts", || refused() > before + 3).await;
    assert!(!b.transport.events().iter().any(|event| matches!(event, Event::Expected(_))));
}

#[tokio::test]
async fn a_probe_says_who_is_there() {
    let (a, b) = pair(&Settings::default()).await;
    let identity = a.transport.probe(&b.url()).await.unwrap();
    assert_eq!((identity.cluster, identity.member), (node::CLUSTER, b.info.clone()));
    assert!(identity.is_blank && !identity.is_waiting);
    b.transport.set_waiting();
    assert!(a.transport.probe(&b.url()).await.unwrap().is_waiting);
    b.transport.set_id(b.info.id);
    assert!(!a.transport.probe(&b.url()).await.unwrap().is_waiting);
    b.transport.set_state();
    assert!(!a.transport.probe(&b.url()).await.unwrap().is_blank);
    b.transport.stop().await;
    assert!(a.transport.probe(&b.url()).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_never_finds_state_of_a_cluster_that_is_not_formed() {
    let (a, b) = pair(&Settings::default()).await;
    let (url, transport) = (b.url(), Arc::new(b.transport));
    let (formed, stop) = (ClusterId(77), Arc::new(AtomicBool::new(false)));
    let (changed, stopped) = (transport.clone(), stop.clone());
    let changes = std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            changed.set_cluster(formed, false);
            changed.set_cluster(node::CLUSTER, true);
        }
    });
    let mut identities = Vec::new();
    for _ in 0..500 {
        identities.push(a.transport.probe(&url).await);
    }
    stop.store(true, Ordering::Relaxed);
    changes.join().unwrap();
    for identity in identities {
        let identity = identity.unwrap();
        assert_eq!(identity.is_blank, identity.cluster != formed);
    }
}

#[tokio::test]
#[should_panic(expected = "a snapshot needs its content")]
async fn a_snapshot_is_not_an_ordinary_message() {
    let a = Node::start(1, "a", &Settings::default()).await;
    a.transport.send(a.message(id(2), Body::Snapshot(Default::default())));
}
