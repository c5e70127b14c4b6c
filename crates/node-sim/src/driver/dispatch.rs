//! The driver: what enters the simulation and what leaves it.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval};

use crate::certificates::Authority;
use crate::client::{Failure, Limit, Link, Observer, Outcome, Part, Receiver};
use crate::kubeconfig::Kubeconfig;
use crate::metrics::Metrics;
use crate::sim::{Call, Fault, Output, Selection, Settings, Simulation, Ticket, WireNodes};
use crate::time::{Clock, TICK};

use super::shared_links::SharedLinks;
use super::shared_watches::SharedWatches;
use super::tag::Tag;
use super::wires::Wires;

/// The time between two warnings about connections.
const WARNING_INTERVAL: Duration = Duration::from_secs(5);

/// What the driver needs.
pub struct Setup {
    /// The settings of the simulation.
    pub settings: Settings,
    /// The API server, and the identity of nodes that share connections.
    pub kubeconfig: Kubeconfig,
    /// Issues certificates to nodes with a connection of their own.
    pub authority: Option<Authority>,
    /// The number of connections that nodes share for heartbeats, and that for other requests.
    pub connections: usize,
    /// The metrics of the process.
    pub metrics: Arc<Metrics>,
    /// Set while all nodes have been started.
    pub is_ready: Arc<AtomicBool>,
    /// Faults.
    pub commands: mpsc::UnboundedReceiver<Command>,
    /// Decides what is random.
    pub seed: u64,
}

/// A fault that shall be injected.
pub struct Command {
    /// Which nodes.
    pub selection: Selection,
    /// What happens to them.
    pub fault: Fault,
    /// Gets the number of nodes.
    pub reply: oneshot::Sender<usize>,
}

/// Connects the simulation with the API server.
pub struct Driver {
    pub(super) me: Weak<Driver>,
    pub(super) simulation: RefCell<Simulation>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) shared: RefCell<SharedWatches>,
    pub(super) wires: RefCell<Wires>,
    /// The connection of shared watches, so that their events delay no answers.
    pub(super) watch_link: Rc<Link<Tag>>,
    /// The connections that nodes share for heartbeats, so that pods delay no heartbeats.
    heartbeat_links: SharedLinks,
    /// The connections that nodes share for other requests.
    links: SharedLinks,
    clock: Clock,
    is_ready: Arc<AtomicBool>,
    last_warning: Cell<Option<Instant>>,
}

