//! The start of a node: it is registered, gets its Lease and its CSINode, and reports that it is ready.

use std::time::Duration;

use crate::api::{self, Uid};
use crate::client::Outcome;
use crate::time::{Ticks, ticks};

use super::node::{NEVER, State, Step};
use super::requests;
use super::simulation::Simulation;
use super::ticket::{Call, Output};

/// The delays of kubelet's registration and of its Lease controller after failures: from the first to
/// the last, doubling.
const FIRST_DELAY: Duration = Duration::from_millis(200);
const LAST_DELAY: Duration = Duration::from_secs(7);

/// Whether an outcome has this status.
pub fn has_status(outcome: &Outcome<'_>, status: u16) -> bool {
    matches!(outcome, Outcome::Answered(answer) if answer.status == status)
}

/// The body of an answer with one of these statuses.
pub fn body<'a>(outcome: &Outcome<'a>, statuses: &[u16]) -> Option<&'a [u8]> {
    match outcome {
        Outcome::Answered(answer) if statuses.contains(&answer.status) => Some(answer.body),
        _ => None,
    }
}

impl Simulation {
    /// Starts nodes that wait, as far as the limit allows. The first ones wait until it is known which nodes
    /// exist.
    pub(super) fn admit(&mut self) {
        while self.is_synced && self.unread == 0 && self.starting < self.settings.start_concurrency
        {
            let Some(id) = self.waiting.pop_front() else { return };
            // A node that was stopped, removed or started meanwhile may still be in the queue.
            if self.node(id).state == State::Waiting {
                self.begin(id);
            }
        }
    }

    fn begin(&mut self, id: u32) {
        let node = self.node_mut(id);
        node.failures = 0;
        node.tries = 0;
        if self.runs_at_once(id) {
            return;
        }
        let node = self.node_mut(id);
        node.flags.must_read_lease = !std::mem::take(&mut node.flags.has_lease);
        // The first renewals come after the Lease was read.
        node.flags.is_second_round = true;
        // A kubelet always tries to register. A node without a connection of its own is known to
        // exist from the shared watch.
        let (is_wire, exists) = (node.flags.is_wire, node.flags.exists);
        let step = if exists && !is_wire { Step::Slices } else { Step::Register };
        if is_wire {
            self.put_output(Output::Open(id));
            self.watch_objects_of(id);
        }
        self.record_kubelet_start(id);
        self.set_state(id, State::Starting(step));
        self.take_step(id);
    }

    /// Sends the request of the current step, unless one is in flight.
    pub(super) fn take_step(&mut self, id: u32) {
        let State::Starting(step) = self.node(id).state else { return };
        if self.node(id).flags.lease_busy {
            return;
        }
        let name = self.node(id).name.clone();
        let (call, request) = match step {
            Step::Register => {
                let number = self.settings.names.number(&name).unwrap_or(id);
                let request = requests::create_node(&name, number, &self.settings, self.now);
                (Call::CreateNode, request)
            }
            Step::Read => (Call::GetNode, requests::get_node(&name)),
            Step::Slices => (Call::DeleteSlices, requests::delete_slices(&name)),
            Step::Lease => return self.take_lease_step(id),
            Step::CsiNode => (Call::GetCsiNode, requests::get_csi_node(&name)),
            Step::Pods => (Call::ListPods, requests::list_pods(&name)),
            Step::Status => return self.report_status(id),
        };
        self.node_mut(id).flags.lease_busy = true;
        self.send(id, call, request);
    }

    /// Notes that the request of a step has its outcome. Returns whether the node still takes this step.
    pub(super) fn ends_step(&mut self, id: u32, step: Step) -> bool {
        self.node_mut(id).flags.lease_busy = false;
        let state = self.node(id).state;
        if state == State::Starting(step) {
            return true;
        }
        // The node was stopped and started again meanwhile.
        self.take_step(id);
        false
    }

    pub(super) fn next_step(&mut self, id: u32, step: Step) {
        self.node_mut(id).failures = 0;
        self.set_state(id, State::Starting(step));
        self.take_step(id);
    }

    pub(super) fn on_node_created(&mut self, id: u32, outcome: Outcome<'_>) {
        if !self.ends_step(id, Step::Register) {
            return;
        }
        if let Some(body) = body(&outcome, &[201]) {
            self.node_mut(id).flags.has_capacity = true;
            return self.adopt(id, body);
        }
        match has_status(&outcome, 409) {
            true => self.next_step(id, Step::Read),
            false => self.step_failed(id, outcome),
        }
    }

    pub(super) fn on_node_read(&mut self, id: u32, outcome: Outcome<'_>) {
        if !self.ends_step(id, Step::Read) {
            return;
        }
        match body(&outcome, &[200]) {
            Some(body) => self.adopt(id, body),
            None if has_status(&outcome, 404) => self.next_step(id, Step::Register),
            None => self.step_failed(id, outcome),
        }
    }

