//! Tests of the simulation with an API server in memory.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use node_lease::{Timestamp, with_renew_time};
use serde_json::Value;

use crate::api::{self, Container, ObjectMeta, OwnerReference, Time};
use crate::client::{Answer, Body, Failure, Outcome, Request};
use crate::metrics::Metrics;
use crate::rules::Rules;
use crate::time::{Moment, Ticks};

use super::pods::PodChange;
use super::ticket::Call;
use super::*;

mod existing;
mod statuses;
mod volumes;

/// The second in which the tests begin.
const START: u64 = 1_700_000_000;
const SECOND: Ticks = 100;

fn uid(number: u32) -> String {
    // The UID 0 is that of no object.
    format!("00000000-0000-0000-0000-{:012x}", number + 1)
}

fn settings(nodes: u32) -> Settings {
    Settings {
        nodes,
        names: "node-%d".parse().unwrap(),
        manage: Some("simulated=yes".parse().unwrap()),
        shard: Shard::default(),
        wire: WireNodes::None,
        lease_duration_seconds: 40,
        lease_interval: Duration::from_secs(10),
        status_frequency: Duration::from_secs(300),
        start_concurrency: 10,
        capacity: Capacity { cpu: "32".into(), memory: "256Gi".into(), pods: 110 },
        zones: 2,
        node_ip: "127.0.0.1".parse().unwrap(),
        pod_network: "10.64.0.0/10".parse().unwrap(),
        pod_events: false,
        node_events: false,
        rules: Rules::new(Duration::ZERO, Duration::from_secs(1)),
    }
}

/// A simulation, and an API server that answers at once.
struct World {
    simulation: Simulation,
    tick: Ticks,
    /// All requests, with the tick and the node.
    log: Vec<(Ticks, u32, Call, Request)>,
    leases: HashMap<u32, Vec<u8>>,
    /// The UIDs of pods by path.
    pods: HashMap<String, String>,
    /// The pods that a list has.
    listed: Vec<api::Pod>,
    /// The last status of pods by path.
    statuses: HashMap<String, Value>,
    /// The outcome of a call in place of that of the server.
    refuse: fn(Call) -> Option<u16>,
    /// Whether a call is kept without an answer.
    delay: fn(Call) -> bool,
    delayed: Option<Ticket>,
    /// Connections of nodes that were opened and closed.
    connections: Vec<(u32, bool)>,
    /// The Leases and CSINodes that exist when the nodes are known; `None` if they are not read.
    existing: Option<Vec<Existing>>,
    /// The open watches of ConfigMaps and Secrets: the node, the number and the object.
    watched: Vec<(u32, u32, String)>,
}

impl World {
    fn new(settings: Settings) -> World {
        let metrics = Arc::new(Metrics::new().unwrap());
        let mut world = World {
            simulation: Simulation::new(settings, metrics, 1),
            tick: 0,
            log: Vec::new(),
            leases: HashMap::new(),
            pods: HashMap::new(),
            listed: Vec::new(),
            statuses: HashMap::new(),
            refuse: |_| None,
            delay: |_| false,
            delayed: None,
            connections: Vec::new(),
            existing: Some(Vec::new()),
            watched: Vec::new(),
        };
        world.node_changed(NodeChange::Began);
        world
    }

    /// A world whose nodes run.
    fn running(settings: Settings) -> World {
        let mut world = World::new(settings);
        world.node_changed(NodeChange::Synced);
        assert!(world.simulation.is_ready());
        world.log.clear();
        world
    }

    fn now(&self) -> Moment {
        let seconds = START + u64::from(self.tick / SECOND);
        Moment { tick: self.tick, seconds, micros: self.tick % SECOND * 10_000 }
    }

    fn with(&mut self, input: impl FnOnce(&mut Simulation)) {
        let now = self.now();
        self.simulation.set_now(now);
        input(&mut self.simulation);
        loop {
            let outputs = self.simulation.take_output();
            if outputs.is_empty() {
                return;
            }
            outputs.into_iter().for_each(|output| self.handle(output));
        }
    }

    fn node_changed(&mut self, change: NodeChange) {
        self.with(|simulation| simulation.node_changed(change));
    }

    fn pod_changed(&mut self, pod: api::Pod) {
        let metadata = pod.metadata.clone().unwrap();
        let path = format!("/api/v1/namespaces/{}/pods/{}", metadata.namespace, metadata.name);
        self.pods.insert(path, metadata.uid);
        self.with(|simulation| simulation.pod_changed(None, PodChange::Set(Box::new(pod))));
    }

    fn inject(&mut self, selection: Selection, fault: Fault) -> usize {
        let mut nodes = 0;
        self.with(|simulation| nodes = simulation.inject(&selection, fault));
        nodes
    }

    fn run(&mut self, ticks: Ticks) {
        for _ in 0..ticks {
            self.tick += 1;
            self.with(Simulation::advance);
        }
    }

