//! The status of a pod as JSON.
//!
//! kubelet sends the difference to the status that it has read. The simulator sends the complete status
//! of the containers and conditions, which has the same effect: conditions are merged by their type, and
//! the lists of containers are replaced.

use std::net::Ipv4Addr;

use serde::{Serialize, Serializer};

use crate::api::Container;
use crate::time::{Moment, Rfc3339};

use super::pod::{Pod, Stage};

/// Bytes of most patches, at most.
const PATCH_BYTES: usize = 2 << 10;

/// A patch that fails for a pod with another UID.
#[derive(Serialize)]
struct Patch<'a> {
    metadata: Metadata,
    status: Status<'a>,
}

#[derive(Serialize)]
struct Metadata {
    uid: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status<'a> {
    phase: &'static str,
    observed_generation: i64,
    start_time: Rfc3339,
    #[serde(rename = "hostIP")]
    host_ip: Ipv4Addr,
    #[serde(rename = "hostIPs")]
    host_ips: [Address; 1],
    #[serde(rename = "podIP", skip_serializing_if = "Option::is_none")]
    pod_ip: Option<Ipv4Addr>,
    #[serde(rename = "podIPs", skip_serializing_if = "Option::is_none")]
    pod_ips: Option<[Address; 1]>,
    conditions: [Condition; 4],
    container_statuses: Vec<ContainerStatus<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    init_container_statuses: Vec<ContainerStatus<'a>>,
}

#[derive(Serialize)]
struct Address {
    ip: Ipv4Addr,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    r#type: &'static str,
    status: &'static str,
    /// kubelet sets it to null.
    last_probe_time: (),
    last_transition_time: Rfc3339,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ContainerStatus<'a> {
    name: &'a str,
    image: &'a str,
    #[serde(rename = "imageID")]
    image_id: String,
    #[serde(rename = "containerID", skip_serializing_if = "Option::is_none")]
    container_id: Option<String>,
    ready: bool,
    started: bool,
    restart_count: u32,
    state: State,
    #[serde(serialize_with = "state_or_nothing")]
    last_state: Option<State>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
enum State {
    Waiting {
        reason: &'static str,
    },
    Running {
        started_at: Rfc3339,
    },
    Terminated {
        exit_code: i32,
        reason: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<&'static str>,
        started_at: Option<Rfc3339>,
        finished_at: Option<Rfc3339>,
    },
}

/// A container that has not run before has an empty state.
fn state_or_nothing<S: Serializer>(
    state: &Option<State>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Nothing {}
    match state {
        Some(state) => state.serialize(serializer),
        None => Nothing {}.serialize(serializer),
    }
}

/// Returns the patch that reports the status of a pod. It fails for a pod with another UID.
pub fn status_patch(pod: &Pod, node_ip: Ipv4Addr, now: Moment) -> Vec<u8> {
    let containers = pod.plan.containers.iter();
    let init_containers = pod.plan.init_containers.iter().enumerate();
    let status = Status {
        phase: pod.phase(),
        observed_generation: pod.generation,
        start_time: Rfc3339(pod.times.seen),
        host_ip: node_ip,
        host_ips: [Address { ip: node_ip }],
        pod_ip: pod.ip,
        pod_ips: pod.ip.map(|ip| [Address { ip }]),
        conditions: conditions(pod, now),
        container_statuses: containers
            .map(|it| container_status(pod, it, container_state(pod)))
            .collect(),
        init_container_statuses: init_containers
            .map(|(number, it)| container_status(pod, it, init_state(pod, number, it)))
            .collect(),
    };
    let patch = Patch { metadata: Metadata { uid: pod.uid.to_string() }, status };
    let mut bytes = Vec::with_capacity(PATCH_BYTES);
    // A vector has room for everything, and the keys are names of fields.
    let _ = serde_json::to_writer(&mut bytes, &patch);
    bytes
}

fn conditions(pod: &Pod, now: Moment) -> [Condition; 4] {
    let has_sandbox = matches!(pod.stage, Stage::Init(_) | Stage::Running { .. } | Stage::BackOff);
    let is_initialized = match pod.stage {
        Stage::Accepted => pod.plan.init_containers.is_empty(),
        Stage::Init(_) | Stage::Stopped { was_started: false } => false,
        _ => true,
    };
    let since = |seconds: u64| Rfc3339(if seconds == 0 { now.seconds } else { seconds });
    let condition = |r#type, is_true: bool, seconds| Condition {
        r#type,
        status: if is_true { "True" } else { "False" },
        last_probe_time: (),
        last_transition_time: since(seconds),
        reason: None,
        message: None,
    };
    let mut initialized = condition("Initialized", is_initialized, pod.times.initialized);
    if !is_initialized {
        initialized.reason = Some("ContainersNotInitialized");
        let names = names(&pod.plan.init_containers);
        initialized.message = Some(format!("containers with incomplete status: [{names}]"));
    }
    let is_ready = pod.stage == Stage::Running { is_ready: true };
    let readiness = |kind| {
        let (reason, message) = if is_ready { (None, None) } else { why_unready(pod) };
        Condition { reason, message, ..condition(kind, is_ready, pod.times.ready) }
    };
    [
        condition("PodReadyToStartContainers", has_sandbox, pod.times.ready),
        initialized,
        readiness("Ready"),
        readiness("ContainersReady"),
    ]
}

