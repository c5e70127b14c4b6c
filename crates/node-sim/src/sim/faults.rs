//! Faults: nodes that stop, start again, flap or are slow.

use std::time::Duration;

use rand::seq::IteratorRandom as _;

use crate::selector::Selector;
use crate::time::{Ticks, ticks};

use super::node::{Flap, NEVER, State};
use super::simulation::Simulation;
use super::ticket::Output;
use super::wheel::Timer;

const ZONE: &str = "topology.kubernetes.io/zone";
const HOSTNAME: &str = "kubernetes.io/hostname";

/// Which nodes have a fault: those that meet all conditions, or so many of them at random.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// The names; `None` for all nodes.
    pub names: Option<Vec<String>>,
    /// The zone.
    pub zone: Option<String>,
    /// The labels.
    pub selector: Selector,
    /// How many nodes; `None` for all.
    pub count: Option<usize>,
}

/// What happens to nodes.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// They do nothing.
    Stop,
    /// All faults end.
    Start,
    /// They stop and start again and again.
    Flap {
        /// For how long they do nothing.
        down: Duration,
        /// For how long they run.
        up: Duration,
    },
    /// They do everything later.
    Slow {
        /// By this time.
        delay: Duration,
    },
}

impl Simulation {
    /// Injects a fault. Returns the number of nodes that it concerns.
    pub fn inject(&mut self, selection: &Selection, fault: Fault) -> usize {
        let nodes = self.select(selection, fault);
        for id in &nodes {
            self.apply(*id, fault);
        }
        tracing::info!(?fault, nodes = nodes.len(), "fault injected");
        nodes.len()
    }

    /// The nodes of a selection. Only nodes that the fault changes are counted.
    fn select(&mut self, selection: &Selection, fault: Fault) -> Vec<u32> {
        let candidates: Vec<u32> = match &selection.names {
            Some(names) => names.iter().filter_map(|it| self.names.get(&**it).copied()).collect(),
            None => (0..self.nodes.len() as u32).collect(),
        };
        let selected = |id: &u32| {
            let node = self.node(*id);
            let zone = selection.zone.as_ref();
            let changes = match fault {
                Fault::Stop => node.state != State::Stopped || self.flaps.contains_key(id),
                Fault::Start => self.has_fault(*id),
                Fault::Flap { .. } | Fault::Slow { .. } => true,
            };
            node.state != State::Free
                && changes
                && zone.is_none_or(|zone| node.labels.get(ZONE) == Some(zone))
                && self.has_labels(*id, &selection.selector)
        };
        let selected: Vec<u32> = candidates.into_iter().filter(selected).collect();
        match selection.count {
            Some(count) => selected.into_iter().sample(&mut self.random, count),
            None => selected,
        }
    }

    fn has_fault(&self, id: u32) -> bool {
        let node = self.node(id);
        node.state == State::Stopped || node.delay > 0 || self.flaps.contains_key(&id)
    }

    fn has_labels(&self, id: u32, selector: &Selector) -> bool {
        let node = self.node(id);
        if *selector == Selector::default() {
            return true;
        }
        let mut labels = (*node.labels).clone();
        labels.insert(HOSTNAME.to_owned(), node.name.to_string());
        selector.matches(&labels)
    }

    fn apply(&mut self, id: u32, fault: Fault) {
        match fault {
            Fault::Stop => {
                self.flaps.remove(&id);
                self.stop_node(id);
            }
            Fault::Start => {
                self.flaps.remove(&id);
                self.end_delay(id);
                self.start_node(id);
            }
            Fault::Flap { down, up } => {
                self.stop_node(id);
                let flap = Flap { down: ticks(down).max(1), up: ticks(up).max(1), due: 0 };
                self.schedule_flap(id, flap, flap.down);
            }
            Fault::Slow { delay } => self.node_mut(id).delay = ticks(delay),
        }
    }

    /// A node is not slow any more: what was scheduled with the delay comes earlier.
    fn end_delay(&mut self, id: u32) {
        let delay = std::mem::take(&mut self.node_mut(id).delay);
        if delay == 0 {
            return;
        }
        let now = self.now.tick;
        let rest = move |due: Ticks| (due != NEVER).then(|| due.saturating_sub(delay + now));
        let (lease, status) = (self.node(id).lease_due, self.node(id).status_due);
        rest(lease).into_iter().for_each(|rest| self.schedule_lease(id, rest));
        rest(status).into_iter().for_each(|rest| self.schedule_status(id, rest));
        for index in self.node(id).pods.clone() {
            let due = self.pods.at(index).map_or(NEVER, |pod| pod.due);
            rest(due).into_iter().for_each(|rest| self.schedule_pod(index, rest));
        }
    }

    fn schedule_flap(&mut self, id: u32, flap: Flap, delay: Ticks) {
        let due = self.now.tick + delay;
        self.flaps.insert(id, Flap { due, ..flap });
        self.wheel.add(due, Timer::Flap(id));
    }

    /// A node that flaps stops or starts.
    pub(super) fn on_flap_timer(&mut self, id: u32, due: Ticks) {
        let Some(flap) = self.flaps.get(&id).copied().filter(|flap| flap.due == due) else {
            return;
        };
        if self.node(id).state == State::Stopped {
            self.start_node(id);
            self.schedule_flap(id, flap, flap.up);
        } else {
            self.stop_node(id);
            self.schedule_flap(id, flap, flap.down);
        }
    }

    fn stop_node(&mut self, id: u32) {
        if self.node(id).state == State::Stopped {
            return;
        }
        let is_connected = self.node(id).state != State::Waiting && self.is_wire(id);
        self.set_state(id, State::Stopped);
        if is_connected {
            self.put_output(Output::Close(id));
        }
        self.admit();
    }

    fn start_node(&mut self, id: u32) {
        if self.node(id).state == State::Stopped {
            self.set_state(id, State::Waiting);
            self.waiting.push_back(id);
            self.admit();
        }
    }
}
