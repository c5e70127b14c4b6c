//! The handle to the store: submit commands, read, watch.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Sender, TrySendError, bounded};
use futures_channel::oneshot;
use mvcc::{Alarm, Command, Quota, Reply, Stats, Store};
use parking_lot::{Mutex, RwLock};
use wal::{DataDir, Identity, Medium};
use watch::{Hub, WatchStream};

use crate::clock::StoreClock;
use crate::engine::Engine;
use crate::journal::Journal;
use crate::lessor::Lessor;
use crate::modes::Modes;
use crate::read::Pins;
use crate::recovery::Recovery;
use crate::snapshotter::snapshotter;
use crate::worker::{Disk, Flusher, Submission, Worker};
use crate::{Error, OpenError, Options, WalMode, recovery};

/// A running store. Dropping it, or [`Pipeline::shutdown`], ends it cleanly:
/// what was submitted is still done, and the log is synced.
pub struct Pipeline {
    shared: Arc<Shared>,
    commands: Sender<Submission>,
    engine: Arc<Engine>,
    /// Empty once the store has ended.
    threads: Mutex<Vec<JoinHandle<()>>>,
    queue_bytes: usize,
    min_lease_ttl_seconds: i64,
    identity: Identity,
}

/// What the worker and the readers both see.
pub(crate) struct Shared {
    pub(crate) store: RwLock<Store>,
    /// The newest revision that readers may see. Read it under the store's
    /// lock: nothing that it needs is collected before it has moved on.
    pub(crate) published: AtomicI64,
    pub(crate) hub: Arc<Hub>,
    pub(crate) lessor: Mutex<Lessor>,
    /// Store time, by which leases live.
    pub(crate) clock: StoreClock,
    /// Revisions that are being read in steps.
    pub(crate) pins: Mutex<Pins>,
    /// Bytes of requests in the queue.
    pub(crate) queued_bytes: AtomicUsize,
    /// Set when the disk was full at the last attempt.
    pub(crate) no_space: AtomicBool,
    /// Why the log failed; once set, nothing is written any more.
    pub(crate) failure: OnceLock<Arc<str>>,
    /// Set when the store is asked to end, for those who need not finish.
    pub(crate) stopping: AtomicBool,
}

/// How the store is.
#[derive(Clone, Debug)]
pub struct Status {
    /// The newest visible revision.
    pub revision: i64,
    /// The first readable revision.
    pub compacted: i64,
    /// Sizes.
    pub stats: Stats,
    /// Watchers that follow the present.
    pub watchers: usize,
    /// Commands that wait.
    pub queued_commands: usize,
    /// Alarms that are raised.
    pub alarms: Vec<Alarm>,
    /// Whether the disk is full.
    pub no_space: bool,
    /// Why nothing can be written any more.
    pub failure: Option<Arc<str>>,
}

impl Pipeline {
    /// Opens the store, recovers what its log holds, and starts its threads.
    /// `fresh` is the identity of a store that has none yet.
    pub fn open(options: &Options, fresh: Identity) -> Result<Pipeline, OpenError> {
        Pipeline::open_on(options, fresh, recovery::medium)
    }

