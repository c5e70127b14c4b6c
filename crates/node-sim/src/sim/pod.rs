//! The state of one pod.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use crate::api::{Container, Uid};
use crate::rules::Behaviour;
use crate::time::Ticks;

use super::references::Reference;
use super::ticket::PodId;
use super::token::Token;

/// A pod on a simulated node.
pub struct Pod {
    /// Its slot.
    pub id: PodId,
    /// The slot of its node.
    pub node: u32,
    /// The UID.
    pub uid: Uid,
    /// The namespace.
    pub namespace: Box<str>,
    /// The name.
    pub name: Box<str>,
    /// `metadata.generation`.
    pub generation: i64,
    /// What runs in it.
    pub plan: Plan,
    /// What it does.
    pub stage: Stage,
    /// When the stage ends.
    pub due: Ticks,
    /// When a failed report is repeated.
    pub report_due: Ticks,
    /// When a status that somebody else has changed is reported again.
    pub sync_due: Ticks,
    /// When the containers end.
    pub ends: Ticks,
    /// Its IP address; `None` until it has one.
    pub ip: Option<Ipv4Addr>,
    /// Its tokens.
    pub tokens: Vec<Token>,
    /// The times in the status.
    pub times: Times,
    /// How often the containers were started again.
    pub restarts: u32,
    /// The exit code of the containers that ended last.
    pub exit_code: i32,
    /// The grace period, if the pod is being deleted.
    pub deletion: Option<Ticks>,
    /// Whether a request is in flight.
    pub is_busy: bool,
    /// Whether the status has changed since the last report.
    pub is_changed: bool,
    /// Whether the watch has shown another status.
    pub is_outdated: bool,
    /// Whether the last watch from the beginning has shown the pod.
    pub is_seen: bool,
    /// Whether its containers start when it has its tokens.
    pub waits_for_tokens: bool,
    /// Whether its node watches the objects to which it refers.
    pub is_registered: bool,
}

/// What runs in a pod.
pub struct Plan {
    /// The containers.
    pub containers: Vec<Container>,
    /// The containers that run before.
    pub init_containers: Vec<Container>,
    /// When containers are started again.
    pub restart_policy: RestartPolicy,
    /// Whether the pod uses the network of its node.
    pub host_network: bool,
    /// The service account.
    pub service_account: Box<str>,
    /// The ConfigMaps and Secrets.
    pub references: Box<[Reference]>,
    /// How the containers behave.
    pub behaviour: Behaviour,
}

/// When containers are started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPolicy {
    /// Always.
    Always,
    /// If they failed.
    OnFailure,
    /// Never.
    Never,
}

/// What a pod does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Its first container will be started.
    Accepted,
    /// The init container with this number runs, or is about to.
    Init(u16),
    /// The containers run.
    Running {
        /// Whether they are ready.
        is_ready: bool,
    },
    /// The containers have ended and will be started again.
    BackOff,
    /// The containers have ended.
    Ended,
    /// The pod was deleted and its containers have ended.
    Stopped {
        /// Whether the containers had been started.
        was_started: bool,
    },
    /// The pod does not exist any more. The slot stays until the watch says so.
    Gone,
}

/// The times in the status of a pod, in seconds since 1970; 0 for those that have not come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// When the node saw the pod.
    pub seen: u64,
    /// When the init containers were done.
    pub initialized: u64,
    /// When the containers were started the last time.
    pub started: u64,
    /// When the containers became ready, or ceased to be.
    pub ready: u64,
    /// When the containers ended the last time.
    pub ended: u64,
}

/// All pods.
#[derive(Default)]
pub struct Pods {
    slots: Vec<Option<Pod>>,
    generations: Vec<u32>,
    free: Vec<u32>,
    pub(super) by_uid: HashMap<Uid, u32>,
}

impl Pods {
    /// Adds a pod, which gets the number of its slot.
    pub fn add(&mut self, make: impl FnOnce(PodId) -> Pod) -> PodId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.generations.push(0);
            self.slots.len() as u32 - 1
        });
        let id = PodId { index, generation: self.generations[index as usize] };
        let pod = make(id);
        self.by_uid.insert(pod.uid, index);
        self.slots[index as usize] = Some(pod);
        id
    }

    /// Removes a pod.
    pub fn remove(&mut self, index: u32) -> Option<Pod> {
        let pod = self.slots.get_mut(index as usize)?.take()?;
        self.by_uid.remove(&pod.uid);
        let generation = &mut self.generations[index as usize];
        *generation = generation.wrapping_add(1);
        self.free.push(index);
        Some(pod)
    }

    /// The pod in a slot.
    pub fn at(&mut self, index: u32) -> Option<&mut Pod> {
        self.slots.get_mut(index as usize)?.as_mut()
    }

    /// The pod, if it still has its slot.
    pub fn get(&mut self, id: PodId) -> Option<&mut Pod> {
        self.at(id.index).filter(|pod| pod.id == id)
    }
}

impl Pod {
    /// The phase that the status has.
    pub fn phase(&self) -> &'static str {
        match self.stage {
            Stage::Accepted | Stage::Init(_) => "Pending",
            Stage::Running { .. } | Stage::BackOff => "Running",
            Stage::Stopped { was_started: false } => "Failed",
            Stage::Ended | Stage::Stopped { .. } | Stage::Gone if self.exit_code == 0 => {
                "Succeeded"
            }
            Stage::Ended | Stage::Stopped { .. } | Stage::Gone => "Failed",
        }
    }
}
