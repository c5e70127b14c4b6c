//! What watches of pods show.

use crate::api::{self, Uid};
use crate::rules::Subject;
use crate::time::ticks;

use super::node::{NEVER, Node, State};
use super::pod::{Plan, Pod, RestartPolicy, Stage, Times};
use super::references::{references, tokens};
use super::simulation::Simulation;
use super::ticket::PodId;
use super::token::Token;

/// An event of a watch of pods.
#[derive(Debug)]
pub enum PodChange {
    /// The watch begins with the state of all pods that it selects.
    Began,
    /// A pod was created or changed.
    Set(Box<api::Pod>),
    /// A pod was deleted.
    Deleted(Box<api::Pod>),
    /// The state with which the watch began is complete.
    Synced,
}

impl Simulation {
    /// Handles an event of the watch of a node, or of the watch that nodes without one share.
    pub fn pod_changed(&mut self, watch_of: Option<u32>, change: PodChange) {
        match change {
            PodChange::Began => self.mark_pods(watch_of),
            PodChange::Set(pod) => self.pod_was_set(watch_of, *pod),
            PodChange::Deleted(pod) => {
                let uid = pod.metadata.unwrap_or_default().uid.parse::<Uid>();
                let Ok(uid) = uid else { return };
                self.note_deleted_pod(uid);
                if let Some(index) = self.pods.by_uid.get(&uid).copied() {
                    self.forget_pod(index);
                }
            }
            PodChange::Synced => self.forget_unseen_pods(watch_of),
        }
    }

    /// The slots of the pods that a watch selects.
    fn pods_of(&self, watch_of: Option<u32>) -> Vec<u32> {
        if let Some(node) = watch_of {
            return self.node(node).pods.clone();
        }
        let shares = |node: &&Node| !node.flags.is_wire;
        self.nodes.iter().filter(shares).flat_map(|node| &node.pods).copied().collect()
    }

    fn mark_pods(&mut self, watch_of: Option<u32>) {
        for index in self.pods_of(watch_of) {
            if let Some(pod) = self.pods.at(index) {
                pod.is_seen = false;
            }
        }
    }

    fn forget_unseen_pods(&mut self, watch_of: Option<u32>) {
        for index in self.pods_of(watch_of) {
            if self.pods.at(index).is_some_and(|pod| !pod.is_seen) {
                self.forget_pod(index);
            }
        }
    }

    fn pod_was_set(&mut self, watch_of: Option<u32>, pod: api::Pod) {
        let (metadata, spec) = (pod.metadata.unwrap_or_default(), pod.spec.unwrap_or_default());
        let Ok(uid) = metadata.uid.parse::<Uid>() else { return };
        // If the node becomes known later, its pods are read then.
        let Some(node) = self.names.get(&*spec.node_name).copied() else { return };
        if !is_of(watch_of, node, self.is_wire(node)) {
            return;
        }
        let grace = metadata.deletion_timestamp.map(|_| {
            let seconds = metadata.deletion_grace_period_seconds.unwrap_or_default();
            (seconds.max(0) as u64).saturating_mul(100).min(u32::MAX.into()) as u32
        });
        let generation = metadata.generation;
        let status = pod.status.unwrap_or_default();
        let index = match self.pods.by_uid.get(&uid).copied() {
            Some(index) => {
                self.compare_status(index, &status);
                index
            }
            None => {
                let tokens = tokens(&spec).into_iter().map(Token::new).collect();
                let plan = self.plan(&metadata, spec);
                let made = Pod { tokens, ..made(node, uid, &metadata, plan) };
                self.add_pod(made, &status)
            }
        };
        let Some(pod) = self.pods.at(index) else { return };
        pod.is_seen = true;
        pod.generation = generation;
        if pod.deletion.is_none() && grace.is_some() {
            pod.deletion = grace;
            self.stop_pod(index);
        }
    }

    fn plan(&self, metadata: &api::ObjectMeta, mut spec: api::PodSpec) -> Plan {
        let references = references(&spec).into();
        for container in spec.containers.iter_mut().chain(&mut spec.init_containers) {
            (container.env, container.env_from) = (Vec::new(), Vec::new());
        }
        let owners = &metadata.owner_references;
        let is_of_job = owners.iter().any(|it| it.kind == "Job" && it.controller == Some(true));
        let (namespace, labels) = (&*metadata.namespace, &metadata.labels);
        Plan {
            containers: spec.containers,
            init_containers: spec.init_containers,
            restart_policy: match &*spec.restart_policy {
                "Never" => RestartPolicy::Never,
                "OnFailure" => RestartPolicy::OnFailure,
                _ => RestartPolicy::Always,
            },
            host_network: spec.host_network,
            service_account: spec.service_account_name.into(),
            references,
            behaviour: self.settings.rules.behaviour(&Subject { namespace, labels, is_of_job }),
        }
    }