impl Driver {
    /// Runs the simulation for ever. Must be called within a `LocalSet`.
    ///
    /// # Errors
    /// If the certificate of the kubeconfig cannot be used.
    pub async fn run(setup: Setup) -> Result<()> {
        let endpoint = Rc::new(setup.kubeconfig.endpoint()?);
        let link = || Link::new(endpoint.clone());
        let has_shared_pods = setup.settings.wire != WireNodes::All;
        let mut commands = setup.commands;
        let driver = Rc::new_cyclic(|me| Driver {
            me: me.clone(),
            simulation: Simulation::new(setup.settings, setup.metrics.clone(), setup.seed).into(),
            metrics: setup.metrics,
            shared: SharedWatches::new(has_shared_pods).into(),
            wires: Wires::new(&setup.kubeconfig, setup.authority).into(),
            watch_link: link(),
            heartbeat_links: SharedLinks::new((0..setup.connections).map(|_| link())),
            links: SharedLinks::new((0..setup.connections).map(|_| link())),
            clock: Clock::start(),
            is_ready: setup.is_ready,
            last_warning: Cell::new(None),
        });
        let links = driver.heartbeat_links.all().chain(driver.links.all());
        for link in links.chain([&driver.watch_link]) {
            driver.spawn(link);
        }
        driver.open_node_watch();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                _ = ticks.tick() => driver.tick(),
                Some(command) = commands.recv() => driver.execute(command),
            }
        }
    }

    /// Starts the task of a link.
    pub(super) fn spawn(&self, link: &Rc<Link<Tag>>) {
        // The driver exists as long as one of its methods is called.
        let Some(driver) = self.me.upgrade() else { return };
        tokio::task::spawn_local(link.clone().run(driver.clone(), driver));
    }

    fn tick(&self) {
        self.with_simulation(Simulation::advance);
        let is_ready = self.simulation.borrow().is_ready();
        if is_ready && !self.is_ready.swap(is_ready, Relaxed) {
            tracing::info!("all nodes have been started");
        }
        self.is_ready.store(is_ready, Relaxed);
    }

    fn execute(&self, command: Command) {
        let Command { selection, fault, reply } = command;
        let mut nodes = 0;
        self.with_simulation(|simulation| nodes = simulation.inject(&selection, fault));
        // The client may not wait any more.
        let _ = reply.send(nodes);
    }

    /// Passes an input to the simulation, and does what it wants.
    pub(super) fn with_simulation(&self, input: impl FnOnce(&mut Simulation)) {
        let mut outputs = {
            let mut simulation = self.simulation.borrow_mut();
            simulation.set_now(self.clock.now());
            input(&mut simulation);
            simulation.take_output()
        };
        while !outputs.is_empty() {
            let failed: Vec<Ticket> =
                outputs.into_iter().filter_map(|output| self.handle(output)).collect();
            let mut simulation = self.simulation.borrow_mut();
            for ticket in failed {
                simulation.answered(ticket, Outcome::Failed(Failure::Connection));
            }
            outputs = simulation.take_output();
        }
    }

    /// Does what the simulation wants. Returns the ticket of a request that cannot be sent.
    fn handle(&self, output: Output) -> Option<Ticket> {
        match output {
            Output::Request(ticket, request) => {
                let limit = limit(ticket.call);
                match self.link(ticket.node, limit) {
                    Some(link) => link.send(Tag::Call(ticket), request, limit),
                    None => return Some(ticket),
                }
            }
            Output::ReadExisting => self.read_existing(),
            Output::Open(node) => self.open_wire(node),
            Output::Close(node) => self.wires.borrow_mut().close(node),
            Output::Watch(node, object) => self.watch_object(node, object),
            Output::Unwatch(node, object) => self.unwatch_object(node, object),
        }
        None
    }

    /// The connection for a request of a node.
    fn link(&self, node: u32, limit: Limit) -> Option<Rc<Link<Tag>>> {
        if self.simulation.borrow().is_wire(node) {
            return self.wires.borrow().link(node);
        }
        let links = match limit {
            Limit::Heartbeat => &self.heartbeat_links,
            Limit::Ordinary | Limit::Watch => &self.links,
        };
        links.next(self.clock.tick())
    }
}

/// The time limit of kubelet's client for a request. Leases and the status of nodes have a client of
/// their own (`heartbeatClient` in `cmd/kubelet/app/server.go`).
fn limit(call: Call) -> Limit {
    match call {
        Call::GetLease | Call::CreateLease | Call::RenewLease | Call::PatchNode => Limit::Heartbeat,
        _ => Limit::Ordinary,
    }
}

impl Receiver<Tag> for Driver {
    fn answered(&self, tag: Tag, outcome: Outcome<'_>) {
        if let Tag::Call(ticket) = tag {
            self.metrics.request(ticket.call.labels(), &outcome);
            self.with_simulation(|simulation| simulation.answered(ticket, outcome));
        }
    }

    fn watched(&self, tag: Tag, part: Part<'_>) {
        if let Tag::Watch(id) = tag {
            match part {
                Part::Bytes(bytes) => self.on_watch_bytes(id, bytes),
                Part::Ended(end) => self.on_watch_end(id, end),
            }
        }
    }
}

impl Observer for Driver {
    fn opened(&self) {
        self.metrics.connections.inc();
    }

    fn closed(&self, result: &Result<()>) {
        self.metrics.connections.dec();
        if let Err(error) = result {
            self.warn("a connection ended", error);
        }
    }

    fn dial_failed(&self, error: &anyhow::Error) {
        self.metrics.dial_failures.inc();
        self.warn("failed to connect to the API server, retrying", error);
    }
}

impl Driver {
    /// Logs a warning, unless there was one shortly before: thousands of connections fail together.
    pub(super) fn warn(&self, message: &'static str, error: &anyhow::Error) {
        let now = Instant::now();
        let is_due = |last: Instant| now >= last + WARNING_INTERVAL;
        if self.last_warning.get().is_none_or(is_due) {
            self.last_warning.set(Some(now));
            tracing::warn!(error = format!("{error:#}"), "{message}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_leases_and_the_status_of_nodes_are_heartbeats() {
        let calls = [Call::GetLease, Call::CreateLease, Call::RenewLease, Call::PatchNode];
        assert!(calls.into_iter().all(|call| limit(call) == Limit::Heartbeat));
        let calls = [Call::CreateNode, Call::GetCsiNode, Call::ListPods, Call::CreateEvent];
        assert!(calls.into_iter().all(|call| limit(call) == Limit::Ordinary));
    }
}
