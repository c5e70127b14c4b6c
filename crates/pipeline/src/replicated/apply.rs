//! What a member does with committed entries, and with the state of another member.

use std::sync::atomic::Ordering;
use std::time::Instant;

use consensus::entry::Data;
use consensus::id::Position;
use consensus::membership::Membership;
use consensus::output::{Committed, CommittedContent};
use mvcc::{Effect, Store};

use super::member::Member;
use super::payload::{self, Batch};
use crate::exclusive_store::ExclusiveStore;

/// Readers run after this number of effects of an entry.
const STEP_EFFECTS: usize = 128;

/// Why a member must stop: its state may be wrong.
#[derive(Debug, thiserror::Error)]
pub(super) enum Inconsistent {
    #[error(transparent)]
    Replica(#[from] consensus::Inconsistency),
    #[error("entry {0:?} has a malformed payload: {1}")]
    Payload(Position, payload::PayloadError),
    #[error("entry {0:?} was evaluated at revision {1}, but the store has revision {2}")]
    Before(Position, i64, i64),
    #[error("entry {0:?} ends with revision {1}, but the store has revision {2}")]
    After(Position, i64, i64),
    #[error("entry {0:?} contains an effect that is out of order: {1}")]
    Order(Position, mvcc::OutOfOrder),
    #[error("entry {0:?} is committed, but was not evaluated here")]
    NotEvaluated(Position),
    #[error("the state at {0:?} was not received")]
    NoState(Position),
}

impl Member {
    /// Applies or publishes a committed entry.
    pub(super) fn commit(&mut self, entry: Committed) -> Result<(), Inconsistent> {
        let Committed { position, content } = entry;
        let (mut bytes, mut changed) = (0, None);
        match content {
            CommittedContent::Empty => {}
            CommittedContent::Apply(data) => {
                bytes = data.payload.len();
                self.apply(position, &data)?;
            }
            CommittedContent::Publish => {
                let batch = self.proposals.take_committed(position);
                let batch = batch.ok_or(Inconsistent::NotEvaluated(position))?;
                bytes = batch.payload_bytes;
                self.publish(batch);
            }
            CommittedContent::Members { membership, result } => {
                self.set_membership(&membership);
                changed = Some(result);
            }
        }
        self.applied = position.index;
        self.replica.applied(position.index);
        self.log_size.add(position.index, bytes);
        self.on_command_committed(position, changed);
        Ok(())
    }

    /// Makes the members known to the transport and to clients.
    pub(super) fn set_membership(&self, membership: &Membership) {
        self.transport.set_members(membership.members());
        self.transport.set_claims(membership.claims());
        self.handle.set_membership(membership);
    }

    /// Applies the effects that another leader has evaluated, and publishes them.
    fn apply(&mut self, position: Position, data: &Data) -> Result<(), Inconsistent> {
        let batch = payload::decode(&data.payload);
        let batch = batch.map_err(|error| Inconsistent::Payload(position, error))?;
        let Batch { before, after, effects } = batch;
        let mut store = ExclusiveStore::lock(&self.shared.store);
        if store.revision() != before {
            return Err(Inconsistent::Before(position, before, store.revision()));
        }
        let mut changes = Vec::new();
        for (number, effect) in effects.into_iter().enumerate() {
            changes.extend(SharedChange::of(&effect));
            store.replay(effect).map_err(|error| Inconsistent::Order(position, error))?;
            if number % STEP_EFFECTS == STEP_EFFECTS - 1 {
                mvcc::StoreAccess::visited(&mut store, STEP_EFFECTS);
            }
        }
        if store.revision() != after {
            return Err(Inconsistent::After(position, after, store.revision()));
        }
        let store = store.downgrade();
        let events: Vec<_> = store.events_since(before + 1).cloned().collect();
        let changes_auth = changes.iter().any(|change| matches!(change, SharedChange::Auth));
        let auth = changes_auth.then(|| store.auth().clone());
        drop(store);
        self.update_lessor(&changes);
        if let Some(auth) = auth {
            self.shared.auth.publish(auth);
        }
        self.shared.published.store(after, Ordering::Release);
        self.shared.hub.publish(&events, after);
        Ok(())
    }

    fn update_lessor(&self, changes: &[SharedChange]) {
        if changes.is_empty() {
            return;
        }
        let (now, mut lessor) = (Instant::now(), self.shared.lessor.lock());
        for change in changes {
            match *change {
                SharedChange::Granted { id, ttl_seconds } => lessor.grant(id, ttl_seconds, now),
                SharedChange::Renewed { id } => lessor.restart(id, now),
                SharedChange::Revoked { id } => lessor.revoke(id),
                SharedChange::Auth => {}
            }
        }
    }

    /// Replaces the store by the state of another member.
    pub(super) fn replace_store(&mut self, mut state: Box<Store>) {
        state.set_quota(self.settings.quota);
        let (revision, auth) = (state.revision(), state.auth().clone());
        let now = Instant::now();
        self.shared.clock.continue_from(state.clock_ms(), now);
        let mut lessor = self.shared.lessor.lock();
        lessor.clear();
        let leases: Vec<_> = state.leases().map(|(id, lease)| (id, lease.ttl_seconds)).collect();
        leases.into_iter().for_each(|(id, ttl_seconds)| lessor.grant(id, ttl_seconds, now));
        drop(lessor);
        let mut store = self.shared.store.write();
        std::mem::swap(&mut *store, &mut state);
        // The old history cannot be read any more.
        self.shared.pins.lock().clear();
        self.shared.published.store(revision, Ordering::Release);
        drop(store);
        self.shared.auth.publish(auth);
        self.shared.hub.publish_replaced(revision);
        self.log_size.clear();
        tracing::info!(revision, "installed the state of another member");
        // Freeing the memory of a large store takes long.
        std::thread::spawn(move || drop(state));
    }
}

/// A change of what threads share besides the store.
enum SharedChange {
    Granted { id: i64, ttl_seconds: i64 },
    Renewed { id: i64 },
    Revoked { id: i64 },
    Auth,
}

impl SharedChange {
    fn of(effect: &Effect) -> Option<SharedChange> {
        match *effect {
            Effect::LeaseGranted { id, ttl_seconds, .. } => {
                Some(SharedChange::Granted { id, ttl_seconds })
            }
            Effect::LeaseRenewed { id, .. } => Some(SharedChange::Renewed { id }),
            Effect::LeaseRevoked { id } => Some(SharedChange::Revoked { id }),
            Effect::Auth(_) => Some(SharedChange::Auth),
            _ => None,
        }
    }
}