    /// Adds a pod in the stage that its status says, for example after a restart of the simulator.
    fn add_pod(&mut self, mut pod: Pod, status: &api::PodStatus) -> u32 {
        let seen = status.start_time.map(|time| time.seconds.max(0) as u64);
        pod.times.seen = seen.unwrap_or(self.now.seconds);
        pod.ip = status.pod_ip.parse().ok();
        if let Some(ip) = pod.ip {
            self.addresses.note(ip);
        }
        match &*status.phase {
            "Running" => {
                pod.stage = Stage::Running { is_ready: status.is_ready() };
                let now = self.now.seconds;
                pod.times = Times { initialized: now, started: now, ready: now, ..pod.times };
            }
            "Succeeded" => pod.stage = Stage::Ended,
            "Failed" => (pod.stage, pod.exit_code) = (Stage::Ended, 1),
            _ => pod.is_changed = true,
        }
        let node = pod.node;
        self.metrics.pods.with_label_values(&[pod.phase()]).inc();
        let PodId { index, .. } = self.pods.add(|id| Pod { id, ..pod });
        self.node_mut(node).pods.push(index);
        self.mount_volumes(index);
        self.schedule_first(index);
        self.report(index);
        index
    }

    /// Gets what the volumes of a pod contain.
    fn mount_volumes(&mut self, index: u32) {
        match self.pods.at(index).map(|pod| pod.stage) {
            Some(Stage::Accepted) => self.request_tokens(index),
            Some(Stage::Running { .. }) => self.request_tokens_later(index),
            _ => return,
        }
        self.register_pod(index);
    }

    fn schedule_first(&mut self, index: u32) {
        let now = self.now.tick;
        let Some(pod) = self.pods.at(index) else { return };
        let behaviour = &pod.plan.behaviour;
        let delay = match pod.stage {
            Stage::Accepted => ticks(behaviour.start_delay),
            Stage::Running { is_ready } => {
                pod.ends = behaviour.run_time.map_or(NEVER, |time| now + ticks(time));
                match is_ready {
                    false => ticks(behaviour.readiness_delay),
                    true if pod.ends == NEVER => return,
                    true => pod.ends - now,
                }
            }
            _ => return,
        };
        self.schedule_pod(index, delay);
    }

    /// Forgets a pod that does not exist any more.
    pub(super) fn forget_pod(&mut self, index: u32) {
        self.unregister_pod(index);
        let Some(pod) = self.pods.remove(index) else { return };
        self.metrics.pods.with_label_values(&[pod.phase()]).dec();
        if let Some(ip) = pod.ip.filter(|_| pod.stage != Stage::Gone) {
            self.addresses.give(ip);
        }
        self.node_mut(pod.node).pods.retain(|it| *it != index);
    }

    /// Forgets the pods of a node that does not exist any more.
    pub(super) fn forget_pods_of(&mut self, node: u32) {
        let pods = std::mem::take(&mut self.node_mut(node).pods);
        pods.into_iter().for_each(|index| self.forget_pod(index));
    }

    /// Lets the pods of a node go on that has started.
    pub(super) fn resume_pods_of(&mut self, node: u32) {
        for index in self.node(node).pods.clone() {
            let now = self.now.tick;
            let Some(pod) = self.pods.at(index) else { continue };
            let is_overdue = pod.due <= now;
            pod.is_changed |= std::mem::take(&mut pod.is_outdated);
            if pod.deletion.is_some() {
                self.stop_pod(index);
            } else if is_overdue {
                self.schedule_pod(index, 1);
            }
            self.request_tokens(index);
            self.start_with_tokens(index);
            self.report(index);
        }
    }

    /// Whether the node of a pod runs.
    pub(super) fn is_running(&self, node: u32) -> bool {
        self.node(node).state == State::Running
    }
}

/// Whether a watch selects the pods of a node.
fn is_of(watch_of: Option<u32>, node: u32, is_wire: bool) -> bool {
    match watch_of {
        Some(id) => id == node,
        None => !is_wire,
    }
}

fn made(node: u32, uid: Uid, metadata: &api::ObjectMeta, plan: Plan) -> Pod {
    Pod {
        id: PodId { index: 0, generation: 0 },
        node,
        uid,
        namespace: metadata.namespace.as_str().into(),
        name: metadata.name.as_str().into(),
        generation: metadata.generation,
        plan,
        stage: Stage::Accepted,
        due: NEVER,
        report_due: NEVER,
        sync_due: NEVER,
        ends: NEVER,
        ip: None,
        times: Times::default(),
        restarts: 0,
        exit_code: 0,
        deletion: None,
        is_busy: false,
        is_changed: false,
        is_outdated: false,
        is_seen: true,
        tokens: Vec::new(),
        waits_for_tokens: false,
        is_registered: false,
    }
}
