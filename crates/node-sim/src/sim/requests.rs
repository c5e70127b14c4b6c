//! The requests of a kubelet for its own objects.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::api::{
    self, CsiNode, CsiNodeSpec, Lease, LeaseSpec, NodeAddress, NodeCondition, NodeStatus,
    NodeSystemInfo, ObjectMeta, OwnerReference, Quantity, Time, Uid,
};
use crate::client::{Body, Method, Request};
use crate::selector::Labels;
use crate::time::Moment;

use super::settings::Settings;

/// The time limit of kubelet's client for heartbeats.
const TIMEOUT: &str = "timeout=10s";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const LEASE_VERSION: &str = "coordination.k8s.io/v1";
const CSI_NODES: &str = "/apis/storage.k8s.io/v1/csinodes";
const NODES: &str = "/api/v1/nodes";
/// The release whose kubelet is simulated.
const KUBELET_VERSION: &str = "v1.37.1";

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

/// POST of a Node that is not ready.
pub fn create_node(name: &str, number: u32, settings: &Settings, now: Moment) -> Request {
    let manage = settings.manage.iter();
    let annotations = manage.map(|it| (it.key.clone(), it.value.clone())).collect();
    let metadata = ObjectMeta {
        name: name.to_owned(),
        labels: node_labels(name, number, settings),
        annotations,
        ..ObjectMeta::default()
    };
    let conditions = CONDITIONS[..3].iter().chain([&NOT_READY]);
    let status = NodeStatus {
        capacity: capacity(settings),
        allocatable: capacity(settings),
        conditions: conditions.map(|it| condition(it, now)).collect(),
        addresses: addresses(name, settings),
        node_info: Some(node_info(name)),
    };
    let node = api::Node { metadata: Some(metadata), spec: None, status: Some(status) };
    post(NODES.to_owned(), "v1", "Node", &node)
}

/// GET of a Node.
pub fn get_node(name: &str) -> Request {
    Request::get(format!("{NODES}/{name}"))
}

/// GET of the pods of a node.
pub fn list_pods(name: &str) -> Request {
    Request::get(format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{name}"))
}

/// PATCH that reports the complete status. The capacity is that of the settings if the Node has none.
pub fn report_all(name: &str, sets_capacity: bool, settings: &Settings, now: Moment) -> Request {
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
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
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
    patch_status(name, &json!({ "status": status }))
}

/// PATCH with a new heartbeat for each condition, which kubelet sends if nothing has changed.
pub fn report_heartbeat(name: &str, now: Moment) -> Request {
    let time = now.rfc3339();
    let beat = |it: &Condition| json!({"type": it.0, "lastHeartbeatTime": time});
    let conditions: Vec<Value> = CONDITIONS.iter().map(beat).collect();
    let status = json!({"$setElementOrder/conditions": order(), "conditions": conditions});
    patch_status(name, &json!({ "status": status }))
}

fn order() -> Value {
    CONDITIONS.iter().map(|(kind, ..)| json!({ "type": kind })).collect()
}

fn patch_status(name: &str, patch: &Value) -> Request {
    let path = format!("{NODES}/{name}/status?{TIMEOUT}");
    let body = Body::StrategicMergePatch(patch.to_string().into());
    Request { method: Method::Patch, path, body }
}

/// GET of a Lease.
pub fn get_lease(name: &str) -> Request {
    Request::get(format!("{LEASES}/{name}?{TIMEOUT}"))
}

/// POST of a Lease.
pub fn create_lease(name: &str, node: Uid, duration_seconds: u32, now: Moment) -> Request {
    let metadata = ObjectMeta {
        name: name.to_owned(),
        namespace: "kube-node-lease".to_owned(),
        owner_references: vec![owner(name, node)],
        ..ObjectMeta::default()
    };
    let renew_time = Time { seconds: now.seconds as i64, nanos: (now.micros * 1000) as i32 };
    let spec = LeaseSpec {
        holder_identity: Some(name.to_owned()),
        lease_duration_seconds: Some(duration_seconds as i32),
        renew_time: Some(renew_time),
    };
    let lease = Lease { metadata: Some(metadata), spec: Some(spec) };
    post(format!("{LEASES}?{TIMEOUT}"), LEASE_VERSION, "Lease", &lease)
}

/// PUT of a Lease that was made from the last answer.
pub fn put_lease(name: &str, lease: Vec<u8>) -> Request {
    let path = format!("{LEASES}/{name}?{TIMEOUT}");
    Request { method: Method::Put, path, body: Body::Protobuf(lease.into()) }
}

/// GET of a CSINode.
pub fn get_csi_node(name: &str) -> Request {
    Request::get(format!("{CSI_NODES}/{name}"))
}

/// POST of a CSINode without drivers.
pub fn create_csi_node(name: &str, node: Uid) -> Request {
    let metadata = ObjectMeta {
        name: name.to_owned(),
        owner_references: vec![owner(name, node)],
        ..ObjectMeta::default()
    };
    let csi_node = CsiNode { metadata: Some(metadata), spec: Some(CsiNodeSpec {}) };
    post(CSI_NODES.to_owned(), "storage.k8s.io/v1", "CSINode", &csi_node)
}

fn post(path: String, version: &str, kind: &str, object: &impl prost::Message) -> Request {
    let body = Bytes::from(api::encode(version, kind, object));
    Request { method: Method::Post, path, body: Body::Protobuf(body) }
}

fn owner(name: &str, node: Uid) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: name.to_owned(),
        uid: node.to_string(),
        controller: None,
    }
}

fn node_labels(name: &str, number: u32, settings: &Settings) -> Labels {
    let mut labels = Labels::new();
    let mut add = |key: &str, value: &str| labels.insert(key.to_owned(), value.to_owned());
    add("kubernetes.io/hostname", name);
    for prefix in ["", "beta."] {
        add(&format!("{prefix}kubernetes.io/os"), "linux");
        add(&format!("{prefix}kubernetes.io/arch"), "amd64");
    }
    if settings.zones > 0 {
        add("topology.kubernetes.io/zone", &format!("zone-{}", number % settings.zones));
    }
    labels
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