    /// Goes on with the Node that the server has.
    fn adopt(&mut self, id: u32, body: &[u8]) {
        let node = api::decode::<api::Node>(body).unwrap_or_default();
        let is_ready = node.is_ready();
        let metadata = node.metadata.unwrap_or_default();
        let labels = self.share_labels(metadata.labels);
        let has_capacity = node.status.is_some_and(|status| !status.capacity.is_empty());
        let state = self.node_mut(id);
        state.uid = metadata.uid.parse().unwrap_or_default();
        state.labels = labels;
        state.flags.exists = true;
        (state.flags.is_seen, state.flags.is_ready) = (true, is_ready);
        state.flags.has_capacity |= has_capacity;
        self.next_step(id, Step::Slices);
    }

    /// Goes on whatever the server answers: it may have no such resource. kubelet tries again in the
    /// background.
    pub(super) fn on_slices_deleted(&mut self, id: u32, outcome: Outcome<'_>) {
        if !self.ends_step(id, Step::Slices) {
            return;
        }
        match outcome {
            Outcome::Answered(answer) if answer.status < 500 && answer.status != 429 => {
                self.record_allocatable(id);
                self.next_step(id, Step::Lease);
            }
            outcome => self.step_failed(id, outcome),
        }
    }

    /// Goes on after the Lease.
    pub(super) fn start_has_lease(&mut self, id: u32) {
        if self.node(id).state == State::Starting(Step::Lease) {
            let step = self.step_after_lease(id);
            self.next_step(id, step);
        }
    }

    pub(super) fn on_csi_node_read(&mut self, id: u32, outcome: Outcome<'_>) {
        if !self.ends_step(id, Step::CsiNode) {
            return;
        }
        if has_status(&outcome, 404) {
            let (name, uid) = (self.node(id).name.clone(), self.node(id).uid);
            self.node_mut(id).flags.lease_busy = true;
            return self.send(id, Call::CreateCsiNode, requests::create_csi_node(&name, uid));
        }
        self.csi_node_exists(id, has_status(&outcome, 200), outcome);
    }

    pub(super) fn on_csi_node_created(&mut self, id: u32, outcome: Outcome<'_>) {
        if self.ends_step(id, Step::CsiNode) {
            let exists = has_status(&outcome, 201) || has_status(&outcome, 409);
            self.csi_node_exists(id, exists, outcome);
        }
    }

    fn csi_node_exists(&mut self, id: u32, exists: bool, outcome: Outcome<'_>) {
        if !exists {
            return self.step_failed(id, outcome);
        }
        let step = self.step_after_csi_node(id);
        self.next_step(id, step);
    }

    pub(super) fn step_after_csi_node(&mut self, id: u32) -> Step {
        let flags = &mut self.node_mut(id).flags;
        flags.reports_all = true;
        if flags.must_list_pods { Step::Pods } else { Step::Status }
    }

    /// Takes the step again later.
    pub(super) fn step_failed(&mut self, id: u32, outcome: Outcome<'_>) {
        if let Outcome::Answered(answer) = &outcome
            && matches!(answer.status, 401 | 403 | 422)
        {
            let (node, status) = (&self.node(id).name, answer.status);
            let reason = api::status_message(answer.body);
            tracing::warn!(%node, status, %reason, "the start of a node was refused, retrying");
        }
        let delay = self.back_off(id, &outcome);
        self.schedule_lease(id, delay);
    }

    /// The delay before the next attempt, which doubles with each one, or that for which the server asks.
    pub(super) fn back_off(&mut self, id: u32, outcome: &Outcome<'_>) -> Ticks {
        let node = self.node_mut(id);
        let delay = FIRST_DELAY.saturating_mul(1 << node.failures.min(10)).min(LAST_DELAY);
        node.failures = node.failures.saturating_add(1);
        let asked = match outcome {
            Outcome::Answered(answer) => answer.retry_after.unwrap_or_default(),
            Outcome::Failed(_) => 0,
        };
        ticks(delay.max(Duration::from_secs(asked.into())))
    }

    /// The node runs: its pods go on.
    pub(super) fn node_runs(&mut self, id: u32) {
        self.set_state(id, State::Running);
        let is_timer_missing = self.node(id).lease_due == NEVER;
        if is_timer_missing && !self.node(id).flags.lease_busy {
            self.schedule_lease(id, 1);
        }
        self.resume_pods_of(id);
        self.admit();
    }

    /// Whether a Node is another one than the simulation knows by this name.
    pub(super) fn is_another(&self, id: u32, uid: Uid) -> bool {
        let node = self.node(id);
        node.flags.exists && node.uid != uid
    }
}
