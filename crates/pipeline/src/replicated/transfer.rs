//! The state on its way between members, and what else needs a store without uncommitted changes:
//! leases, alarms and users have no history, so they are read only then.

use std::sync::Arc;

use consensus::message::{Body, Message};
use peer::IncomingSnapshot;

use super::apply::Inconsistent;
use super::entry_log::{Job, Rebase};
use super::member::{Member, ReceivedState};
use super::state::{StateReader, StateSnapshot, read_state};
use crate::export::Export;

impl Member {
    /// Does what waits for a store without uncommitted changes, if the store has none.
    pub(super) fn at_rest(&mut self) {
        if self.proposals.is_ahead() || !self.wants_rest() {
            return;
        }
        for export in std::mem::take(&mut self.transfer.exports) {
            let started = Export::start(&self.shared, &self.shared.store.read());
            // The client may not wait any more.
            let _ = export.send(started);
        }
        let description = self.replica.describe_state();
        if description.position.index != self.applied {
            // The log is not written so far. The next turn tries it again.
            return;
        }
        for message in std::mem::take(&mut self.transfer.wanted) {
            let to = message.to;
            tracing::info!(peer = %to, index = self.applied, "sending the state to a member");
            let state = StateSnapshot::start(&self.shared);
            let content = Box::new(StateReader::new(Arc::clone(&self.shared), state));
            let message = Message { body: Body::Snapshot(description.clone()), ..message };
            self.transfer.sending += 1;
            self.transport.send_snapshot(message, content);
        }
        if self.wants_snapshot()
            && let Some(log) = &self.log
        {
            let rebase = Rebase {
                entries: self.replica.entries_after(self.applied),
                description,
                state: StateSnapshot::start(&self.shared),
            };
            log.progress.begin();
            // The thread ends only after a failure, which it has reported.
            let _ = log.jobs.send(Job::Rebase(rebase));
        }
    }

    /// Begins to receive the state of another member, one at a time.
    pub(super) fn receive_state(&mut self, mut snapshot: IncomingSnapshot) {
        if self.transfer.is_receiving || self.transfer.installing.is_some() {
            return snapshot.finish(false);
        }
        let (received, waker) = (self.transfer.received_sender.clone(), self.waker.clone());
        let receive = move || {
            let state = read_state(&mut snapshot).map(Box::new);
            // The member may have stopped.
            let _ = received.send(ReceivedState { snapshot, state });
            waker.wake();
        };
        let spawned = std::thread::Builder::new().name("receive-state".into()).spawn(receive);
        match spawned {
            Ok(_) => self.transfer.is_receiving = true,
            Err(error) => tracing::warn!(%error, "could not receive the state of a member"),
        }
    }

    /// Handles a received state.
    pub(super) fn on_received(&mut self, received: ReceivedState) -> Result<(), Inconsistent> {
        let ReceivedState { snapshot, state } = received;
        self.transfer.is_receiving = false;
        let message = snapshot.message().clone();
        let (Body::Snapshot(description), from) = (&message.body, message.from) else {
            return Ok(());
        };
        let position = description.position;
        match state {
            Err(error) => {
                tracing::warn!(peer = %from, %error, "failed to receive the state of a member");
                snapshot.finish(false);
                return Ok(());
            }
            Ok(state) => drop(self.transfer.states.insert(position, state)),
        }
        if let Err(reason) = self.replica.receive(message) {
            tracing::warn!(peer = %from, %reason, "refused the state of a member");
        }
        self.handle_output(false)?;
        snapshot.finish(self.applied >= position.index);
        Ok(())
    }
}