/// Why a pod is not ready: the reason and the message.
fn why_unready(pod: &Pod) -> (Option<&'static str>, Option<String>) {
    match pod.phase() {
        "Succeeded" => (Some("PodCompleted"), None),
        "Failed" => (Some("PodFailed"), None),
        _ => {
            let names = names(&pod.plan.containers);
            let message = format!("containers with unready status: [{names}]");
            (Some("ContainersNotReady"), Some(message))
        }
    }
}

fn names(containers: &[Container]) -> String {
    containers.iter().map(|it| it.name.as_str()).collect::<Vec<_>>().join(" ")
}

/// The state of a container, and the one before.
struct ContainerState {
    state: State,
    last: Option<State>,
    is_running: bool,
    is_ready: bool,
}

fn container_state(pod: &Pod) -> ContainerState {
    let was_restarted = pod.restarts > 0 || pod.stage == Stage::BackOff;
    let state = match pod.stage {
        Stage::Accepted | Stage::Init(_) => {
            let is_initializing = !pod.plan.init_containers.is_empty();
            let reason = if is_initializing { "PodInitializing" } else { "ContainerCreating" };
            State::Waiting { reason }
        }
        Stage::Running { .. } => State::Running { started_at: Rfc3339(pod.times.started) },
        Stage::BackOff => State::Waiting { reason: "CrashLoopBackOff" },
        Stage::Stopped { was_started: false } => never_started(),
        Stage::Ended | Stage::Stopped { .. } | Stage::Gone => terminated(pod, pod.exit_code),
    };
    ContainerState {
        state,
        last: was_restarted.then(|| terminated(pod, pod.exit_code)),
        is_running: matches!(pod.stage, Stage::Running { .. }),
        is_ready: pod.stage == Stage::Running { is_ready: true },
    }
}

fn init_state(pod: &Pod, number: usize, container: &Container) -> ContainerState {
    let is_sidecar = container.restart_policy == "Always";
    let initializing = || State::Waiting { reason: "PodInitializing" };
    let running = || State::Running { started_at: Rfc3339(pod.times.seen) };
    let (state, is_running, is_ready) = match pod.stage {
        Stage::Accepted => (initializing(), false, false),
        Stage::Init(current) if number > usize::from(current) => (initializing(), false, false),
        Stage::Init(current) if number == usize::from(current) => (running(), true, is_sidecar),
        Stage::Init(_) | Stage::Running { .. } | Stage::BackOff if is_sidecar => {
            (running(), true, true)
        }
        Stage::Stopped { was_started: false } => (never_started(), false, false),
        _ => (terminated(pod, 0), false, !is_sidecar),
    };
    ContainerState { state, last: None, is_running, is_ready }
}

fn terminated(pod: &Pod, exit_code: i32) -> State {
    let seen = pod.times.seen;
    let started = if pod.times.started == 0 { seen } else { pod.times.started };
    State::Terminated {
        exit_code,
        reason: if exit_code == 0 { "Completed" } else { "Error" },
        message: None,
        started_at: Some(Rfc3339(started)),
        finished_at: Some(Rfc3339(pod.times.ended.max(started))),
    }
}

/// kubelet's state of a container of which it cannot know how it ended.
fn never_started() -> State {
    State::Terminated {
        exit_code: 137,
        reason: "ContainerStatusUnknown",
        message: Some("The container could not be located when the pod was terminated"),
        started_at: None,
        finished_at: None,
    }
}

fn container_status<'a>(
    pod: &Pod,
    container: &'a Container,
    state: ContainerState,
) -> ContainerStatus<'a> {
    let ContainerState { state, last, is_running, is_ready } = state;
    let Container { name, image, .. } = container;
    let was_created = !matches!(state, State::Waiting { .. });
    let container_id = || format!("node-sim://{}/{name}/{}", pod.uid, pod.restarts);
    ContainerStatus {
        name,
        image,
        image_id: if was_created { format!("node-sim://{image}") } else { String::new() },
        container_id: was_created.then(container_id),
        ready: is_ready,
        started: is_running,
        restart_count: pod.restarts,
        state,
        last_state: last,
    }
}