    fn handle(&mut self, output: Output) {
        match output {
            Output::Open(node) => self.connections.push((node, true)),
            Output::Close(node) => self.connections.push((node, false)),
            Output::Watch(node, object) => {
                let text = format!("{:?} {}/{}", object.kind, object.namespace, object.name);
                self.watched.push((node, object.id, text));
            }
            Output::Unwatch(node, id) => {
                let known = self.watched.len();
                self.watched.retain(|it| (it.0, it.1) != (node, id));
                assert_eq!(self.watched.len(), known - 1, "the watch {id} is not open");
            }
            Output::ReadExisting => {
                let Some(existing) = self.existing.take() else { return };
                let all = existing.into_iter().chain([Existing::Complete, Existing::Complete]);
                all.for_each(|it| self.simulation.existing_changed(it));
            }
            Output::Request(ticket, request) => {
                self.log.push((self.tick, ticket.node, ticket.call, request.clone()));
                if (self.delay)(ticket.call) {
                    self.delayed = Some(ticket);
                    return;
                }
                let (status, body) = match (self.refuse)(ticket.call) {
                    Some(status) => (status, Vec::new()),
                    None => self.answer(ticket, request),
                };
                let elapsed = Duration::from_millis(1);
                let outcome = match status {
                    0 => Outcome::Failed(Failure::Timeout),
                    _ => Outcome::Answered(Answer {
                        status,
                        retry_after: None,
                        body: &body,
                        elapsed,
                    }),
                };
                self.simulation.answered(ticket, outcome);
            }
        }
    }

    fn answer(&mut self, ticket: Ticket, request: Request) -> (u16, Vec<u8>) {
        let path = request.path.split('?').next().unwrap().to_owned();
        let body = match request.body {
            Body::None => Vec::new(),
            Body::Protobuf(body) | Body::StrategicMergePatch(body) => body.to_vec(),
        };
        match ticket.call {
            Call::CreateNode => (201, encoded_node(&format!("node-{}", ticket.node), ticket.node)),
            Call::DeleteSlices => (200, Vec::new()),
            Call::CreateToken(..) => (201, self.token(&body)),
            Call::GetLease => match self.leases.get(&ticket.node) {
                Some(lease) => (200, lease.clone()),
                None => (404, Vec::new()),
            },
            Call::CreateLease | Call::RenewLease => {
                self.leases.insert(ticket.node, body.clone());
                (if ticket.call == Call::CreateLease { 201 } else { 200 }, body)
            }
            Call::GetCsiNode => (404, Vec::new()),
            Call::CreateCsiNode | Call::CreateEvent => (201, Vec::new()),
            Call::GetNode | Call::PatchNode => (200, Vec::new()),
            Call::GetPod(_) => match self.pods.get(&path) {
                Some(uid) => (200, encoded_pod(uid)),
                None => (404, Vec::new()),
            },
            Call::ListPods => {
                let list = api::PodList { items: self.listed.clone() };
                (200, api::encode("v1", "PodList", &list))
            }
            Call::PatchPod(_) => {
                let status = serde_json::from_slice::<Value>(&body).unwrap();
                self.statuses.insert(path.trim_end_matches("/status").to_owned(), status);
                (200, Vec::new())
            }
            Call::DeletePod(_) => {
                self.pods.remove(&path);
                (200, Vec::new())
            }
        }
    }

    /// The answer to the request of a token.
    fn token(&self, body: &[u8]) -> Vec<u8> {
        let mut token: api::TokenRequest = api::decode(body).unwrap();
        let spec = token.spec.get_or_insert_default();
        let seconds = *spec.expiration_seconds.get_or_insert(3600);
        let end = Time { seconds: self.now().seconds as i64 + seconds, nanos: 0 };
        token.status = Some(api::TokenRequestStatus { expiration_timestamp: Some(end) });
        api::encode("authentication.k8s.io/v1", "TokenRequest", &token)
    }

    /// The names of all calls since the last time, without pods' slots.
    fn calls(&mut self) -> Vec<String> {
        let name = |call: Call| format!("{call:?}").split('(').next().unwrap().to_owned();
        self.log.drain(..).map(|(_, _, call, _)| name(call)).collect()
    }

    /// Checks which requests a node has sent, after an input.
    fn names_of_calls_are_those_of(
        &mut self,
        node: u32,
        names: &[&str],
        input: impl FnOnce(&mut World),
    ) {
        input(self);
        let calls = self.log.iter().filter(|it| it.1 == node).map(|it| format!("{:?}", it.2));
        assert_eq!(calls.collect::<Vec<_>>(), names, "requests of node-{node}");
    }

    fn status_of(&self, pod: &str) -> &Value {
        &self.statuses[&format!("/api/v1/namespaces/default/pods/{pod}")]["status"]
    }

    fn phase_of(&self, pod: &str) -> &str {
        self.status_of(pod)["phase"].as_str().unwrap()
    }

    fn condition_of(&self, pod: &str, kind: &str) -> &str {
        let conditions = self.status_of(pod)["conditions"].as_array().unwrap();
        conditions.iter().find(|it| it["type"] == kind).unwrap()["status"].as_str().unwrap()
    }
}

