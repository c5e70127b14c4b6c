//! Events about pods, as kubelet writes them.

use bytes::Bytes;
use rand::RngExt as _;

use crate::api::{self, Event, EventSource, ObjectMeta, ObjectReference, Time};
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
        for mut event in events {
            let namespace = event.involved_object.as_ref().map(|it| it.namespace.clone());
            let path = format!("/api/v1/namespaces/{}/events", namespace.unwrap_or_default());
            let time = Time { seconds: self.now.seconds as i64, nanos: 0 };
            (event.first_timestamp, event.last_timestamp) = (Some(time), Some(time));
            let number: u64 = self.random.random();
            if let Some(metadata) = &mut event.metadata {
                metadata.name = format!("{}.{number:016x}", metadata.name);
            }
            let body = Body::Protobuf(Bytes::from(api::encode("v1", "Event", &event)));
            let request = Request { method: Method::Post, path, body };
            self.send(node, Call::CreateEvent, request);
        }
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
    let metadata =
        ObjectMeta { name, namespace: reference.namespace.clone(), ..ObjectMeta::default() };
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
