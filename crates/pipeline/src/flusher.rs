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
/// Interval at which the preparation of a segment is tried again after a failure. An attempt
/// may fill the disk until it fails, which would take the space from a snapshot.
const PREPARE_RETRY: Duration = Duration::from_secs(10);

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
        let mut due = Due { head: Instant::now() + HEAD_INTERVAL, prepare: Instant::now() };
        while self.applier_alive.recv_timeout(self.interval) == Err(RecvTimeoutError::Timeout) {
            if let Err(error) = self.work(&mut due) {
                self.shared.fail(&error);
                return;
            }
        }
    }

    fn work(&self, due: &mut Due) -> Result<(), Error> {
        if self.syncs {
            match self.syncer.sync() {
                // The next sync tries it again. Until then, the applier refuses writes.
                Err(Error::NoSpace { .. }) => {}
                synced => synced?,
            }
        }
        let now = Instant::now();
        if now >= due.prepare
            && let Err(error) = self.preparer.prepare()
        {
            // The applier creates the segment when it needs it, and reports a failure.
            tracing::debug!(%error, "could not prepare a segment of the log");
            due.prepare = now + PREPARE_RETRY;
        }
        if now >= due.head {
            self.syncer.update_head()?;
            due.head = now + HEAD_INTERVAL;
        }
        Ok(())
    }
}

/// When work is due that is not done at each interval.
struct Due {
    /// An update of `HEAD`.
    head: Instant,
    /// The next attempt to prepare a segment.
    prepare: Instant,
}