fn api_node(name: &str, number: u32) -> api::Node {
    let metadata = ObjectMeta {
        name: name.to_owned(),
        uid: uid(number),
        labels: [("topology.kubernetes.io/zone".to_owned(), format!("zone-{}", number % 2))].into(),
        annotations: [("simulated".to_owned(), "yes".to_owned())].into(),
        ..ObjectMeta::default()
    };
    let ready = api::NodeCondition {
        r#type: "Ready".into(),
        status: "True".into(),
        ..api::NodeCondition::default()
    };
    let status = api::NodeStatus { conditions: vec![ready], ..api::NodeStatus::default() };
    api::Node { metadata: Some(metadata), spec: None, status: Some(status) }
}

fn encoded_node(name: &str, number: u32) -> Vec<u8> {
    api::encode("v1", "Node", &api_node(name, number))
}

fn encoded_pod(uid: &str) -> Vec<u8> {
    let metadata = ObjectMeta { uid: uid.to_owned(), ..ObjectMeta::default() };
    api::encode("v1", "Pod", &api::Pod { metadata: Some(metadata), spec: None, status: None })
}

fn container(name: &str) -> Container {
    Container { name: name.into(), image: "image".into(), ..Container::default() }
}

fn pod(name: &str, number: u32) -> api::Pod {
    let metadata = ObjectMeta {
        name: name.into(),
        namespace: "default".into(),
        uid: uid(number),
        generation: 1,
        ..ObjectMeta::default()
    };
    let spec = api::PodSpec {
        containers: vec![container("main")],
        restart_policy: "Always".into(),
        node_name: "node-0".into(),
        ..api::PodSpec::default()
    };
    api::Pod { metadata: Some(metadata), spec: Some(spec), status: None }
}