    /// As [`Pipeline::open`], with the log on what `medium` makes of the data
    /// directory: the seam at which tests put a disk that fails.
    pub fn open_on<M: Medium>(
        options: &Options,
        fresh: Identity,
        medium: impl FnOnce(&DataDir) -> Result<M, wal::Error>,
    ) -> Result<Pipeline, OpenError> {
        let modes = Modes::new(options.wal_mode, &options.wal_mode_prefixes)?;
        let (dir, recovery) = match options.wal_mode {
            WalMode::None => (None, None),
            WalMode::Buffered | WalMode::Fsync => {
                let dir = DataDir::open(&options.data_dir, fresh)?;
                let recovery = recovery::recover(&dir, medium(&dir)?, options)?;
                (Some(dir), Some(recovery))
            }
        };
        let identity = dir.as_ref().map_or(fresh, DataDir::identity);
        let (mut store, files) = match recovery {
            None => (Store::default(), None),
            Some(Recovery { store, resumption, log, snapshots }) => {
                let boot_id = &options.boot_id;
                let journal = Journal::new(log, modes.clone(), boot_id, &store, &resumption);
                (store, Some((journal, snapshots)))
            }
        };
        store.set_quota(Quota { bytes: options.quota_bytes, member_id: identity.member_id });
        let shared = Arc::new(Shared::new(store, options));
        let (commands, queue) = bounded(options.queue_commands);
        let inline = !modes.any(WalMode::Fsync);
        let mut threads = Vec::new();
        let disk = match files {
            None => None,
            Some((mut journal, snapshots)) => {
                match journal.open() {
                    // Reads go on, and writes when there is room.
                    Err(wal::Error::NoSpace { .. }) => shared.note_space(true),
                    opened => opened?,
                }
                let (alive, worker_alive) = bounded(0);
                if modes.any(WalMode::Buffered) {
                    let (syncer, every) = (journal.syncer(), options.flush_interval);
                    let flusher = Flusher::new(syncer, every, worker_alive, shared.clone());
                    threads.push(spawn("flusher", move || flusher.run())?);
                }
                let bytes = options.snapshot_log_bytes;
                let (trigger, snapshotter) =
                    snapshotter(shared.clone(), snapshots, journal.trimmer(), modes, bytes);
                threads.push(spawn("snapshotter", move || snapshotter.run())?);
                Some(Disk { journal, trigger, _alive: alive, _dir: dir })
            }
        };
        let worker = Worker::new(shared.clone(), queue.clone(), disk);
        let engine = Engine::new(shared.clone(), queue, worker, inline);
        let thread = engine.clone();
        threads.push(spawn("pipeline", move || thread.run())?);
        Ok(Pipeline {
            shared,
            commands,
            engine,
            threads: Mutex::new(threads),
            queue_bytes: options.queue_bytes,
            min_lease_ttl_seconds: options.min_lease_ttl_seconds,
            identity,
        })
    }

    /// The IDs of cluster and member.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Carries out `command` and returns its reply once its effects are as durable
    /// as the WAL mode promises. `bytes` is the encoded size of the request.
    ///
    /// The future submits the command when it is first polled, and then yields once,
    /// so that an executor that polls many requests submits all of them before the
    /// first one runs the queue. They are committed as one batch, and the replies of
    /// the others are ready when they are polled again.
    ///
    /// Dropping the future does not cancel a submitted command.
    pub async fn propose(&self, command: Command, bytes: usize) -> Result<Reply, Error> {
        let reply = self.submit(command, bytes)?;
        let run_queue = RunQueueOnDrop(&self.engine);
        yield_once().await;
        drop(run_queue);
        reply.await.unwrap_or(Err(Error::Stopped))
    }

    /// Queues `command`. It waits until [`Engine::progress`] is called.
    fn submit(
        &self,
        command: Command,
        bytes: usize,
    ) -> Result<oneshot::Receiver<Result<Reply, Error>>, Error> {
        if let Some(reason) = self.shared.failure.get() {
            return Err(Error::LogFailed(reason.clone()));
        }
        if self.shared.stopping.load(Ordering::Acquire) {
            return Err(Error::Stopped);
        }
        let queued_bytes = &self.shared.queued_bytes;
        if queued_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > self.queue_bytes {
            queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(Error::TooManyRequests);
        }
        let (reply, receiver) = oneshot::channel();
        let submission = Submission { command, bytes, reply: Some(reply) };
        self.commands.try_send(submission).map_err(|error| {
            queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            match error {
                TrySendError::Full(_) => Error::TooManyRequests,
                TrySendError::Disconnected(_) => Error::Stopped,
            }
        })?;
        Ok(receiver)
    }

    /// The TTL that a lease gets when `asked` seconds are asked for.
    pub fn lease_ttl_seconds(&self, asked: i64) -> i64 {
        asked.max(self.min_lease_ttl_seconds)
    }

