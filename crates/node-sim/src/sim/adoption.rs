//! Nodes that are added while the shared watch of pods is open. The watch may have shown their pods
//! before: the two watches are not ordered with each other, and pods outlive a Node that is deleted and
//! created again. So the pods of such a node are read once before the node is ready.

use crate::api::{self, Uid};
use crate::client::Outcome;

use super::node::{State, Step};
use super::pods::PodChange;
use super::simulation::Simulation;
use super::start::body;

impl Simulation {
    pub(super) fn on_pods_listed(&mut self, id: u32, outcome: Outcome<'_>) {
        if !self.ends_step(id, Step::Pods) {
            return;
        }
        let Some(list) = body(&outcome, &[200]).and_then(api::decode::<api::PodList>) else {
            return self.step_failed(id, outcome);
        };
        for pod in list.items {
            let uid = pod.metadata.as_ref().and_then(|it| it.uid.parse::<Uid>().ok());
            // The watch may be ahead of the list.
            if uid.is_some_and(|uid| !self.deleted_pods.contains(&uid)) {
                self.pod_changed(None, PodChange::Set(Box::new(pod)));
            }
        }
        self.node_mut(id).flags.must_list_pods = false;
        self.next_step(id, Step::Status);
    }

    /// Notes that the watch has shown the end of a pod, in case that a list still has it.
    pub(super) fn note_deleted_pod(&mut self, uid: Uid) {
        if self.listing > 0 {
            self.deleted_pods.insert(uid);
        }
    }

    /// Counts the nodes whose pods are read.
    pub(super) fn count_lists(&mut self, before: State, after: State) {
        let reads = |state: State| usize::from(state == State::Starting(Step::Pods));
        self.listing = self.listing + reads(after) - reads(before);
        if self.listing == 0 {
            self.deleted_pods = Default::default();
        }
    }
}
