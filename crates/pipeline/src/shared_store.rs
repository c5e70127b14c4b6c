//! The store in memory, and the state that the applier, the readers and the background
//! threads share with it.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use mvcc::Store;
use parking_lot::{Mutex, RwLock};
use watch::Hub;

use crate::clock::StoreClock;
use crate::held_records::HeldRecords;
use crate::lessor::Lessor;
use crate::pins::Pins;
use crate::published_auth::PublishedAuth;
use crate::{Error, PipelineOptions};

/// The store with the state that threads share.
pub(crate) struct SharedStore {
    pub(crate) store: RwLock<Store>,
    /// The published revision: the newest that readers may see. Load it while the store
    /// is locked. Then the history of the loaded revision cannot be collected before the
    /// lock is released, because collection needs the lock and keeps the published
    /// revision.
    pub(crate) published: AtomicI64,
    pub(crate) hub: Arc<Hub>,
    pub(crate) lessor: Mutex<Lessor>,
    /// Users and roles.
    pub(crate) auth: PublishedAuth,
    /// Store time, in which lease TTLs are measured.
    pub(crate) clock: StoreClock,
    /// The revisions whose history long reads need.
    pub(crate) pins: Arc<Mutex<Pins>>,
    /// The responses that may hold records that were collected.
    pub(crate) held_records: Arc<HeldRecords>,
    /// Total size of the requests in the queue of small commands, in bytes.
    pub(crate) queued_bytes: AtomicUsize,
    /// Whether the disk was full at the last attempt to write.
    pub(crate) no_space: AtomicBool,
    /// The reason if the log has failed. Once it is set, nothing is written any more.
    pub(crate) failure: OnceLock<Arc<str>>,
    /// Set at shutdown. New commands then fail, and hashes, exports and snapshots end
    /// early.
    pub(crate) stopping: AtomicBool,
}

impl SharedStore {
    /// Creates the shared state of a recovered `store`. Its leases keep their remaining
    /// TTL.
    pub(crate) fn new(store: Store, options: &PipelineOptions) -> Self {
        let revision = store.revision();
        let mut lessor = Lessor::default();
        let now = Instant::now();
        let clock = StoreClock::new(store.clock_ms(), now);
        for (id, lease) in store.leases() {
            let remaining = clock.remaining(lease.ttl_seconds, lease.ttl_start_ms);
            lessor.resume(id, lease.ttl_seconds, remaining, now);
        }
        let auth = PublishedAuth::new(store.auth().clone());
        SharedStore {
            store: RwLock::new(store),
            auth,
            published: AtomicI64::new(revision),
            hub: Hub::new(revision, options.queue_events),
            lessor: Mutex::new(lessor),
            clock,
            pins: Arc::default(),
            held_records: Arc::default(),
            queued_bytes: AtomicUsize::new(0),
            no_space: false.into(),
            failure: OnceLock::new(),
            stopping: AtomicBool::new(false),
        }
    }

    /// Sets whether the disk is full. Logs an error when it becomes full.
    pub(crate) fn set_no_space(&self, full: bool) {
        let was_full = self.no_space.swap(full, Ordering::Relaxed);
        if full && !was_full {
            tracing::error!(
                "no space left for the log, writes are rejected until space is available"
            );
        }
    }

    /// Sets the reason why the log failed, and logs it; a later failure changes nothing.
    /// Returns the error for clients.
    pub(crate) fn fail(&self, error: &files::Error) -> Error {
        self.fail_because(error.to_string())
    }

    /// Sets the reason why nothing is written any more, as [`SharedStore::fail`] does.
    pub(crate) fn fail_because(&self, error: String) -> Error {
        let reason = self.failure.get_or_init(|| {
            tracing::error!(error, "the log failed, no more writes are accepted");
            error.into()
        });
        Error::LogFailed(reason.clone())
    }
}
