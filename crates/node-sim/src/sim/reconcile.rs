//! Pods whose status somebody else has changed. kube-controller-manager does so with the pods of a node
//! that is not ready. kubelet reports the status again at the next turn of its status manager
//! (`needsReconcile` in `pkg/kubelet/status/status_manager.go`).

use crate::api;
use crate::time::Ticks;

use super::node::NEVER;
use super::pod::{Pod, Stage};
use super::report::PERIOD;
use super::simulation::Simulation;
use super::wheel::Timer;

impl Simulation {
    /// Compares the status that a watch shows with that of the simulation. If they differ, the next
    /// turn of the status manager reports it.
    pub(super) fn compare_status(&mut self, index: u32, status: &api::PodStatus) {
        let Some(pod) = self.pods.at(index) else { return };
        pod.is_outdated = is_outdated(pod, status);
        if !pod.is_outdated || pod.sync_due != NEVER {
            return;
        }
        let due = self.now.tick + self.random_part(PERIOD).max(1);
        let Some(pod) = self.pods.at(index) else { return };
        pod.sync_due = due;
        self.wheel.add(due, Timer::Sync(index));
    }

    /// The timer of a pod whose status differs. A later event of the watch may have shown the right one,
    /// because the first one was older than the last report.
    pub(super) fn on_sync_timer(&mut self, index: u32, due: Ticks) {
        let Some(pod) = self.pods.at(index) else { return };
        if pod.sync_due != due {
            return;
        }
        pod.sync_due = NEVER;
        pod.is_changed |= std::mem::take(&mut pod.is_outdated);
        self.report(index);
    }
}

/// Whether phase or readiness differ. A final phase stays, as in kubelet; and a pod that has stopped is
/// deleted next.
fn is_outdated(pod: &Pod, status: &api::PodStatus) -> bool {
    let is_final = matches!(&*status.phase, "Succeeded" | "Failed");
    let has_stopped = matches!(pod.stage, Stage::Stopped { .. } | Stage::Gone);
    let is_ready = pod.stage == Stage::Running { is_ready: true };
    !is_final && !has_stopped && (status.phase != pod.phase() || status.is_ready() != is_ready)
}
