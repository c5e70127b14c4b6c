//! Tests of nodes that exist when the simulation begins.

use super::*;

/// A Node with the status that its node reports.
fn reported_node(name: &str, number: u32) -> api::Node {
    let mut node = api_node(name, number);
    let patch = node_status::complete(name, true, &settings(1), Moment::default());
    let status = node.status.get_or_insert_default();
    *status = node_status::first(name, &settings(1), Moment::default());
    let conditions = patch["status"]["conditions"].as_array().unwrap();
    let text = |value: &Value, key: &str| value[key].as_str().unwrap().to_owned();
    for (condition, reported) in status.conditions.iter_mut().zip(conditions) {
        condition.r#type = text(reported, "type");
        condition.status = text(reported, "status");
        condition.reason = text(reported, "reason");
        condition.message = text(reported, "message");
    }
    node
}

fn existing_lease(name: &str, number: u32) -> Existing {
    let uid = uid(number).parse().unwrap();
    let request = requests::create_lease(name, uid, 40, Moment::default());
    let Body::Protobuf(lease) = request.body else { panic!() };
    Existing::Lease((*lease).into())
}

fn existing_csi_node(name: &str) -> Existing {
    Existing::CsiNode(Box::new(ObjectMeta { name: name.into(), ..ObjectMeta::default() }))
}

/// A world with 20 nodes that exist, with their objects.
fn existing_world() -> World {
    let mut world = World::new(settings(20));
    let mut existing = Vec::new();
    for number in 0..20 {
        let name = format!("node-{number}");
        existing.extend([existing_lease(&name, number), existing_csi_node(&name)]);
        world.node_changed(NodeChange::Set(Box::new(reported_node(&name, number))));
    }
    world.existing = Some(existing);
    world
}

#[test]
fn nodes_whose_objects_exist_only_renew_their_leases() {
    let mut world = existing_world();
    world.node_changed(NodeChange::Synced);
    assert!(world.simulation.is_ready() && world.calls().is_empty());
    world.run(10 * SECOND);
    let ticks: Vec<Ticks> = world.log.iter().map(|it| it.0).collect();
    let renewals = world.log.iter().filter(|it| it.2 == Call::RenewLease).count();
    assert!(renewals >= 20, "{renewals} of 20 nodes renewed their Leases");
    assert!(ticks[0] < 3 * SECOND && ticks[19] > 7 * SECOND, "not spread: {ticks:?}");
    let others = |world: &World| world.log.iter().filter(|it| it.2 != Call::RenewLease).count();
    assert!(others(&world) < 5, "{} reports in 10 s", others(&world));
    world.run(290 * SECOND);
    let reports: Vec<&Request> =
        world.log.iter().filter(|it| it.2 == Call::PatchNode).map(|it| &it.3).collect();
    assert_eq!((reports.len(), others(&world)), (20, 20), "each node reports within 5 minutes");
    let heartbeat = requests::report_heartbeat("node-0", Moment::default());
    let length = |request: &Request| match &request.body {
        Body::StrategicMergePatch(body) => body.len(),
        _ => 0,
    };
    assert!(reports.into_iter().all(|it| length(it) == length(&heartbeat)));
}

#[test]
fn what_is_missing_of_a_node_that_exists_is_written() {
    let mut world = existing_world();
    let existing = world.existing.as_mut().unwrap();
    // The Lease of node-3 has another holder, node-5 has no CSINode, and node-7 another status.
    let taken = existing_lease("node-4", 3);
    let Existing::Lease(lease) = taken else { panic!() };
    let mut lease: api::Lease = api::decode(&lease).unwrap();
    lease.metadata.as_mut().unwrap().name = "node-3".into();
    existing[6] = Existing::Lease(api::encode("coordination.k8s.io/v1", "Lease", &lease).into());
    existing.remove(11);
    let mut node = reported_node("node-7", 7);
    node.status.as_mut().unwrap().node_info.as_mut().unwrap().kubelet_version = "v1.0.0".into();
    let start = ["DeleteSlices", "GetLease", "CreateLease", "PatchNode"];
    world.names_of_calls_are_those_of(3, &start, |world| {
        world.simulation.node_changed(NodeChange::Deleted(Box::new(api_node("node-7", 7))));
        world.node_changed(NodeChange::Set(Box::new(node)));
        world.node_changed(NodeChange::Synced);
    });
    world.names_of_calls_are_those_of(
        5,
        &["DeleteSlices", "RenewLease", "GetCsiNode", "CreateCsiNode", "PatchNode"],
        |_| {},
    );
    world.names_of_calls_are_those_of(7, &["DeleteSlices", "RenewLease", "PatchNode"], |_| {});
    assert!(world.simulation.is_ready());
}

#[test]
fn no_node_starts_before_the_existing_objects_are_read() {
    let mut world = existing_world();
    world.existing = None;
    world.node_changed(NodeChange::Synced);
    world.run(20 * SECOND);
    assert!(world.calls().is_empty() && !world.simulation.is_ready());
    world.with(|simulation| simulation.existing_changed(Existing::Complete));
    assert!(world.calls().is_empty() && !world.simulation.is_ready());
    world.with(|simulation| simulation.existing_changed(Existing::Complete));
    // A node whose Lease was not shown reads it.
    world.names_of_calls_are_those_of(0, &START_OF_EXISTING, |_| {});
    assert!(world.simulation.is_ready());
}

#[test]
fn a_node_that_was_stopped_reads_its_objects_again() {
    let mut world = existing_world();
    world.node_changed(NodeChange::Synced);
    let all = Selection::default();
    world.inject(all.clone(), Fault::Stop);
    world.inject(all, Fault::Start);
    world.names_of_calls_are_those_of(0, &START_OF_EXISTING, |_| {});
}
