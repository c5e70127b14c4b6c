//! Replays logged effects at startup, and checks that they are in order.

use std::sync::Arc;

use crate::effect::Effect;
use crate::span::Span;
use crate::store::Store;

/// The error of a write whose revision is lower than that of an earlier effect.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("revision {found} follows the higher revision {current}")]
pub struct OutOfOrder {
    found: i64,
    current: i64,
}

/// Checks the order of effects without applying them to a store.
#[derive(Clone, Copy, Debug)]
pub struct RevisionOrder {
    revision: i64,
}

impl Default for RevisionOrder {
    fn default() -> Self {
        RevisionOrder { revision: Store::FIRST_REVISION }
    }
}

impl RevisionOrder {
    /// Checks the next effect.
    ///
    /// # Errors
    /// Fails for the same effects as [`Store::replay`].
    pub fn check(&mut self, effect: &Effect) -> Result<(), OutOfOrder> {
        match effect {
            Effect::Write(record) if record.mod_revision() < self.revision => {
                Err(OutOfOrder { found: record.mod_revision(), current: self.revision })
            }
            Effect::Write(record) => {
                self.revision = record.mod_revision();
                Ok(())
            }
            Effect::Revision(revision) => {
                self.revision = self.revision.max(*revision);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl Store {
    /// Applies an effect that was read from the log.
    ///
    /// # Errors
    /// Fails if a write has a lower revision than the store.
    pub fn replay(&mut self, effect: Effect) -> Result<(), OutOfOrder> {
        match effect {
            Effect::Write(record) => {
                let found = record.mod_revision();
                if found < self.revision {
                    return Err(OutOfOrder { found, current: self.revision });
                }
                self.revision = found;
                drop(self.install(record));
            }
            Effect::LeaseGranted { id, ttl_seconds, at_ms } => {
                self.tick(at_ms.unwrap_or(0));
                self.leases.insert(id, ttl_seconds, at_ms.unwrap_or(self.clock_ms));
            }
            Effect::LeaseRenewed { id, at_ms } => {
                self.tick(at_ms);
                // Ignore a renewal of a lease that does not exist.
                let _ = self.leases.renew(id, at_ms);
            }
            Effect::AllLeasesRenewed { at_ms } => {
                self.tick(at_ms);
                self.leases.renew_all(at_ms);
            }
            Effect::Clock { ms } => self.tick(ms),
            Effect::LeaseRevoked { id } => self.leases.remove(id),
            Effect::Compacted { revision } => {
                self.compacted = self.compacted.max(revision);
                self.publish_compacted(revision);
            }
            Effect::Alarm { alarm, raised } => {
                self.alarms.set(alarm, raised);
            }
            Effect::Auth(change) => Arc::make_mut(&mut self.auth).apply(&change),
            Effect::Base(record) => drop(self.install_without_event(&record)),
            Effect::Revision(revision) => self.revision = self.revision.max(revision),
            Effect::SpanRemoved { key, range_end } => {
                self.remove_span(&Span::new(&key, &range_end));
            }
            Effect::VisibleBound(_) | Effect::Opened(_) | Effect::Closed { .. } => {}
        }
        Ok(())
    }
}
