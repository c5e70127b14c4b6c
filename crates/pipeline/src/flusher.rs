//! The thread that syncs the log at intervals, for [`crate::WalMode::Buffered`].

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use wal::Syncer;

use crate::shared_store::SharedStore;

/// Syncs the log at a fixed interval.
pub(crate) struct Flusher {
    syncer: Syncer,
    interval: Duration,
    /// Disconnected when the applier has stopped.
    applier_alive: Receiver<()>,
    shared: Arc<SharedStore>,
}

impl Flusher {
    pub(crate) fn new(
        syncer: Syncer,
        interval: Duration,
        applier_alive: Receiver<()>,
        shared: Arc<SharedStore>,
    ) -> Self {
        Flusher { syncer, interval, applier_alive, shared }
    }

    /// Runs until the applier has stopped or the log has failed.
    pub(crate) fn run(self) {
        while self.applier_alive.recv_timeout(self.interval) == Err(RecvTimeoutError::Timeout) {
            if let Err(error) = self.syncer.sync() {
                self.shared.fail(&error);
                return;
            }
        }
    }
}
