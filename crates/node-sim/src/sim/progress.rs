//! How the containers of a pod make progress.

use std::time::Duration;

use rand::RngExt as _;

use crate::time::{Ticks, ticks};

use super::node::NEVER;
use super::pod::{Pod, RestartPolicy, Stage};
use super::simulation::Simulation;
use super::wheel::Timer;

/// kubelet's back-off before containers are started again: none the first time, then from the first
/// to the last delay, doubling.
const FIRST_BACK_OFF: Duration = Duration::from_secs(10);
const LAST_BACK_OFF: Duration = Duration::from_secs(300);
/// The exit code of a container that was killed.
const KILLED: i32 = 137;

impl Simulation {
    /// Ends the stage of a pod after a delay.
    pub(super) fn schedule_pod(&mut self, index: u32, delay: Ticks) {
        let now = self.now.tick;
        let Some(pod) = self.pods.at(index) else { return };
        let due = now + delay.max(1) + self.nodes[pod.node as usize].delay;
        pod.due = due;
        self.wheel.add(due, Timer::Pod(index));
    }

    /// The timer of a pod.
    pub(super) fn on_pod_timer(&mut self, index: u32, due: Ticks) {
        let Some(pod) = self.pods.at(index) else { return };
        let node = pod.node;
        // A pod whose node does not run goes on when it does.
        if pod.due != due || !self.is_running(node) {
            return;
        }
        let Some(pod) = self.pods.at(index) else { return };
        pod.due = NEVER;
        let (stage, is_deleted) = (pod.stage, pod.deletion.is_some());
        match (stage, is_deleted) {
            (Stage::Ended | Stage::Stopped { .. } | Stage::Gone, _) => return,
            (_, true) => self.containers_stopped(index, true),
            // The sandbox is created when the volumes are mounted.
            (Stage::Accepted, _) if self.waits_for_tokens(index) => return,
            (Stage::Accepted, _) => self.sandbox_is_ready(index),
            (Stage::Init(number), _) => self.next_init_container(index, number + 1),
            (Stage::Running { .. }, _) => self.running_goes_on(index),
            (Stage::BackOff, _) => self.restart_containers(index),
        }
        self.report(index);
    }

    /// Changes a pod, and counts the pods by phase. Its status is reported.
    pub(super) fn change_pod(&mut self, index: u32, change: impl FnOnce(&mut Pod)) {
        let Some(pod) = self.pods.at(index) else { return };
        let before = pod.phase();
        change(pod);
        pod.is_changed = true;
        let after = pod.phase();
        if before != after {
            self.metrics.pods.with_label_values(&[before]).dec();
            self.metrics.pods.with_label_values(&[after]).inc();
        }
    }

    fn sandbox_is_ready(&mut self, index: u32) {
        let Some(pod) = self.pods.at(index) else { return };
        if pod.ip.is_none() {
            pod.ip = match pod.plan.host_network {
                true => Some(self.settings.node_ip),
                false => self.addresses.take(),
            };
        }
        if pod.ip.is_none() {
            tracing::warn!(pod = %pod.name, "no IP address is free; use a larger --pod-cidr");
        }
        self.next_init_container(index, 0);
    }

    fn next_init_container(&mut self, index: u32, number: u16) {
        let seconds = self.now.seconds;
        let Some(pod) = self.pods.at(index) else { return };
        let Some(container) = pod.plan.init_containers.get(usize::from(number)) else {
            pod.times.initialized = seconds;
            return self.run_containers(index);
        };
        let behaviour = &pod.plan.behaviour;
        // A sidecar runs on; the next container is started as soon as it has started.
        let is_sidecar = container.restart_policy == "Always";
        let runs = if is_sidecar { Duration::ZERO } else { behaviour.init_time };
        let delay = ticks(runs + behaviour.start_delay);
        self.change_pod(index, |pod| pod.stage = Stage::Init(number));
        self.schedule_pod(index, delay);
    }

    fn restart_containers(&mut self, index: u32) {
        if let Some(pod) = self.pods.at(index) {
            pod.restarts += 1;
        }
        self.run_containers(index);
    }