/// A pod with the status that a watch shows.
fn shown(mut pod: api::Pod, phase: &str, is_ready: bool) -> api::Pod {
    let status = if is_ready { "True" } else { "False" };
    let ready = api::PodCondition { r#type: "Ready".into(), status: status.into() };
    let (phase, conditions) = (phase.into(), vec![ready]);
    pod.status = Some(api::PodStatus { phase, conditions, ..api::PodStatus::default() });
    pod
}

fn deleted(mut pod: api::Pod, grace: i64) -> api::Pod {
    let metadata = pod.metadata.as_mut().unwrap();
    metadata.deletion_timestamp = Some(Time { seconds: 1, nanos: 0 });
    metadata.deletion_grace_period_seconds = Some(grace);
    pod
}

const REPORT: [&str; 2] = ["GetPod", "PatchPod"];
/// The start of a node whose Node exists, and nothing else.
const START_OF_EXISTING: [&str; 6] =
    ["DeleteSlices", "GetLease", "CreateLease", "GetCsiNode", "CreateCsiNode", "PatchNode"];

#[test]
fn a_shard_has_only_its_nodes() {
    let mut world = World::new(Settings { shard: "1/3".parse().unwrap(), ..settings(7) });
    for number in 0..3 {
        let node = api_node(&format!("node-{number}"), number);
        world.node_changed(NodeChange::Set(Box::new(node)));
    }
    world.node_changed(NodeChange::Synced);
    let created: Vec<&str> = world
        .log
        .iter()
        .filter(|(_, _, call, _)| *call == Call::CreateNode)
        .map(|(_, id, ..)| &*world.simulation.node(*id).name)
        .collect();
    assert_eq!(created, ["node-4"], "node-1 exists, and the others belong to other shards");
    assert_eq!(world.simulation.names.len(), 2);
}

#[test]
fn a_node_starts_in_the_order_of_a_kubelet() {
    let mut world = World::new(settings(1));
    world.node_changed(NodeChange::Synced);
    let Body::Protobuf(lease) = world.log[3].3.body.clone() else { panic!() };
    assert_eq!(
        world.log[1].3.path,
        "/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName%3Dnode-0"
    );
    assert_eq!(world.calls(), [&["CreateNode"][..], &START_OF_EXISTING].concat());
    let lease: api::Lease = api::decode(&lease).unwrap();
    assert_eq!(lease.metadata.unwrap().owner_references[0].uid, uid(0));
    assert_eq!(lease.spec.unwrap().holder_identity.as_deref(), Some("node-0"));
    assert!(world.simulation.is_ready());
}

#[test]
fn a_lease_is_renewed_with_the_bytes_of_the_last_answer() {
    let mut world = World::running(settings(1));
    let mut last = 0;
    for round in 0..5 {
        let before = world.leases[&0].clone();
        world.run(1040);
        let (tick, _, call, request) = world.log.remove(0);
        assert!(world.log.is_empty(), "more than a renewal in round {round}");
        assert_eq!(call, Call::RenewLease);
        assert!((1000..=1040).contains(&(tick - last)), "{}", tick - last);
        last = tick;
        let seconds = START + u64::from(tick / SECOND);
        let time = Timestamp { seconds, nanos: tick % SECOND * 10_000_000 };
        let Body::Protobuf(body) = request.body else { panic!() };
        assert_eq!(with_renew_time(&before, time).unwrap(), body);
        assert_eq!(
            request.path,
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-0?timeout=10s"
        );
    }
}

#[test]
fn the_status_is_reported_every_five_minutes() {
    let mut world = World::running(settings(1));
    world.run(3600 * SECOND);
    let reports: Vec<Ticks> = world
        .log
        .iter()
        .filter(|(_, _, call, _)| *call == Call::PatchNode)
        .map(|(tick, ..)| *tick)
        .collect();
    assert!((150 * SECOND..=450 * SECOND).contains(&reports[0]), "a random first delay");
    assert!(reports.windows(2).all(|pair| pair[1] - pair[0] == 300 * SECOND), "{reports:?}");
}

#[test]
fn a_conflict_reads_the_lease_first() {
    let mut world = World::running(settings(1));
    world.refuse = |call| (call == Call::RenewLease).then_some(409);
    world.run(1041);
    // Five tries with a read after each one, twice, and a read in between.
    let tries = ["RenewLease", "GetLease"].repeat(5);
    assert_eq!(world.calls(), [&tries[..], &["GetLease"], &tries].concat());
    world.refuse = |_| None;
    world.run(1041);
    assert_eq!(world.calls(), ["RenewLease"]);
}

#[test]
fn failures_are_repeated_as_the_lease_controller_does() {
    let mut world = World::running(settings(1));
    world.refuse = |call| (call == Call::RenewLease).then_some(0);
    world.run(1041);
    let five = ["RenewLease"; 5];
    assert_eq!(world.calls(), [&five[..], &["GetLease"], &five].concat());
    world.leases.clear();
    world.refuse = |call| match call {
        Call::RenewLease => Some(404),
        Call::GetLease => Some(503),
        _ => None,
    };
    world.run(1041);
    assert_eq!(world.calls()[..6], [&five[..], &["GetLease"]].concat());
    world.refuse = |_| None;
    world.run(SECOND);
    assert_eq!(world.calls(), ["GetLease", "CreateLease"]);
}

#[test]
fn a_lease_that_was_created_with_another_duration_gets_that_of_the_settings() {
    let mut world = World::new(settings(1));
    let now = Moment { seconds: START, ..Moment::default() };
    let request = requests::create_lease("node-0", api::Uid::default(), 3600, now);
    let Body::Protobuf(lease) = request.body else { panic!() };
    world.leases.insert(0, lease.to_vec());
    world.node_changed(NodeChange::Synced);
    assert_eq!(world.calls()[2..4], ["GetLease", "RenewLease"]);
    let lease: api::Lease = api::decode(&world.leases[&0]).unwrap();
    let spec = lease.spec.unwrap();
    assert_eq!(spec.lease_duration_seconds, Some(40));
    assert_eq!(spec.holder_identity.as_deref(), Some("node-0"));
}

#[test]
fn a_lease_that_cannot_be_renewed_is_read_again_with_a_back_off() {
    let too_large = api::Lease {
        metadata: Some(ObjectMeta { name: "x".repeat(70_000), ..ObjectMeta::default() }),
        spec: Some(api::LeaseSpec::default()),
    };
    let too_large = api::encode("coordination.k8s.io/v1", "Lease", &too_large);
    for lease in [b"{}".to_vec(), too_large] {
        let mut world = World::running(settings(1));
        world.leases.insert(0, lease);
        world.refuse = |call| (call == Call::RenewLease).then_some(409);
        world.run(1040 + 20 * SECOND);
        let reads = world.log.iter().filter(|(_, _, call, _)| *call == Call::GetLease).count();
        assert!((4..=9).contains(&reads), "{reads} reads in 20 s");
        assert!(world.simulation.node(0).lease.len() < 1000);
    }
}

#[test]
fn nodes_start_a_few_at_a_time() {
    let mut world = World::new(settings(25));
    world.refuse = |call| (call == Call::CreateNode).then_some(500);
    world.node_changed(NodeChange::Synced);
    assert_eq!(world.calls().len(), 10);
    world.refuse = |_| None;
    world.run(SECOND);
    assert!(world.simulation.is_ready());
    assert_eq!(world.leases.len(), 25);
}

#[test]
fn existing_nodes_are_adopted_and_deleted_ones_forgotten() {
    let mut world = World::new(settings(0));
    world.node_changed(NodeChange::Set(Box::new(api_node("other", 0))));
    let mut unmanaged = api_node("unmanaged", 9);
    unmanaged.metadata.as_mut().unwrap().annotations.clear();
    world.node_changed(NodeChange::Set(Box::new(unmanaged)));
    assert!(world.calls().is_empty(), "the nodes are not known yet");
    world.node_changed(NodeChange::Synced);
    assert_eq!(world.calls(), START_OF_EXISTING);
    world.node_changed(NodeChange::Deleted(Box::new(api_node("other", 0))));
    world.run(20 * SECOND);
    assert!(world.calls().is_empty());
    // The slot has another node now.
    world.node_changed(NodeChange::Set(Box::new(api_node("later", 1))));
    world.run(11 * SECOND);
    assert!(world.calls().contains(&"RenewLease".to_owned()));
    // A watch that begins again does not show the node.
    world.node_changed(NodeChange::Began);
    world.node_changed(NodeChange::Synced);
    world.run(20 * SECOND);
    assert!(world.calls().is_empty());
}

#[test]
fn a_node_that_is_said_to_be_not_ready_reports() {
    let mut world = World::running(settings(1));
    let mut node = api_node("node-0", 0);
    node.status.as_mut().unwrap().conditions[0].status = "Unknown".into();
    world.node_changed(NodeChange::Set(Box::new(node)));
    world.run(9 * SECOND + 99);
    let (_, _, call, request) = world.log.last().unwrap();
    assert_eq!(*call, Call::PatchNode);
    let Body::StrategicMergePatch(body) = &request.body else { panic!() };
    assert!(String::from_utf8_lossy(body).contains("kubelet is posting ready status"));
}

#[test]
fn a_node_that_is_said_to_be_not_ready_during_a_report_reports_again() {
    let mut world = World::running(settings(1));
    let mut node = api_node("node-0", 0);
    node.status.as_mut().unwrap().conditions[0].status = "Unknown".into();
    for status in [200, 500] {
        world.delay = |call| call == Call::PatchNode;
        world.run(600 * SECOND);
        let ticket = world.delayed.take().unwrap();
        world.log.clear();
        world.node_changed(NodeChange::Set(Box::new(node.clone())));
        world.delay = |_| false;
        let elapsed = Duration::from_secs(1);
        let answer = Answer { status, retry_after: None, body: &[], elapsed };
        world.with(|simulation| simulation.answered(ticket, Outcome::Answered(answer)));
        world.run(10 * SECOND);
        let is_report = |it: &&(Ticks, u32, Call, Request)| it.2 == Call::PatchNode;
        let report = world.log.iter().find(is_report).unwrap();
        let Body::StrategicMergePatch(body) = &report.3.body else { panic!() };
        let body = String::from_utf8_lossy(body);
        assert!(body.contains("kubelet is posting ready status"), "after {status}: {body}");
    }
}

#[test]
fn a_pod_runs_and_is_deleted_with_the_requests_of_a_kubelet() {
    let mut world = World::running(settings(1));
    world.pod_changed(pod("a", 7));
    assert_eq!(world.calls(), REPORT);
    assert_eq!(world.phase_of("a"), "Pending");
    let path = "/api/v1/namespaces/default/pods/a";
    assert_eq!(world.statuses[path]["metadata"]["uid"], uid(7));
    world.run(2);
    assert_eq!(world.calls(), REPORT);
    assert_eq!((world.phase_of("a"), world.condition_of("a", "Ready")), ("Running", "True"));
    assert_eq!(world.status_of("a")["podIP"], "10.64.0.1");
    world.pod_changed(deleted(pod("a", 7), 30));
    world.run(2);
    assert_eq!(world.phase_of("a"), "Succeeded");
    let Body::Protobuf(body) = world.log.last().unwrap().3.body.clone() else { panic!() };
    assert_eq!(world.calls(), ["GetPod", "PatchPod", "DeletePod"]);
    let options: api::DeleteOptions = api::decode(&body).unwrap();
    assert_eq!(options.grace_period_seconds, Some(0));
    assert_eq!(options.preconditions.unwrap().uid, Some(uid(7)));
    // Events that were on their way do not start the pod again.
    world.with(|simulation| {
        let late = PodChange::Set(Box::new(deleted(pod("a", 7), 30)));
        simulation.pod_changed(None, late);
        simulation.pod_changed(None, PodChange::Deleted(Box::new(pod("a", 7))));
    });
    world.run(5 * SECOND);
    assert!(world.calls().is_empty());
}

#[test]
fn init_containers_run_one_after_the_other() {
    let mut settings = settings(1);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "rules: [{initTime: 1s, startDelay: 100ms, readinessDelay: 2s}]")
        .unwrap();
    settings.rules.read(file.path()).unwrap();
    let mut world = World::running(settings);
    let mut with_init = pod("a", 7);
    let sidecar = Container { restart_policy: "Always".into(), ..container("sidecar") };
    with_init.spec.as_mut().unwrap().init_containers = vec![container("first"), sidecar];
    world.pod_changed(with_init);
    world.run(20);
    let state = |world: &World, number: usize| {
        let state = &world.status_of("a")["initContainerStatuses"][number]["state"];
        state.as_object().unwrap().keys().next().unwrap().clone()
    };
    assert_eq!([state(&world, 0), state(&world, 1)], ["running", "waiting"]);
    assert_eq!(world.condition_of("a", "Initialized"), "False");
    world.run(105);
    assert_eq!([state(&world, 0), state(&world, 1)], ["terminated", "running"]);
    assert_eq!(world.phase_of("a"), "Pending");
    world.run(20);
    assert_eq!((world.phase_of("a"), world.condition_of("a", "Ready")), ("Running", "False"));
    assert_eq!(world.condition_of("a", "Initialized"), "True");
    world.run(2 * SECOND);
    assert_eq!(world.condition_of("a", "Ready"), "True");
}

