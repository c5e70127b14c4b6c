//! The status of a node that is healthy: what is reported, and whether a Node has it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::api::{
    DaemonEndpoint, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeStatus, NodeSystemInfo,
    Quantity, Time,
};
use crate::time::Moment;

use super::settings::Settings;

/// The release whose kubelet is simulated.
const KUBELET_VERSION: &str = "v1.37.1";
/// The port of kubelet's server.
const KUBELET_PORT: i32 = 10250;

/// A condition of a node that is healthy: type, status, reason and message.
type Condition = (&'static str, &'static str, &'static str, &'static str);

const CONDITIONS: [Condition; 4] = [
    (
        "MemoryPressure",
        "False",
        "KubeletHasSufficientMemory",
        "kubelet has sufficient memory available",
    ),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
];
/// The condition of a node that has just been registered.
const NOT_READY: Condition = (
    "Ready",
    "False",
    "KubeletNotReady",
    "[container runtime status check may not have completed yet, CSINode is not yet initialized]",
);

/// The status with which a Node is created: it is not ready.
pub fn first(name: &str, settings: &Settings, now: Moment) -> NodeStatus {
    let conditions = CONDITIONS[..3].iter().chain([&NOT_READY]);
    NodeStatus {
        capacity: capacity(settings),
        allocatable: capacity(settings),
        conditions: conditions.map(|it| condition(it, now)).collect(),
        addresses: addresses(name, settings),
        daemon_endpoints: Some(daemon_endpoints()),
        node_info: Some(node_info(name)),
    }
}

/// Whether a Node has the status that [`complete`] reports, apart from times. Conditions that kubelet
/// does not have do not count.
pub fn is_reported(name: &str, status: &NodeStatus, settings: &Settings) -> bool {
    let has = |(kind, value, reason, message): &Condition| {
        let found = status.conditions.iter().find(|it| it.r#type == *kind);
        found
            .is_some_and(|it| it.status == *value && it.reason == *reason && it.message == *message)
    };
    !status.capacity.is_empty()
        && CONDITIONS.iter().all(has)
        && status.addresses == addresses(name, settings)
        && status.daemon_endpoints.as_ref() == Some(&daemon_endpoints())
        && status.node_info.as_ref() == Some(&node_info(name))
}

/// The patch that reports the complete status. The capacity is that of the settings if the Node has none.
pub fn complete(name: &str, sets_capacity: bool, settings: &Settings, now: Moment) -> Value {
    let time = now.rfc3339();
    let conditions: Vec<Value> = CONDITIONS
        .iter()
        .map(|(kind, status, reason, message)| {
            json!({"type": kind, "status": status, "reason": reason, "message": message,
                   "lastHeartbeatTime": time, "lastTransitionTime": time})
        })
        .collect();
    let info = node_info(name);
    let mut status = json!({
        "$setElementOrder/conditions": order(),
        "conditions": conditions,
        "addresses": [{"type": "InternalIP", "address": settings.node_ip.to_string()},
                      {"type": "Hostname", "address": name}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": KUBELET_PORT}},
        "nodeInfo": {"machineID": info.machine_id, "systemUUID": info.system_uuid,
                     "bootID": info.boot_id, "kernelVersion": info.kernel_version,
                     "osImage": info.os_image,
                     "containerRuntimeVersion": info.container_runtime_version,
                     "kubeletVersion": info.kubelet_version, "kubeProxyVersion": "",
                     "operatingSystem": info.operating_system, "architecture": info.architecture},
    });
    if sets_capacity {
        let quantities: BTreeMap<String, String> =
            capacity(settings).into_iter().map(|(key, value)| (key, value.string)).collect();
        status["capacity"] = json!(quantities);
        status["allocatable"] = json!(quantities);
    }
    json!({ "status": status })
}

/// The patch with a new heartbeat for each condition, which kubelet sends if nothing has changed.
pub fn heartbeat(now: Moment) -> Value {
    let time = now.rfc3339();
    let beat = |it: &Condition| json!({"type": it.0, "lastHeartbeatTime": time});
    let conditions: Vec<Value> = CONDITIONS.iter().map(beat).collect();
    let status = json!({"$setElementOrder/conditions": order(), "conditions": conditions});
    json!({ "status": status })
}

fn order() -> Value {
    CONDITIONS.iter().map(|(kind, ..)| json!({ "type": kind })).collect()
}

fn daemon_endpoints() -> NodeDaemonEndpoints {
    NodeDaemonEndpoints { kubelet_endpoint: Some(DaemonEndpoint { port: KUBELET_PORT }) }
}

fn capacity(settings: &Settings) -> BTreeMap<String, Quantity> {
    let quantity = |text: &str| Quantity { string: text.to_owned() };
    BTreeMap::from([
        ("cpu".to_owned(), quantity(&settings.capacity.cpu)),
        ("memory".to_owned(), quantity(&settings.capacity.memory)),
        ("pods".to_owned(), quantity(&settings.capacity.pods.to_string())),
    ])
}

fn addresses(name: &str, settings: &Settings) -> Vec<NodeAddress> {
    let address = |kind: &str, address: String| NodeAddress { r#type: kind.to_owned(), address };
    vec![address("InternalIP", settings.node_ip.to_string()), address("Hostname", name.to_owned())]
}

fn condition(condition: &Condition, now: Moment) -> NodeCondition {
    let time = Some(Time { seconds: now.seconds as i64, nanos: 0 });
    let (kind, status, reason, message) = *condition;
    NodeCondition {
        r#type: kind.to_owned(),
        status: status.to_owned(),
        last_heartbeat_time: time,
        last_transition_time: time,
        reason: reason.to_owned(),
        message: message.to_owned(),
    }
}

fn node_info(name: &str) -> NodeSystemInfo {
    NodeSystemInfo {
        // Two nodes must not look like one machine.
        machine_id: format!("node-sim-{name}"),
        system_uuid: format!("node-sim-{name}"),
        boot_id: format!("node-sim-{name}"),
        kernel_version: "simulated".to_owned(),
        os_image: "node-sim".to_owned(),
        container_runtime_version: "node-sim://1".to_owned(),
        kubelet_version: KUBELET_VERSION.to_owned(),
        operating_system: "linux".to_owned(),
        architecture: "amd64".to_owned(),
    }
}