    /// Restarts the clock of a lease; its TTL in seconds, or `None` if there is
    /// no such lease or it has run out. The renewal is as durable as the mode
    /// promises; on a full disk it is good all the same.
    pub async fn lease_renew(&self, id: i64) -> Result<Option<i64>, Error> {
        let ttl = self.shared.lessor.lock().renew(id, Instant::now());
        let Some(ttl) = ttl else { return Ok(None) };
        let logged = self.submit(Command::LeaseRenew { id }, 0)?;
        self.engine.progress();
        match logged.await.unwrap_or(Err(Error::Stopped)) {
            Ok(_) => Ok(Some(ttl)),
            // It was revoked in between.
            Err(Error::Refused(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All leases, those that end first in front.
    pub fn leases(&self) -> Vec<i64> {
        self.shared.lessor.lock().by_deadline()
    }

    /// Seconds left, seconds granted, and the attached keys of a lease that has
    /// not run out.
    pub fn lease_time_to_live(&self, id: i64) -> Option<(i64, i64, Vec<etcdpb::Key>)> {
        let (left, ttl) = self.shared.lessor.lock().remaining(id, Instant::now())?;
        let store = self.shared.store.read();
        let keys = store.lease(id).map(|lease| lease.keys.iter().cloned().collect());
        Some((left.as_secs().min(ttl as u64) as i64, ttl, keys.unwrap_or_default()))
    }

    /// A stream of watchers. `wake` is called whenever [`Pipeline::next`] may
    /// have something new for it; it must not block.
    pub fn watch_stream(&self, wake: impl Fn() + Send + Sync + 'static) -> WatchStream {
        WatchStream::open(&self.shared.hub, wake)
    }

    /// What the client of `stream` is to be told next, if anything.
    pub fn next(&self, stream: &WatchStream) -> Option<watch::Delivery> {
        stream.take(&*self.shared)
    }

    /// The newest visible revision.
    pub fn revision(&self) -> i64 {
        self.shared.published.load(Ordering::Acquire)
    }

    /// How the store is.
    pub fn status(&self) -> Status {
        let store = self.shared.store.read();
        Status {
            revision: self.revision(),
            compacted: store.compacted(),
            stats: store.stats(),
            watchers: self.shared.hub.watchers(),
            queued_commands: self.commands.len(),
            alarms: store.alarms().collect(),
            no_space: self.shared.no_space.load(Ordering::Relaxed),
            failure: self.shared.failure.get().cloned(),
        }
    }

    /// Ends the store: what is queued is done, then the log is synced. Later
    /// commands are refused; reads are still answered.
    pub fn shutdown(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.engine.ring();
        let mut threads = self.threads.lock();
        // The worker goes first: it lets the others go when it is done.
        for thread in threads.drain(..).rev() {
            let _ = thread.join();
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

/// Runs the queue when it is dropped, so that a proposal whose future is dropped
/// between submission and commit is still carried out promptly.
struct RunQueueOnDrop<'a>(&'a Engine);

impl Drop for RunQueueOnDrop<'_> {
    fn drop(&mut self) {
        self.0.progress();
    }
}

/// Returns [`Poll::Pending`] once, after waking the task.
async fn yield_once() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl Shared {
    fn new(store: Store, options: &Options) -> Self {
        let revision = store.revision();
        let mut lessor = Lessor::default();
        let now = Instant::now();
        let clock = StoreClock::new(store.clock_ms(), now);
        for (id, lease) in store.leases() {
            let left = clock.left(lease.ttl_seconds, lease.since_ms);
            lessor.resume(id, lease.ttl_seconds, left, now);
        }
        Shared {
            store: RwLock::new(store),
            published: AtomicI64::new(revision),
            hub: Hub::new(revision, options.queue_events),
            lessor: Mutex::new(lessor),
            clock,
            pins: Mutex::default(),
            queued_bytes: AtomicUsize::new(0),
            no_space: false.into(),
            failure: OnceLock::new(),
            stopping: AtomicBool::new(false),
        }
    }

    /// Notes whether the disk was full, and says so when it gets full.
    pub(crate) fn note_space(&self, full: bool) {
        let was_full = self.no_space.swap(full, Ordering::Relaxed);
        if full && !was_full {
            tracing::error!("no space left for the log: writes are refused until there is");
        }
    }

    /// Records that the log has failed, once, and says so.
    pub(crate) fn fail(&self, error: &wal::Error) -> Error {
        let reason = self.failure.get_or_init(|| {
            tracing::error!(%error, "the log failed: no more writes are accepted");
            error.to_string().into()
        });
        Error::LogFailed(reason.clone())
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(run)
}