#[test]
fn pods_of_jobs_succeed_and_failures_start_again() {
    let mut settings = settings(1);
    let file = tempfile::NamedTempFile::new().unwrap();
    let rules = "rules: [{selector: {app: crash}, runTime: 1s, exitCode: 3}]";
    std::fs::write(file.path(), rules).unwrap();
    settings.rules.read(file.path()).unwrap();
    let mut world = World::running(settings);
    let mut of_job = pod("job", 7);
    of_job.spec.as_mut().unwrap().restart_policy = "Never".into();
    let owner =
        OwnerReference { kind: "Job".into(), controller: Some(true), ..OwnerReference::default() };
    of_job.metadata.as_mut().unwrap().owner_references = vec![owner];
    world.pod_changed(of_job);
    let mut crashing = pod("crash", 8);
    crashing.metadata.as_mut().unwrap().labels = [("app".to_owned(), "crash".to_owned())].into();
    world.pod_changed(crashing);
    world.run(SECOND + 10);
    assert_eq!(world.phase_of("job"), "Succeeded");
    let restarts = |world: &World| {
        world.status_of("crash")["containerStatuses"][0]["restartCount"].as_u64().unwrap()
    };
    assert_eq!((world.phase_of("crash"), restarts(&world)), ("Running", 1));
    world.run(SECOND);
    let status = &world.status_of("crash")["containerStatuses"][0];
    assert_eq!(status["state"]["waiting"]["reason"], "CrashLoopBackOff");
    assert_eq!(status["lastState"]["terminated"]["exitCode"], 3);
    world.run(10 * SECOND);
    assert_eq!(restarts(&world), 2);
}

