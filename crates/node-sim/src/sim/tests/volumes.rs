//! Tests of what pods refer to: tokens, ConfigMaps and Secrets.

use super::*;

/// A pod with the volume that each pod has: a token and a ConfigMap.
fn pod_with_token(name: &str, number: u32) -> api::Pod {
    let token = api::TokenProjection { audience: String::new(), expiration_seconds: Some(3607) };
    let name_of_ca = Some(api::LocalReference { name: "kube-root-ca.crt".into() });
    let sources = vec![
        api::Projection { service_account_token: Some(token), ..api::Projection::default() },
        api::Projection {
            config_map: Some(api::Referrer { reference: name_of_ca }),
            ..api::Projection::default()
        },
    ];
    let projected = Some(api::Projected { sources });
    let source = api::VolumeSource { projected, ..api::VolumeSource::default() };
    let mut pod = pod(name, number);
    let spec = pod.spec.as_mut().unwrap();
    spec.service_account_name = "robot".into();
    spec.volumes = vec![api::Volume { source: Some(source) }];
    pod
}

/// A pod whose container has the keys of a Secret in its environment.
fn pod_with_secret(name: &str, number: u32) -> api::Pod {
    let reference = Some(api::LocalReference { name: "key".into() });
    let secret = Some(api::Referrer { reference });
    let mut pod = pod(name, number);
    let container = &mut pod.spec.as_mut().unwrap().containers[0];
    container.env_from = vec![api::EnvFromSource { config_map_ref: None, secret_ref: secret }];
    pod
}

#[test]
fn a_pod_starts_with_its_token_and_requests_another_one_after_80_percent_of_its_life() {
    let mut world = World::running(settings(1));
    world.refuse = |call| matches!(call, Call::CreateToken(..)).then_some(403);
    world.pod_changed(pod_with_token("a", 1));
    world.run(SECOND / 4);
    let (_, _, call, request) = world.log.remove(0);
    assert!(matches!(call, Call::CreateToken(_, 0)), "{call:?} comes first");
    assert_eq!(request.path, "/api/v1/namespaces/default/serviceaccounts/robot/token");
    let Body::Protobuf(body) = request.body else { panic!() };
    let spec = api::decode::<api::TokenRequest>(&body).unwrap().spec.unwrap();
    let bound = spec.bound_object_ref.unwrap();
    assert_eq!((spec.audiences.len(), spec.expiration_seconds), (0, Some(3607)));
    assert_eq!((bound.name, bound.uid), ("a".to_owned(), uid(1)));
    assert_eq!(world.phase_of("a"), "Pending");
    world.run(3 * SECOND);
    let tokens = |world: &World| -> Vec<Ticks> {
        let tokens = world.log.iter().filter(|it| matches!(it.2, Call::CreateToken(..)));
        tokens.map(|it| it.0).collect()
    };
    assert_eq!(tokens(&world).len(), 2, "after 0.5 s and 1.5 s");
    assert_eq!(world.phase_of("a"), "Pending", "the pod has no token");
    world.refuse = |_| None;
    world.run(2 * SECOND);
    assert_eq!(world.phase_of("a"), "Running");
    let held = *tokens(&world).last().unwrap();
    world.log.clear();
    world.run(3000 * SECOND);
    let renewed = tokens(&world);
    let after = (renewed[0] - held) / SECOND;
    assert!(renewed.len() == 1 && (2875..=2962).contains(&after), "{renewed:?} after {held}");
    world.pod_changed(deleted(pod_with_token("a", 1), 0));
    world.log.clear();
    world.run(4000 * SECOND);
    assert!(tokens(&world).is_empty());
}

#[test]
fn a_pod_that_runs_requests_its_token_within_a_turn_after_a_restart() {
    let mut world = World::running(settings(1));
    world.pod_changed(shown(pod_with_token("a", 1), "Running", true));
    assert!(world.calls().is_empty());
    world.run(75 * SECOND);
    let calls = world.calls();
    assert_eq!(calls.iter().filter(|it| *it == "CreateToken").count(), 1, "{calls:?}");
}

#[test]
fn a_node_with_a_connection_watches_the_objects_of_its_pods() {
    let mut world = World::running(Settings { wire: WireNodes::All, ..settings(1) });
    let set = |world: &mut World, pod: api::Pod| {
        world.with(|simulation| simulation.pod_changed(Some(0), PodChange::Set(Box::new(pod))));
    };
    let names =
        |world: &World| -> Vec<String> { world.watched.iter().map(|it| it.2.clone()).collect() };
    let (config_map, secret) = ("ConfigMap default/kube-root-ca.crt", "Secret default/key");
    set(&mut world, pod_with_token("a", 1));
    set(&mut world, pod_with_token("b", 2));
    assert_eq!(names(&world), [config_map], "one for both pods");
    set(&mut world, pod_with_secret("c", 3));
    assert_eq!(names(&world), [config_map, secret]);
    world.run(7 * 60 * SECOND);
    assert_eq!(names(&world), [config_map], "nobody has read the Secret for 5 minutes");
    set(&mut world, pod_with_secret("d", 4));
    assert_eq!(names(&world), [config_map, secret]);

    // A node that is stopped has no watches, and gets them back.
    let all = Selection::default();
    world.inject(all.clone(), Fault::Stop);
    assert_eq!(world.connections.pop(), Some((0, false)));
    world.watched.clear();
    world.inject(all, Fault::Start);
    assert_eq!(names(&world), [config_map, secret]);

    let delete = |world: &mut World, pod: api::Pod| {
        world.with(|simulation| simulation.pod_changed(Some(0), PodChange::Deleted(Box::new(pod))));
    };
    let id = world.watched[1].1;
    world.with(|simulation| simulation.object_is_immutable(0, id));
    assert_eq!(names(&world), [config_map], "an object that does not change is not watched");
    delete(&mut world, pod("a", 1));
    assert_eq!(names(&world), [config_map], "the other pod refers to it");
    delete(&mut world, pod("b", 2));
    assert!(names(&world).is_empty());
}

#[test]
fn a_pod_without_a_connection_of_its_node_watches_nothing() {
    let mut world = World::running(settings(1));
    world.pod_changed(pod_with_token("a", 1));
    world.run(SECOND);
    assert!(world.watched.is_empty());
}