    fn run_containers(&mut self, index: u32) {
        let now = self.now;
        let Some(pod) = self.pods.at(index) else { return };
        let behaviour = &pod.plan.behaviour;
        let is_ready = behaviour.readiness_delay.is_zero();
        pod.ends = behaviour.run_time.map_or(NEVER, |time| now.tick + ticks(time).max(1));
        let ready = if is_ready { NEVER } else { now.tick + ticks(behaviour.readiness_delay) };
        let due = pod.ends.min(ready);
        self.change_pod(index, |pod| {
            pod.stage = Stage::Running { is_ready };
            (pod.times.started, pod.times.ready) = (now.seconds, now.seconds);
        });
        self.record_start(index);
        self.read_objects(index);
        if due != NEVER {
            self.schedule_pod(index, due - now.tick);
        }
    }

    /// The containers are ready, or have ended.
    fn running_goes_on(&mut self, index: u32) {
        let now = self.now;
        let Some(pod) = self.pods.at(index) else { return };
        if pod.ends <= now.tick {
            return self.containers_ended(index);
        }
        let ends = pod.ends;
        self.change_pod(index, |pod| {
            pod.stage = Stage::Running { is_ready: true };
            pod.times.ready = now.seconds;
        });
        if ends != NEVER {
            self.schedule_pod(index, ends - now.tick);
        }
    }

    fn containers_ended(&mut self, index: u32) {
        let seconds = self.now.seconds;
        let chance: f64 = self.random.random_range(0.0..1.0);
        let Some(pod) = self.pods.at(index) else { return };
        let behaviour = &pod.plan.behaviour;
        let has_failed = chance < behaviour.failure_probability;
        let exit_code = if has_failed { behaviour.exit_code } else { 0 };
        let starts_again = match pod.plan.restart_policy {
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => exit_code != 0,
            RestartPolicy::Never => false,
        };
        let delay = back_off(pod.restarts).max(behaviour.start_delay);
        self.change_pod(index, |pod| {
            pod.stage = if starts_again { Stage::BackOff } else { Stage::Ended };
            pod.exit_code = exit_code;
            (pod.times.ended, pod.times.ready) = (seconds, seconds);
        });
        match starts_again {
            true => self.schedule_pod(index, ticks(delay)),
            false => self.unregister_pod(index),
        }
    }

    /// Begins to stop a pod that was deleted.
    pub(super) fn stop_pod(&mut self, index: u32) {
        let Some(pod) = self.pods.at(index) else { return };
        let (node, stage) = (pod.node, pod.stage);
        if !self.is_running(node) {
            return;
        }
        match stage {
            Stage::Accepted | Stage::Init(_) => self.containers_stopped(index, false),
            Stage::Running { .. } | Stage::BackOff => return self.stop_containers(index),
            Stage::Ended => {
                // Nothing changes but that the pod may be deleted.
                if let Some(pod) = self.pods.at(index) {
                    pod.stage = Stage::Stopped { was_started: true };
                }
            }
            Stage::Stopped { .. } | Stage::Gone => {}
        }
        self.report(index);
    }

    fn stop_containers(&mut self, index: u32) {
        self.record_stop(index);
        let Some(pod) = self.pods.at(index) else { return };
        let grace = pod.deletion.unwrap_or_default();
        let needed = ticks(pod.plan.behaviour.termination_delay);
        pod.exit_code = if needed > grace { KILLED } else { 0 };
        self.schedule_pod(index, needed.min(grace));
    }

    fn containers_stopped(&mut self, index: u32, was_started: bool) {
        let seconds = self.now.seconds;
        self.change_pod(index, |pod| {
            pod.stage = Stage::Stopped { was_started };
            pod.due = NEVER;
            (pod.times.ended, pod.times.ready) = (seconds, seconds);
        });
        self.unregister_pod(index);
    }
}

/// The delay before containers are started that were started again so often.
fn back_off(restarts: u32) -> Duration {
    match restarts.checked_sub(1) {
        None => Duration::ZERO,
        Some(doublings) => FIRST_BACK_OFF.saturating_mul(1 << doublings.min(8)).min(LAST_BACK_OFF),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_back_off_doubles() {
        let delays: Vec<u64> = [0, 1, 2, 3, 6, 100].map(|it| back_off(it).as_secs()).to_vec();
        assert_eq!(delays, [0, 10, 20, 40, 300, 300]);
    }
}