#[test]
fn a_container_that_does_not_end_in_time_is_killed() {
    let mut settings = settings(1);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "rules: [{terminationDelay: 1h}]").unwrap();
    settings.rules.read(file.path()).unwrap();
    let mut world = World::running(settings);
    world.pod_changed(pod("a", 7));
    world.run(2);
    world.pod_changed(deleted(pod("a", 7), 5));
    world.run(5 * SECOND - 1);
    assert_eq!(world.phase_of("a"), "Running");
    world.run(2);
    let state = &world.status_of("a")["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((world.phase_of("a"), state["exitCode"].as_i64()), ("Failed", Some(137)));
}

#[test]
fn failed_reports_of_pods_are_repeated() {
    let mut world = World::running(settings(1));
    world.refuse = |call| matches!(call, Call::PatchPod(_)).then_some(500);
    world.pod_changed(pod("a", 7));
    world.run(2);
    assert_eq!(world.calls(), REPORT);
    world.refuse = |_| None;
    world.run(10 * SECOND + 1);
    assert_eq!(world.phase_of("a"), "Running");
}

#[test]
fn a_pod_that_its_node_may_not_read_yet_is_reported_soon() {
    let mut world = World::running(settings(1));
    world.refuse = |call| matches!(call, Call::GetPod(_)).then_some(403);
    world.pod_changed(pod("a", 7));
    world.run(SECOND - 1);
    assert_eq!(world.calls(), ["GetPod"]);
    world.refuse = |_| None;
    world.run(1);
    assert_eq!(world.phase_of("a"), "Running");
    // A pod that is not new waits for the status manager.
    world.refuse = |call| matches!(call, Call::GetPod(_)).then_some(403);
    world.run(20 * SECOND);
    world.log.clear();
    world.pod_changed(deleted(pod("a", 7), 0));
    world.run(9 * SECOND);
    let reads = world.log.iter().filter(|(_, _, call, _)| matches!(call, Call::GetPod(_)));
    assert_eq!(reads.count(), 1);
}

#[test]
fn a_node_that_stopped_does_nothing_until_it_starts() {
    let mut world = World::running(settings(4));
    world.pod_changed(pod("a", 7));
    let all = Selection::default();
    let zone = Selection { zone: Some("zone-0".into()), ..Selection::default() };
    assert_eq!(world.inject(zone.clone(), Fault::Stop), 2);
    assert_eq!(world.inject(zone, Fault::Stop), 0, "they are stopped already");
    world.log.clear();
    world.run(30 * SECOND);
    assert!(world.log.iter().all(|(_, node, ..)| node % 2 == 1));
    world.pod_changed(deleted(pod("a", 7), 0));
    world.log.clear();
    assert_eq!(world.inject(all, Fault::Start), 2, "the others have no fault");
    world.run(SECOND);
    let of_first: Vec<Call> =
        world.log.iter().filter(|(_, node, ..)| *node == 0).map(|(_, _, call, _)| *call).collect();
    assert_eq!(
        of_first[..3],
        [Call::DeleteSlices, Call::GetLease, Call::RenewLease],
        "a restart reads the Lease"
    );
    assert!(of_first.contains(&Call::PatchNode));
    assert!(matches!(of_first.last(), Some(Call::DeletePod(_))), "{of_first:?}");
}

