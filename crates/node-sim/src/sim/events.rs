//! Events about pods and nodes, as kubelet writes them.

use bytes::Bytes;
use rand::RngExt as _;

use crate::api::{self, Event, EventSource, ObjectMeta, ObjectReference, Time, Uid};
use crate::client::{Body, Method, Request};

use super::pod::Pod;
use super::simulation::Simulation;
use super::ticket::Call;

const COMPONENT: &str = "kubelet";
/// Characters of the name of a pod in the name of an Event, so that that is not too long.
const MAX_NAME: usize = 230;

impl Simulation {
    /// The containers of a pod are started.
    pub(super) fn record_start(&mut self, index: u32) {
        self.record(index, |name, image| {
            vec![
                ("Pulled", format!("Container image \"{image}\" already present on machine")),
                ("Created", format!("Container created: {name}")),
                ("Started", format!("Container started: {name}")),
            ]
        });
    }

    /// The containers of a pod are stopped.
    pub(super) fn record_stop(&mut self, index: u32) {
        self.record(index, |name, _| vec![("Killing", format!("Stopping container {name}"))]);
    }

    /// Writes events about each container: reasons and messages.
    fn record(&mut self, index: u32, describe: impl Fn(&str, &str) -> Vec<(&'static str, String)>) {
        if !self.settings.pod_events {
            return;
        }
        let Some(pod) = self.pods.at(index) else { return };
        let (node, mut events) = (pod.node, Vec::new());
        let host = self.nodes[node as usize].name.clone();
        for container in &pod.plan.containers {
            for (reason, message) in describe(&container.name, &container.image) {
                let reference = reference(pod, &container.name);
                events.push(event(reference, &host, reason, message));
            }
        }
        events.into_iter().for_each(|event| self.write_event(node, event));
    }

    fn write_event(&mut self, node: u32, mut event: Event) {
        let time = Time { seconds: self.now.seconds as i64, nanos: 0 };
        (event.first_timestamp, event.last_timestamp) = (Some(time), Some(time));
        let number: u64 = self.random.random();
        let metadata = event.metadata.get_or_insert_default();
        metadata.name = format!("{}.{number:016x}", metadata.name);
        let path = format!("/api/v1/namespaces/{}/events", metadata.namespace);
        let body = Body::Protobuf(Bytes::from(api::encode("v1", "Event", &event)));
        let request = Request { method: Method::Post, path, body };
        self.send(node, Call::CreateEvent, request);
    }

    /// kubelet starts: it does not know its Node yet, so that each condition seems to be new.
    pub(super) fn record_kubelet_start(&mut self, id: u32) {
        self.record_node(id, Uid::default(), "Starting", Some("Starting kubelet."));
        for reason in ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"] {
            self.record_node(id, Uid::default(), reason, None);
        }
    }

    /// kubelet has set the limits of all pods together.
    pub(super) fn record_allocatable(&mut self, id: u32) {
        let message = "Updated Node Allocatable limit across pods";
        self.record_node(id, Uid::default(), "NodeAllocatableEnforced", Some(message));
    }

    /// The node has become ready.
    pub(super) fn record_ready(&mut self, id: u32) {
        let uid = self.node(id).uid;
        self.record_node(id, uid, "NodeReady", None);
    }

    /// Writes an event about a node. Its message is by default that of a condition.
    fn record_node(&mut self, id: u32, uid: Uid, reason: &str, message: Option<&str>) {
        if !self.settings.node_events {
            return;
        }
        let name = self.node(id).name.clone();
        let reference = ObjectReference {
            kind: "Node".to_owned(),
            namespace: String::new(),
            name: name.to_string(),
            uid: if uid == Uid::default() { String::new() } else { uid.to_string() },
            api_version: "v1".to_owned(),
            field_path: String::new(),
        };
        let message = message.map(ToOwned::to_owned);
        let message = message.unwrap_or_else(|| format!("Node {name} status is now: {reason}"));
        self.write_event(id, event(reference, &name, reason, message));
    }
}

fn reference(pod: &Pod, container: &str) -> ObjectReference {
    ObjectReference {
        kind: "Pod".to_owned(),
        namespace: pod.namespace.to_string(),
        name: pod.name.to_string(),
        uid: pod.uid.to_string(),
        api_version: "v1".to_owned(),
        field_path: format!("spec.containers{{{container}}}"),
    }
}

fn event(reference: ObjectReference, host: &str, reason: &str, message: String) -> Event {
    let name: String = reference.name.chars().take(MAX_NAME).collect();
    // Objects without a namespace have their events in the default one.
    let namespace = match &*reference.namespace {
        "" => "default".to_owned(),
        namespace => namespace.to_owned(),
    };
    let metadata = ObjectMeta { name, namespace, ..ObjectMeta::default() };
    Event {
        metadata: Some(metadata),
        involved_object: Some(reference),
        reason: reason.to_owned(),
        message,
        source: Some(EventSource { component: COMPONENT.to_owned(), host: host.to_owned() }),
        first_timestamp: None,
        last_timestamp: None,
        count: 1,
        r#type: "Normal".to_owned(),
        reporting_component: COMPONENT.to_owned(),
        reporting_instance: host.to_owned(),
    }
}
