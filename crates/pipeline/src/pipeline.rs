//! The public handle of the store: propose commands, read, watch.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Instant;

use auth::Caller;
use crossbeam_channel::{Sender, TrySendError};
use data_dir::Identity;
use futures_channel::oneshot;
use mvcc::{Alarm, Command, Reply, Stats};
use parking_lot::Mutex;
use watch::WatchStream;

use crate::Error;
use crate::executor::Executor;
use crate::large_commands::{LargeCommands, Origin};
use crate::replicated::handle::{ClusterStatus, Replication};
use crate::shared_store::SharedStore;
use crate::submission::{Outcome, ReplyTo, Submission};

/// A running store. Dropping it or calling [`Pipeline::shutdown`] stops it cleanly: it
/// executes the submitted commands and syncs the log.
pub struct Pipeline {
    pub(crate) shared: Arc<SharedStore>,
    pub(crate) commands: Sender<Submission>,
    pub(crate) large_commands: Arc<LargeCommands>,
    pub(crate) executor: Arc<Executor>,
    /// The threads of the store; empty after [`Pipeline::shutdown`].
    pub(crate) threads: Mutex<Vec<JoinHandle<()>>>,
    /// Keeps the data directory locked until the threads have ended, because all of them write
    /// to it.
    pub(crate) locks: Mutex<Option<Box<dyn Send>>>,
    pub(crate) max_queued_bytes: usize,
    pub(crate) min_lease_ttl_seconds: i64,
    pub(crate) identity: Identity,
    /// `None` for a store without peers.
    pub(crate) replication: Option<Arc<Replication>>,
}

/// The status of a store.
#[derive(Clone, Debug)]
pub struct PipelineStatus {
    /// The published revision.
    pub revision: i64,
    /// The compacted revision, the oldest that can be read; -1 before any compaction.
    pub compacted: i64,
    /// Numbers and sizes of keys, events and leases.
    pub stats: Stats,
    /// Number of watchers.
    pub watchers: usize,
    /// Number of queued commands.
    pub queued_commands: usize,
    /// Active alarms.
    pub alarms: Vec<Alarm>,
    /// The revision of users and roles.
    pub auth_revision: u64,
    /// Whether the disk was full at the last attempt to write.
    pub no_space: bool,
    /// The reason if the log has failed. After that, the store accepts no more writes.
    pub failure: Option<Arc<str>>,
    /// The state of the cluster; `None` for a store without peers.
    pub cluster: Option<ClusterStatus>,
}

impl Pipeline {
    /// Whether authentication is enabled.
    #[inline]
    pub fn is_auth_enabled(&self) -> bool {
        self.shared().auth.is_enabled()
    }

    /// Returns the published users and roles.
    pub fn auth(&self) -> Arc<auth::State> {
        self.shared().auth.state()
    }

    /// Returns the IDs of the cluster and of the member.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Executes a command and returns its reply once its effects are as durable as the WAL mode
    /// promises. `bytes` is the encoded size of the request. Large commands of different clients
    /// take turns. A [`crate::ClientId`] alone means that the command need not be permitted.
    ///
    /// The first poll of the future submits the command and yields. The second poll runs
    /// the queue. So if an executor first polls many futures once, it submits all their
    /// commands before the queue runs. They are committed as one batch, and the other
    /// futures have their replies when they are polled again.
    ///
    /// Dropping the future does not cancel a submitted command, except a transaction or a
    /// deletion of a range that has not been taken from the queue yet.
    ///
    /// It blocks if the command is a transaction with large ranges; [`Pipeline::txn`] does
    /// not.
    pub async fn propose(
        &self,
        origin: impl Into<Origin>,
        command: Command,
        bytes: usize,
    ) -> Result<Reply, Error> {
        self.execute(origin.into(), command, bytes).await?.finish()
    }

    /// Executes `command` as [`Pipeline::propose`] does, but leaves the large ranges of a
    /// transaction to the caller.
    pub(crate) async fn execute(
        &self,
        origin: Origin,
        command: Command,
        bytes: usize,
    ) -> Result<Outcome, Error> {
        // When the future is dropped, so is `reply` before the queue is run.
        let run_queue = RunQueueOnDrop(&self.executor);
        let reply = match command.is_small() {
            true => self.submit(origin.caller, command, bytes)?,
            false => self.submit_large(origin, command, bytes)?,
        };
        yield_once().await;
        drop(run_queue);
        reply.await.unwrap_or(Err(Error::Stopped))
    }

    /// Fails if the store accepts no commands.
    fn check_running(&self) -> Result<(), Error> {
        if let Some(reason) = self.shared.failure.get() {
            return Err(Error::LogFailed(reason.clone()));
        }
        match self.shared.stopping.load(Ordering::Acquire) {
            true => Err(Error::Stopped),
            false => Ok(()),
        }
    }

    /// Queues a large command. It is executed when [`Executor::run_queue`] is called. Returns a
    /// receiver for the reply.
    fn submit_large(
        &self,
        origin: Origin,
        command: Command,
        bytes: usize,
    ) -> Result<oneshot::Receiver<Result<Outcome, Error>>, Error> {
        self.check_running()?;
        let (reply, receiver) = oneshot::channel();
        let Origin { client, caller } = origin;
        let reply = ReplyTo::Client(reply);
        let submission = Submission { command, caller, bytes, reply };
        match self.large_commands.push(client, submission) {
            true => Ok(receiver),
            false => Err(Error::TooManyRequests),
        }
    }