#[test]
fn a_status_that_somebody_else_has_changed_is_reported_again() {
    let mut world = World::running(settings(1));
    world.pod_changed(pod("a", 7));
    world.run(2);
    world.log.clear();
    world.pod_changed(shown(pod("a", 7), "Running", false));
    assert!(world.calls().is_empty(), "the status manager has not had its turn");
    world.run(10 * SECOND);
    world.log.retain(|(_, _, call, _)| matches!(call, Call::GetPod(_) | Call::PatchPod(_)));
    assert_eq!(world.calls(), REPORT);
    assert_eq!(world.condition_of("a", "Ready"), "True");
    // Events of the pod's own reports, of which the first one comes late.
    world.pod_changed(shown(pod("a", 7), "Pending", false));
    world.pod_changed(shown(pod("a", 7), "Running", true));
    // A final phase stays.
    world.pod_changed(shown(pod("a", 7), "Failed", false));
    world.run(20 * SECOND);
    assert!(!world.calls().contains(&"GetPod".to_owned()));
}

#[test]
fn pods_are_ready_again_after_an_outage() {
    let mut world = World::running(settings(1));
    world.pod_changed(pod("a", 7));
    world.run(2);
    let one = Selection { count: Some(1), ..Selection::default() };
    world.inject(one.clone(), Fault::Stop);
    world.run(50 * SECOND);
    world.statuses.clear();
    world.pod_changed(shown(pod("a", 7), "Running", false));
    world.run(50 * SECOND);
    assert!(world.statuses.is_empty(), "the node does nothing");
    world.inject(one, Fault::Start);
    assert_eq!(world.condition_of("a", "Ready"), "True");
}

#[test]
fn nodes_flap_and_are_slow() {
    let mut world = World::running(settings(2));
    let one = |name: &str| Selection { names: Some(vec![name.into()]), ..Selection::default() };
    let times = (Duration::from_secs(20), Duration::from_secs(30));
    world.inject(one("node-0"), Fault::Flap { down: times.0, up: times.1 });
    world.inject(one("node-1"), Fault::Slow { delay: Duration::from_secs(5) });
    world.run(100 * SECOND);
    let ticks = |node: u32| -> Vec<Ticks> {
        let of_node =
            world.log.iter().filter(|(_, it, call, _)| *it == node && *call == Call::RenewLease);
        of_node.map(|(tick, ..)| *tick / SECOND).collect()
    };
    assert!(ticks(0).iter().all(|second| (20..50).contains(second) || (70..100).contains(second)));
    assert!(ticks(0).len() >= 4);
    // The renewal that was scheduled before is not delayed.
    assert!(
        ticks(1).windows(2).all(|pair| (14..=16).contains(&(pair[1] - pair[0]))),
        "{:?}",
        ticks(1)
    );
    world.inject(Selection::default(), Fault::Start);
    world.run(60 * SECOND);
    assert!(world.simulation.is_ready());
}

#[test]
fn a_node_that_was_slow_does_at_once_what_is_overdue() {
    let mut world = World::running(settings(1));
    let all = Selection::default();
    world.inject(all.clone(), Fault::Slow { delay: Duration::from_secs(3600) });
    world.pod_changed(pod("a", 7));
    world.run(800 * SECOND);
    assert_eq!(world.phase_of("a"), "Pending");
    world.log.clear();
    assert_eq!(world.inject(all.clone(), Fault::Start), 1);
    world.run(SECOND);
    let calls = world.calls();
    for call in ["RenewLease", "PatchNode", "PatchPod"] {
        assert!(calls.contains(&call.to_owned()), "{call} is not in {calls:?}");
    }
    assert_eq!(world.phase_of("a"), "Running");
    assert_eq!(world.inject(all, Fault::Start), 0, "no fault is left");
}

#[test]
fn selections_by_count_are_random_and_bounded() {
    let mut world = World::running(settings(10));
    let some = Selection { count: Some(3), ..Selection::default() };
    assert_eq!(world.inject(some.clone(), Fault::Stop), 3);
    assert_eq!(world.inject(Selection { count: Some(100), ..some }, Fault::Stop), 7);
    let by_label = Selection {
        selector: "kubernetes.io/hostname=node-3".parse().unwrap(),
        ..Selection::default()
    };
    assert_eq!(world.inject(by_label, Fault::Start), 1);
}

#[test]
fn wire_nodes_open_and_close_their_connections() {
    let mut settings = settings(3);
    settings.wire = WireNodes::First(2);
    let mut world = World::running(settings);
    assert_eq!(world.connections, [(0, true), (1, true)]);
    let one = Selection { names: Some(vec!["node-0".into()]), ..Selection::default() };
    world.inject(one.clone(), Fault::Stop);
    world.inject(one, Fault::Start);
    assert_eq!(world.connections[2..], [(0, false), (0, true)]);
    let of_first = world.log.iter().filter(|(_, node, ..)| *node == 0).map(|(_, _, call, _)| *call);
    assert_eq!(of_first.collect::<Vec<_>>()[0], Call::CreateNode, "a kubelet always registers");
    // The shared watch does not show pods of these nodes.
    world.log.clear();
    world.pod_changed(pod("a", 7));
    assert!(world.calls().is_empty());
    world.with(|simulation| {
        simulation.pod_changed(Some(0), PodChange::Set(Box::new(pod("a", 7))));
    });
    assert_eq!(world.calls(), REPORT);
}

