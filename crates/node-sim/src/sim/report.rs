//! Reports of the status of pods, as kubelet's status manager sends them: GET, PATCH of the status,
//! and DELETE when the pod has stopped. While a report is in flight, changes wait for the next one.

use std::time::Duration;

use bytes::Bytes;

use crate::api::{self, DeleteOptions, Preconditions};
use crate::client::{Body, Method, Outcome, Request};
use crate::time::{Ticks, ticks};

use super::node::NEVER;
use super::pod::{Pod, Stage};
use super::pod_status::status_patch;
use super::simulation::Simulation;
use super::start::{body, has_status};
use super::ticket::{Call, PodId};
use super::wheel::Timer;

/// The time between two turns of kubelet's status manager, which try again what failed.
pub const PERIOD: Duration = Duration::from_secs(10);

/// The time that a kubelet needs to start containers, about.
const START_TIME: Duration = Duration::from_secs(1);

impl Simulation {
    /// Reports the status of a pod if it has changed, or deletes the pod if it has stopped.
    pub(super) fn report(&mut self, index: u32) {
        let Some(pod) = self.pods.at(index) else { return };
        let (id, node) = (pod.id, pod.node);
        let has_stopped = matches!(pod.stage, Stage::Stopped { .. });
        let is_waiting = pod.is_busy || pod.report_due != NEVER || pod.stage == Stage::Gone;
        if is_waiting || !(pod.is_changed || has_stopped) || !self.is_running(node) {
            return;
        }
        self.ask(id, |pod| (Call::GetPod(id), Request::get(path(pod, ""))));
    }

    /// Sends a request about a pod.
    fn ask(&mut self, id: PodId, make: impl FnOnce(&mut Pod) -> (Call, Request)) {
        let Some(pod) = self.pods.get(id) else { return };
        pod.is_busy = true;
        let node = pod.node;
        let (call, request) = make(pod);
        self.send(node, call, request);
    }

    /// Notes that a request has its outcome. Returns whether the node of the pod runs.
    fn ends_request(&mut self, id: PodId) -> bool {
        let Some(pod) = self.pods.get(id) else { return false };
        pod.is_busy = false;
        let node = pod.node;
        self.is_running(node)
    }

    pub(super) fn on_pod_read(&mut self, id: PodId, outcome: Outcome<'_>) {
        if !self.ends_request(id) {
            return;
        }
        if has_status(&outcome, 404) {
            return self.pod_is_gone(id);
        }
        let Some(uid) = body(&outcome, &[200]).and_then(api::decode_uid) else {
            return self.report_later(id, &outcome);
        };
        let Some(pod) = self.pods.get(id) else { return };
        if uid != pod.uid {
            return self.pod_is_gone(id);
        }
        match std::mem::take(&mut pod.is_changed) {
            true => self.patch_pod(id),
            false => self.delete_if_stopped(id),
        }
    }

    fn patch_pod(&mut self, id: PodId) {
        let (now, node_ip) = (self.now, self.settings.node_ip);
        self.ask(id, |pod| {
            let body = Bytes::from(status_patch(pod, node_ip, now));
            let body = Body::StrategicMergePatch(body);
            (
                Call::PatchPod(id),
                Request { method: Method::Patch, path: path(pod, "/status"), body },
            )
        });
    }

    pub(super) fn on_pod_reported(&mut self, id: PodId, outcome: Outcome<'_>) {
        let runs = self.ends_request(id);
        let is_done = has_status(&outcome, 200);
        if !is_done && let Some(pod) = self.pods.get(id) {
            pod.is_changed = true;
        }
        if !runs {
            return;
        }
        if is_done {
            let is_changed = self.pods.get(id).is_some_and(|pod| pod.is_changed);
            return match is_changed {
                true => self.report(id.index),
                false => self.delete_if_stopped(id),
            };
        }
        // 409: a pod with another UID.
        if has_status(&outcome, 404) || has_status(&outcome, 409) {
            return self.pod_is_gone(id);
        }
        if let Outcome::Answered(answer) = &outcome {
            let reason = api::status_message(answer.body);
            tracing::warn!(status = answer.status, %reason, "the status of a pod was refused");
        }
        self.report_later(id, &outcome);
    }

    fn delete_if_stopped(&mut self, id: PodId) {
        let stage = self.pods.get(id).map(|pod| pod.stage);
        if let Some(Stage::Stopped { .. }) = stage {
            self.ask(id, |pod| (Call::DeletePod(id), delete_request(pod)));
        }
    }

    pub(super) fn on_pod_deleted(&mut self, id: PodId, outcome: Outcome<'_>) {
        if !self.ends_request(id) {
            return;
        }
        match [200, 404, 409].into_iter().any(|status| has_status(&outcome, status)) {
            true => self.pod_is_gone(id),
            false => self.report_later(id, &outcome),
        }
    }

    /// The pod does not exist any more. Its slot stays until the watch says so, because earlier events
    /// of the watch may still arrive, and would otherwise start the pod again.
    fn pod_is_gone(&mut self, id: PodId) {
        let Some(pod) = self.pods.get(id) else { return };
        let ip = pod.ip.filter(|_| pod.stage != Stage::Gone && !pod.plan.host_network);
        self.change_pod(id.index, |pod| {
            (pod.stage, pod.due, pod.report_due) = (Stage::Gone, NEVER, NEVER);
        });
        ip.into_iter().for_each(|ip| self.addresses.give(ip));
    }

    /// Tries again at the next turn of the status manager. The authorizer of nodes refuses a node that
    /// asks for a pod shortly after the pod was bound, until its watch of pods has shown the binding.
    /// A kubelet then reports at its next change, when the containers run. The simulation has made
    /// that change already.
    fn report_later(&mut self, id: PodId, outcome: &Outcome<'_>) {
        let (now, is_forbidden) = (self.now, has_status(outcome, 403));
        let Some(pod) = self.pods.get(id) else { return };
        let is_new = now.seconds < pod.times.seen + PERIOD.as_secs();
        let due = now.tick + ticks(if is_forbidden && is_new { START_TIME } else { PERIOD });
        pod.report_due = due;
        self.wheel.add(due, Timer::Report(id.index));
    }

    /// The timer of a report that is repeated.
    pub(super) fn on_report_timer(&mut self, index: u32, due: Ticks) {
        let Some(pod) = self.pods.at(index) else { return };
        if pod.report_due == due {
            pod.report_due = NEVER;
            self.report(index);
        }
    }
}

fn path(pod: &Pod, subresource: &str) -> String {
    let Pod { namespace, name, .. } = pod;
    format!("/api/v1/namespaces/{namespace}/pods/{name}{subresource}")
}

/// DELETE at once, unless there is another pod with this name.
fn delete_request(pod: &Pod) -> Request {
    let options = DeleteOptions {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid: Some(pod.uid.to_string()) }),
    };
    let body = Bytes::from(api::encode("v1", "DeleteOptions", &options));
    Request { method: Method::Delete, path: path(pod, ""), body: Body::Protobuf(body) }
}
