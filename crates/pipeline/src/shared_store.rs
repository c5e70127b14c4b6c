//! The store in memory as the applier, the readers and the background threads share it.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use mvcc::Store;
use parking_lot::{Mutex, RwLock};
use watch::Hub;

use crate::clock::StoreClock;
use crate::lessor::Lessor;
use crate::pins::Pins;
use crate::{Error, PipelineOptions};

/// The store and everything that several threads use with it.
pub(crate) struct SharedStore {
    pub(crate) store: RwLock<Store>,
    /// The published revision: the newest one that readers may see. Read it with the
    /// store locked: the history of this revision is collected only after the
    /// published revision has advanced.
    pub(crate) published: AtomicI64,
    pub(crate) hub: Arc<Hub>,
    pub(crate) lessor: Mutex<Lessor>,
    /// Store time, in which lease TTLs are measured.
    pub(crate) clock: StoreClock,
    /// Revisions that long reads need.
    pub(crate) pins: Arc<Mutex<Pins>>,
    /// Bytes of the requests in the queue.
    pub(crate) queued_bytes: AtomicUsize,
    /// Whether the disk was full at the last attempt to write.
    pub(crate) no_space: AtomicBool,
    /// Why the log failed. Once set, nothing is written any more.
    pub(crate) failure: OnceLock<Arc<str>>,
    /// Set when the store is asked to stop, so that long reads give up.
    pub(crate) stopping: AtomicBool,
}

impl SharedStore {
    /// Shares a recovered `store`; its leases resume with their remaining TTL.
    pub(crate) fn new(store: Store, options: &PipelineOptions) -> Self {
        let revision = store.revision();
        let mut lessor = Lessor::default();
        let now = Instant::now();
        let clock = StoreClock::new(store.clock_ms(), now);
        for (id, lease) in store.leases() {
            let remaining = clock.remaining(lease.ttl_seconds, lease.since_ms);
            lessor.resume(id, lease.ttl_seconds, remaining, now);
        }
        SharedStore {
            store: RwLock::new(store),
            published: AtomicI64::new(revision),
            hub: Hub::new(revision, options.queue_events),
            lessor: Mutex::new(lessor),
            clock,
            pins: Arc::default(),
            queued_bytes: AtomicUsize::new(0),
            no_space: false.into(),
            failure: OnceLock::new(),
            stopping: AtomicBool::new(false),
        }
    }

    /// Sets whether the disk is full, and logs when it becomes full.
    pub(crate) fn set_no_space(&self, full: bool) {
        let was_full = self.no_space.swap(full, Ordering::Relaxed);
        if full && !was_full {
            tracing::error!(
                "no space left for the log, writes are refused until space is available"
            );
        }
    }

    /// Records and logs the failure of the log; only the first failure is kept. Returns
    /// the error for clients.
    pub(crate) fn fail(&self, error: &files::Error) -> Error {
        let reason = self.failure.get_or_init(|| {
            tracing::error!(%error, "the log failed, no more writes are accepted");
            error.to_string().into()
        });
        Error::LogFailed(reason.clone())
    }
}