    /// Queues a small command. It is executed when [`Executor::run_queue`] is called. Returns a
    /// receiver for the reply.
    fn submit(
        &self,
        caller: Caller,
        command: Command,
        bytes: usize,
    ) -> Result<oneshot::Receiver<Result<Outcome, Error>>, Error> {
        self.check_running()?;
        let queued_bytes = &self.shared.queued_bytes;
        if queued_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > self.max_queued_bytes {
            queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(Error::TooManyRequests);
        }
        let (reply, receiver) = oneshot::channel();
        let reply = ReplyTo::Client(reply);
        let submission = Submission { command, caller, bytes, reply };
        self.commands.try_send(submission).map_err(|error| {
            queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            match error {
                TrySendError::Full(_) => Error::TooManyRequests,
                TrySendError::Disconnected(_) => Error::Stopped,
            }
        })?;
        Ok(receiver)
    }

    /// Returns the TTL that is granted for a requested TTL: at least the minimum. Both
    /// are in seconds.
    pub fn lease_ttl_seconds(&self, requested: i64) -> i64 {
        requested.max(self.min_lease_ttl_seconds)
    }

    /// Renews a lease. The caller checks whether the client may. Returns its TTL in seconds, or
    /// `None` if it does not exist or has expired. The renewal is as durable as the WAL mode
    /// promises, except on a full disk: it then succeeds without being logged.
    pub async fn lease_renew(&self, id: i64) -> Result<Option<i64>, Error> {
        if self.replication.is_some() {
            return self.lease_renew_in_cluster(id).await;
        }
        let ttl = self.shared.lessor.lock().renew(id, Instant::now());
        let Some(ttl) = ttl else { return Ok(None) };
        let reply = self.submit(Caller::Store, Command::LeaseRenew { id }, 0)?;
        self.executor.run_queue();
        match reply.await.unwrap_or(Err(Error::Stopped)) {
            Ok(_) => Ok(Some(ttl)),
            // The lease was revoked after the lessor had renewed it.
            Err(Error::Refused(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Renews a lease of a cluster, whose leader knows whether it has expired.
    async fn lease_renew_in_cluster(&self, id: i64) -> Result<Option<i64>, Error> {
        let reply = self.submit(Caller::Store, Command::LeaseRenew { id }, 0)?;
        self.executor.run_queue();
        match reply.await.unwrap_or(Err(Error::Stopped)) {
            // This member has applied the renewal, and so the grant.
            Ok(_) => {
                Ok(self.shared.lessor.lock().remaining(id, Instant::now()).map(|(_, ttl)| ttl))
            }
            Err(Error::Refused(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates a stream of watchers. `wake` is called when [`Pipeline::next_delivery`]
    /// may return a delivery for the stream; it must not block.
    pub fn watch_stream(&self, wake: impl Fn() + Send + Sync + 'static) -> WatchStream {
        WatchStream::open(&self.shared.hub, wake)
    }

    /// Returns the next delivery for the client of `stream`, if there is one.
    pub fn next_delivery(&self, stream: &WatchStream) -> Option<watch::Delivery> {
        stream.next_delivery(&*self.shared)
    }

    /// Returns the published revision.
    pub fn revision(&self) -> i64 {
        self.shared.published.load(Ordering::Acquire)
    }

    /// Returns the reason if the log has failed, or this member of a cluster.
    pub fn failure(&self) -> Option<Arc<str>> {
        self.shared.failure.get().cloned()
    }

    /// Returns the status of the store.
    pub fn status(&self) -> PipelineStatus {
        let store = self.shared.store.read();
        PipelineStatus {
            revision: self.revision(),
            compacted: store.compacted(),
            stats: store.stats(),
            watchers: self.shared.hub.watchers(),
            queued_commands: self.commands.len() + self.large_commands.len(),
            alarms: store.alarms().collect(),
            auth_revision: self.auth().revision(),
            no_space: self.shared.no_space.load(Ordering::Relaxed),
            failure: self.shared.failure.get().cloned(),
            cluster: self.replication.as_ref().map(|replication| replication.status()),
        }
    }

    /// Stops the store: executes the queued commands and syncs the log. Later commands
    /// fail; reads still succeed.
    pub fn shutdown(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.executor.wake();
        let mut threads = self.threads.lock();
        // Join the executor's thread first. When it stops, the applier is dropped, which
        // makes the other threads stop.
        for thread in threads.drain(..).rev() {
            let _ = thread.join();
        }
        *self.locks.lock() = None;
    }

    /// The store and the state that threads share with it.
    pub(crate) fn shared(&self) -> &Arc<SharedStore> {
        &self.shared
    }
}

/// Runs the queue when it is dropped. So the command is executed promptly even if the
/// future of [`Pipeline::propose`] is dropped after it has submitted the command.
struct RunQueueOnDrop<'a>(&'a Executor);

impl Drop for RunQueueOnDrop<'_> {
    fn drop(&mut self) {
        self.0.run_queue();
    }
}

/// Returns [`Poll::Pending`] once, and wakes the task so that it is polled again.
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
