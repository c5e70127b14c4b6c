//! The status of a node: reported when it changes, and otherwise every five minutes, or as the settings say.

use std::time::Duration;

use crate::client::Outcome;
use crate::time::{Ticks, ticks};

use super::node::{NEVER, State, Step};
use super::requests;
use super::simulation::Simulation;
use super::start::has_status;
use super::ticket::Call;

/// kubelet's `nodeStatusUpdateFrequency`: how often it looks whether there is something to report.
const UPDATE_FREQUENCY: Duration = Duration::from_secs(10);

impl Simulation {
    /// The timer of the status.
    pub(super) fn on_status_timer(&mut self, id: u32, due: Ticks) {
        if self.node(id).status_due != due {
            return;
        }
        self.node_mut(id).status_due = NEVER;
        if matches!(self.node(id).state, State::Running | State::Starting(Step::Status)) {
            self.report_status(id);
        }
    }

    /// Reports the status, unless a report is in flight.
    pub(super) fn report_status(&mut self, id: u32) {
        if self.node(id).flags.status_busy {
            return;
        }
        let node = self.node_mut(id);
        node.flags.status_busy = true;
        node.status_due = NEVER;
        node.flags.becomes_ready = node.flags.reports_all && !node.flags.is_ready;
        let (name, flags) = (node.name.clone(), node.flags);
        let request = match flags.reports_all {
            true => requests::report_all(&name, !flags.has_capacity, &self.settings, self.now),
            false => requests::report_heartbeat(&name, self.now),
        };
        self.send(id, Call::PatchNode, request);
    }

    pub(super) fn on_status_reported(&mut self, id: u32, outcome: Outcome<'_>) {
        let flags = &mut self.node_mut(id).flags;
        flags.status_busy = false;
        let must_correct = std::mem::take(&mut flags.must_correct);
        let state = self.node(id).state;
        if !matches!(state, State::Running | State::Starting(Step::Status)) {
            return;
        }
        if !has_status(&outcome, 200) {
            self.node_mut(id).flags.reports_all |= must_correct;
            return self.schedule_status(id, ticks(UPDATE_FREQUENCY));
        }
        let flags = &mut self.node_mut(id).flags;
        flags.has_capacity = true;
        let has_changed = std::mem::take(&mut flags.reports_all);
        flags.is_ready |= has_changed;
        let becomes_ready = flags.becomes_ready;
        let frequency = self.settings.status_frequency;
        let delay = ticks(frequency) + self.node(id).delay;
        // After a change, kubelet adds a random time between minus and plus half of the period, so that
        // nodes that were started together do not report together.
        let delay = match has_changed {
            true => delay - ticks(frequency / 2) + self.random_part(frequency),
            false => delay,
        };
        self.schedule_status(id, delay);
        if becomes_ready {
            self.record_ready(id);
        }
        if state != State::Running {
            self.node_runs(id);
        } else if must_correct {
            self.correct_status(id);
        }
    }

    /// Reports the complete status within the time in which kubelet would notice that the Node says
    /// something else. If a report is in flight, which may be of another kind, that time begins with
    /// its answer.
    pub(super) fn correct_status(&mut self, id: u32) {
        let is_running = self.node(id).state == State::Running;
        let flags = &mut self.node_mut(id).flags;
        if is_running && flags.status_busy {
            flags.must_correct = true;
        } else if is_running && !flags.reports_all {
            flags.reports_all = true;
            let delay = self.random_part(UPDATE_FREQUENCY);
            self.schedule_status(id, delay);
        }
    }
}
