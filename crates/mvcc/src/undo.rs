//! Undo: takes back commands that were executed and did not become part of the log.
//!
//! A leader executes commands before they are committed. If it loses its leadership, it takes back
//! those that are not ([ADR 24](../../../docs/adr/0024-replicated-pipeline.md)).
//!
//! Keys need no record of their own: the history contains every change, and the index the records
//! before it, because garbage collection keeps what a reader of an earlier revision needs. Only
//! leases and alarms have no history, so their previous states are noted while commands are
//! executed; users and roles are one value. Without [`crate::Store::begin_undo`], nothing is noted.
//!
//! The store time is not taken back, so leases live rather longer than shorter.
//!
//! This module has the types; `rollback` has the functions of the store.

use std::sync::Arc;

use crate::alarm::Alarm;
use crate::lease::Granted;

/// What takes back the commands of a batch.
pub struct Undo {
    /// The revision before the batch.
    pub(crate) revision: i64,
    /// The compacted revision before the batch.
    pub(crate) compacted: i64,
    /// Users and roles before the batch.
    pub(crate) auth: Arc<auth::State>,
    /// The changes of leases and alarms, in order.
    pub(crate) changes: Vec<Change>,
}

/// A change that the history does not contain.
pub(crate) enum Change {
    /// This lease was granted.
    Granted(i64),
    /// The TTL of a lease was restarted; before, it had started at this store time.
    Renewed {
        id: i64,
        ttl_start_ms: i64,
    },
    /// A lease was revoked. Its keys were deleted before.
    Revoked {
        id: i64,
        granted: Granted,
    },
    Alarm {
        alarm: Alarm,
        was_raised: bool,
    },
}

impl Undo {
    /// Returns the revision before the batch.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Returns the compacted revision before the batch; -1 if there was no compaction. History that
    /// is readable then must not be collected while the batch can be taken back.
    pub fn compacted(&self) -> i64 {
        self.compacted
    }
}
