//! The requests of a kubelet for its own objects.

use bytes::Bytes;
use serde_json::Value;

use crate::api::{
    self, CsiNode, CsiNodeSpec, DeleteOptions, Lease, LeaseSpec, ObjectMeta, OwnerReference, Time,
    Uid,
};
use crate::client::{Body, Method, Request};
use crate::selector::Labels;
use crate::time::Moment;

use super::node_status;
use super::settings::Settings;

/// The time limit of kubelet's client for heartbeats.
const TIMEOUT: &str = "timeout=10s";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const LEASE_VERSION: &str = "coordination.k8s.io/v1";
const CSI_NODES: &str = "/apis/storage.k8s.io/v1/csinodes";
/// The annotation of CSINodes with the volume plugins that drivers replace, and its value.
const MIGRATED_KEY: &str = "storage.alpha.kubernetes.io/migrated-plugins";
const MIGRATED: &str = "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,\
    kubernetes.io/azure-file,kubernetes.io/cinder,kubernetes.io/gce-pd,\
    kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume";
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
const NODES: &str = "/api/v1/nodes";

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
    let status = Some(node_status::first(name, settings, now));
    let node = api::Node { metadata: Some(metadata), spec: None, status };
    post(NODES.to_owned(), "v1", "Node", &node)
}

/// GET of a Node.
pub fn get_node(name: &str) -> Request {
    Request::get(format!("{NODES}/{name}"))
}

/// DELETE of all ResourceSlices of a node.
pub fn delete_slices(name: &str) -> Request {
    let path = format!("{SLICES}?fieldSelector=spec.nodeName%3D{name}");
    let options = api::encode("resource.k8s.io/v1", "DeleteOptions", &DeleteOptions::default());
    Request { method: Method::Delete, path, body: Body::Protobuf(options.into()) }
}

/// GET of the pods of a node.
pub fn list_pods(name: &str) -> Request {
    Request::get(format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{name}"))
}

/// PATCH that reports the complete status. The capacity is that of the settings if the Node has none.
pub fn report_all(name: &str, sets_capacity: bool, settings: &Settings, now: Moment) -> Request {
    patch_status(name, &node_status::complete(name, sets_capacity, settings, now))
}

/// PATCH with a new heartbeat for each condition.
pub fn report_heartbeat(name: &str, now: Moment) -> Request {
    patch_status(name, &node_status::heartbeat(now))
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
        annotations: [(MIGRATED_KEY.to_owned(), MIGRATED.to_owned())].into(),
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
