//! The status of a pod as JSON.
//!
//! kubelet sends the difference to the status that it has read. The simulator sends the complete status
//! of the containers and conditions, which has the same effect: conditions are merged by their type, and
//! the lists of containers are replaced.

use std::net::Ipv4Addr;

use serde_json::{Map, Value, json};

use crate::api::Container;
use crate::time::{Moment, rfc3339};

use super::pod::{Pod, Stage};

/// Returns the patch that reports the status of a pod. It fails for a pod with another UID.
pub fn status_patch(pod: &Pod, node_ip: Ipv4Addr, now: Moment) -> Vec<u8> {
    let mut status = Map::new();
    let mut set = |key: &str, value: Value| drop(status.insert(key.to_owned(), value));
    set("phase", pod.phase().into());
    set("observedGeneration", pod.generation.into());
    set("startTime", rfc3339(pod.times.seen).into());
    set("hostIP", node_ip.to_string().into());
    set("hostIPs", json!([{"ip": node_ip.to_string()}]));
    if let Some(ip) = pod.ip {
        set("podIP", ip.to_string().into());
        set("podIPs", json!([{"ip": ip.to_string()}]));
    }
    set("conditions", conditions(pod, now).into());
    let containers = pod.plan.containers.iter();
    let containers: Vec<Value> =
        containers.map(|it| container_status(pod, it, container_state(pod))).collect();
    set("containerStatuses", containers.into());
    if !pod.plan.init_containers.is_empty() {
        let states = pod.plan.init_containers.iter().enumerate();
        let states: Vec<Value> = states
            .map(|(number, it)| container_status(pod, it, init_state(pod, number, it)))
            .collect();
        set("initContainerStatuses", states.into());
    }
    json!({"metadata": {"uid": pod.uid.to_string()}, "status": status}).to_string().into_bytes()
}

fn conditions(pod: &Pod, now: Moment) -> Vec<Value> {
    let has_sandbox = matches!(pod.stage, Stage::Init(_) | Stage::Running { .. } | Stage::BackOff);
    let is_initialized = match pod.stage {
        Stage::Accepted => pod.plan.init_containers.is_empty(),
        Stage::Init(_) | Stage::Stopped { was_started: false } => false,
        _ => true,
    };
    let is_ready = pod.stage == Stage::Running { is_ready: true };
    let since = |seconds: u64| rfc3339(if seconds == 0 { now.seconds } else { seconds });
    let names =
        |list: &[Container]| list.iter().map(|it| it.name.as_str()).collect::<Vec<_>>().join(" ");
    let mut initialized = json!({"type": "Initialized", "status": text(is_initialized),
        "lastProbeTime": null, "lastTransitionTime": since(pod.times.initialized)});
    if !is_initialized {
        initialized["reason"] = "ContainersNotInitialized".into();
        let names = names(&pod.plan.init_containers);
        initialized["message"] = format!("containers with incomplete status: [{names}]").into();
    }
    let mut list = vec![
        json!({"type": "PodReadyToStartContainers", "status": text(has_sandbox),
               "lastProbeTime": null, "lastTransitionTime": since(pod.times.ready)}),
        initialized,
    ];
    for kind in ["Ready", "ContainersReady"] {
        let mut condition = json!({"type": kind, "status": text(is_ready), "lastProbeTime": null,
            "lastTransitionTime": since(pod.times.ready)});
        match pod.phase() {
            _ if is_ready => {}
            "Succeeded" => condition["reason"] = "PodCompleted".into(),
            "Failed" => condition["reason"] = "PodFailed".into(),
            _ => {
                condition["reason"] = "ContainersNotReady".into();
                let names = names(&pod.plan.containers);
                condition["message"] = format!("containers with unready status: [{names}]").into();
            }
        }
        list.push(condition);
    }
    list
}

fn text(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

/// The state of a container, and the one before.
struct ContainerState {
    state: Value,
    last: Value,
    is_running: bool,
    is_ready: bool,
}

fn container_state(pod: &Pod) -> ContainerState {
    let last = match pod.restarts > 0 || pod.stage == Stage::BackOff {
        true => terminated(pod, pod.exit_code),
        false => json!({}),
    };
    let state = match pod.stage {
        Stage::Accepted | Stage::Init(_) => {
            let is_initializing = !pod.plan.init_containers.is_empty();
            waiting(if is_initializing { "PodInitializing" } else { "ContainerCreating" })
        }
        Stage::Running { .. } => json!({"running": {"startedAt": rfc3339(pod.times.started)}}),
        Stage::BackOff => waiting("CrashLoopBackOff"),
        Stage::Stopped { was_started: false } => never_started(),
        Stage::Ended | Stage::Stopped { .. } | Stage::Gone => terminated(pod, pod.exit_code),
    };
    let is_running = matches!(pod.stage, Stage::Running { .. });
    let is_ready = pod.stage == Stage::Running { is_ready: true };
    ContainerState { state, last, is_running, is_ready }
}

fn init_state(pod: &Pod, number: usize, container: &Container) -> ContainerState {
    let is_sidecar = container.restart_policy == "Always";
    let running = || json!({"running": {"startedAt": rfc3339(pod.times.seen)}});
    let (state, is_running, is_ready) = match pod.stage {
        Stage::Accepted => (waiting("PodInitializing"), false, false),
        Stage::Init(current) if number > usize::from(current) => {
            (waiting("PodInitializing"), false, false)
        }
        Stage::Init(current) if number == usize::from(current) => (running(), true, is_sidecar),
        Stage::Init(_) | Stage::Running { .. } | Stage::BackOff if is_sidecar => {
            (running(), true, true)
        }
        Stage::Stopped { was_started: false } => (never_started(), false, false),
        _ => (terminated(pod, 0), false, !is_sidecar),
    };
    ContainerState { state, last: json!({}), is_running, is_ready }
}

fn waiting(reason: &str) -> Value {
    json!({"waiting": {"reason": reason}})
}

fn terminated(pod: &Pod, exit_code: i32) -> Value {
    let reason = if exit_code == 0 { "Completed" } else { "Error" };
    let seen = pod.times.seen;
    let started = if pod.times.started == 0 { seen } else { pod.times.started };
    let ended = pod.times.ended.max(started);
    json!({"terminated": {"exitCode": exit_code, "reason": reason,
                          "startedAt": rfc3339(started), "finishedAt": rfc3339(ended)}})
}

/// kubelet's state of a container of which it cannot know how it ended.
fn never_started() -> Value {
    json!({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown",
        "message": "The container could not be located when the pod was terminated",
        "startedAt": null, "finishedAt": null}})
}

fn container_status(pod: &Pod, container: &Container, state: ContainerState) -> Value {
    let ContainerState { state, last, is_running, is_ready } = state;
    let was_created = state.get("waiting").is_none();
    let mut status = json!({
        "name": container.name,
        "image": container.image,
        "imageID": "",
        "ready": is_ready,
        "started": is_running,
        "restartCount": pod.restarts,
        "state": state,
        "lastState": last,
    });
    if was_created {
        let id = format!("node-sim://{}/{}/{}", pod.uid, container.name, pod.restarts);
        status["containerID"] = id.into();
        status["imageID"] = format!("node-sim://{}", container.image).into();
    }
    status
}
