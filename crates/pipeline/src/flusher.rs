//! The thread that does the work on the log for which no command should wait: it syncs the
//! log at intervals, for [`crate::WalMode::Buffered`], prepares segments, and updates `HEAD`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use files::Error;
use wal::{Preparer, Syncer};

use crate::shared_store::SharedStore;

/// Interval at which `HEAD` is updated if the log has grown. Damage to the end of the log is
/// always detected in records that were durable at the last update.
const HEAD_INTERVAL: Duration = Duration::from_secs(5);

/// Does background work on the log at a fixed interval.
pub(crate) struct Flusher {
    pub(crate) syncer: Syncer,
    pub(crate) preparer: Preparer,
    pub(crate) interval: Duration,
    /// Whether it syncs the log. If not, the applier syncs each batch.
    pub(crate) syncs: bool,
    /// Disconnected when the applier has stopped.
    pub(crate) applier_alive: Receiver<()>,
    pub(crate) shared: Arc<SharedStore>,
}

impl Flusher {
    /// Runs until the applier has stopped or the log has failed.
    pub(crate) fn run(self) {
        let mut head_updated = Instant::now();
        while self.applier_alive.recv_timeout(self.interval) == Err(RecvTimeoutError::Timeout) {
            if let Err(error) = self.work(&mut head_updated) {
                self.shared.fail(&error);
                return;
            }
        }
    }

    fn work(&self, head_updated: &mut Instant) -> Result<(), Error> {
        if self.syncs {
            self.syncer.sync()?;
        }
        if let Err(error) = self.preparer.prepare() {
            // The applier creates the segment when it needs it, and reports a failure.
            tracing::debug!(%error, "could not prepare a segment of the log");
        }
        if head_updated.elapsed() >= HEAD_INTERVAL {
            self.syncer.update_head()?;
            *head_updated = Instant::now();
        }
        Ok(())
    }
}