#[test]
fn pods_that_were_seen_before_their_node_are_read() {
    let mut world = World::running(settings(0));
    let mut early = pod("a", 7);
    early.spec.as_mut().unwrap().node_name = "late".into();
    world.pod_changed(early.clone());
    assert!(world.calls().is_empty());
    world.listed = vec![early];
    world.node_changed(NodeChange::Set(Box::new(api_node("late", 1))));
    let list = world.log.iter().find(|(_, _, call, _)| *call == Call::ListPods).unwrap();
    assert_eq!(list.3.path, "/api/v1/pods?fieldSelector=spec.nodeName%3Dlate");
    assert!(
        world
            .calls()
            .ends_with(&["ListPods", "PatchNode", "GetPod", "PatchPod"].map(str::to_owned))
    );
    // The pods of a node that was stopped are known.
    let all = Selection::default();
    world.inject(all.clone(), Fault::Stop);
    world.inject(all, Fault::Start);
    assert!(!world.calls().contains(&"ListPods".to_owned()));
}

#[test]
fn a_node_that_is_deleted_and_created_again_keeps_its_pods() {
    let mut world = World::running(settings(1));
    world.pod_changed(pod("a", 7));
    world.run(2);
    world.node_changed(NodeChange::Deleted(Box::new(api_node("node-0", 0))));
    world.listed = vec![shown(pod("a", 7), "Running", true)];
    world.node_changed(NodeChange::Set(Box::new(api_node("node-0", 5))));
    world.log.clear();
    world.pod_changed(deleted(pod("a", 7), 0));
    world.run(2);
    assert_eq!(world.calls(), ["GetPod", "PatchPod", "DeletePod"]);
}

#[test]
fn a_pod_that_is_deleted_while_its_node_is_read_is_not_added() {
    let mut world = World::running(settings(0));
    let mut early = pod("a", 7);
    early.spec.as_mut().unwrap().node_name = "late".into();
    world.pod_changed(early.clone());
    world.listed = vec![early.clone()];
    world.refuse = |call| (call == Call::ListPods).then_some(503);
    world.node_changed(NodeChange::Set(Box::new(api_node("late", 1))));
    assert!(!world.simulation.is_ready(), "the list is repeated");
    world.with(|simulation| simulation.pod_changed(None, PodChange::Deleted(Box::new(early))));
    world.refuse = |_| None;
    world.log.clear();
    world.run(SECOND);
    let calls = world.calls();
    assert_eq!(calls[..2], ["ListPods", "PatchNode"]);
    assert!(!calls.contains(&"GetPod".to_owned()), "{calls:?}");
    assert!(world.simulation.is_ready());
}

#[test]
fn a_node_writes_events_when_it_starts() {
    let mut world = World::new(Settings { node_events: true, ..settings(1) });
    world.node_changed(NodeChange::Synced);
    let events = |world: &mut World| -> Vec<(String, String)> {
        let events = world.log.drain(..).filter(|it| it.2 == Call::CreateEvent);
        let event = |request: Request| {
            assert_eq!(request.path, "/api/v1/namespaces/default/events");
            let Body::Protobuf(body) = request.body else { panic!() };
            let event: api::Event = api::decode(&body).unwrap();
            let reference = event.involved_object.unwrap();
            assert_eq!((&*reference.kind, &*reference.name), ("Node", "node-0"));
            (event.reason, reference.uid)
        };
        events.map(|it| event(it.3)).collect()
    };
    let reasons = [
        "Starting",
        "NodeHasSufficientMemory",
        "NodeHasNoDiskPressure",
        "NodeHasSufficientPID",
        "NodeAllocatableEnforced",
    ];
    let mut expected: Vec<_> = reasons.map(|it| (it.to_owned(), String::new())).into();
    // The Node of the test server is ready when it is created.
    assert_eq!(events(&mut world), expected);
    let all = Selection::default();
    world.inject(all.clone(), Fault::Stop);
    let mut node = api_node("node-0", 0);
    node.status.as_mut().unwrap().conditions[0].status = "Unknown".into();
    world.node_changed(NodeChange::Set(Box::new(node)));
    world.delay = |call| call == Call::PatchNode;
    world.inject(all, Fault::Start);
    // The watch shows the report before its answer comes.
    world.node_changed(NodeChange::Set(Box::new(api_node("node-0", 0))));
    let ticket = world.delayed.take().unwrap();
    let answer = Answer { status: 200, retry_after: None, body: &[], elapsed: Duration::ZERO };
    world.with(|simulation| simulation.answered(ticket, Outcome::Answered(answer)));
    expected.push(("NodeReady".to_owned(), uid(0)));
    assert_eq!(events(&mut world), expected);
}
