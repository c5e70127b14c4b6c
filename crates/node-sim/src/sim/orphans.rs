//! Pods that were seen before their node. The watches of pods and of nodes are not ordered with each
//! other.

use std::collections::VecDeque;
use std::time::Duration;

use crate::api::{self, Uid};
use crate::time::{Ticks, ticks};

/// A pod whose node is not seen within this time is on a node that is not simulated here.
const KEPT: Duration = Duration::from_secs(60);
/// Pods that are kept. Beyond it, the oldest one is forgotten.
const MAX_PODS: usize = 10_000;

/// Pods on nodes that are not known, with the time at which they were seen.
#[derive(Default)]
pub struct Orphans {
    pods: VecDeque<(Ticks, api::Pod)>,
}

impl Orphans {
    /// Keeps a pod for a while.
    pub fn add(&mut self, now: Ticks, pod: api::Pod) {
        let oldest = now.saturating_sub(ticks(KEPT));
        while self.pods.front().is_some_and(|(seen, _)| *seen < oldest)
            || self.pods.len() >= MAX_PODS
        {
            self.pods.pop_front();
        }
        self.pods.push_back((now, pod));
    }

    /// Whether no pod is kept.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// Forgets a pod.
    pub fn remove(&mut self, uid: Uid) {
        self.pods.retain(|(_, pod)| uid_of(pod) != Some(uid));
    }

    /// Removes and returns the pods of a node, as they were seen.
    pub fn take(&mut self, node: &str) -> Vec<api::Pod> {
        let is_of_node = |pod: &api::Pod| pod.spec.as_ref().is_some_and(|it| it.node_name == node);
        let (mut taken, mut kept) = (Vec::new(), VecDeque::new());
        for (seen, pod) in std::mem::take(&mut self.pods) {
            match is_of_node(&pod) {
                true => taken.push(pod),
                false => kept.push_back((seen, pod)),
            }
        }
        self.pods = kept;
        taken
    }
}

fn uid_of(pod: &api::Pod) -> Option<Uid> {
    pod.metadata.as_ref()?.uid.parse().ok()
}
