//! The thread that does the steps, and the one that flushes behind it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use futures_channel::oneshot;
use mvcc::{Command, Effects, Event, Reply};
use wal::{DataDir, Log, Syncer};

use crate::pipeline::Shared;
use crate::snapshotter::Trigger;
use crate::{Error, recovery};

/// Commands of one batch, at most. The store is locked for readers while a
/// batch is applied, about a microsecond a command.
const BATCH_COMMANDS: usize = 1024;
/// Bytes of requests of one batch, about; one more command may come on top.
const BATCH_BYTES: usize = 8 << 20;
/// Events that one step of garbage collection visits, between batches.
const COLLECT_EVENTS: usize = 512;
/// Leases revoked at a time, so that a mass expiry does not starve writers.
const EXPIRIES_A_ROUND: usize = 256;
/// How soon a lease whose revocation failed is tried again.
const EXPIRY_RETRY: Duration = Duration::from_secs(3);
/// The longest that the worker sleeps.
const IDLE: Duration = Duration::from_millis(500);
/// Log bytes of an effect beyond its key and value, at most.
const EFFECT_BYTES: usize = 64;

/// A command on its way, and who waits for it.
pub(crate) struct Submission {
    pub(crate) command: Command,
    pub(crate) bytes: usize,
    pub(crate) reply: Option<oneshot::Sender<Result<Reply, Error>>>,
}

/// What comes through the queue.
pub(crate) enum Message {
    Do(Submission),
    /// Do what is queued, and end.
    Stop,
}

pub(crate) struct Worker {
    shared: Arc<Shared>,
    queue: Receiver<Message>,
    disk: Option<Disk>,
    collecting: bool,
    stopping: bool,
    payload: Vec<u8>,
}

/// Where effects are kept.
pub(crate) struct Disk {
    pub(crate) log: Log,
    /// Whether each batch is synced before it is acknowledged.
    pub(crate) sync: bool,
    pub(crate) trigger: Trigger,
    /// Held so that nobody else takes the directory.
    pub(crate) _dir: Option<DataDir>,
}

type Replies = Vec<Result<Reply, Error>>;

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, queue: Receiver<Message>, disk: Option<Disk>) -> Self {
        Worker { shared, queue, disk, collecting: false, stopping: false, payload: Vec::new() }
    }

    /// Works until it is told to stop and the queue is empty.
    pub(crate) fn run(mut self) {
        let mut batch = Vec::with_capacity(BATCH_COMMANDS);
        while !(self.stopping && self.queue.is_empty()) {
            self.gather(&mut batch);
            self.expire_leases(&mut batch);
            if !batch.is_empty() {
                self.process(&mut batch);
            }
            self.collect();
        }
        if let Some(disk) = &mut self.disk
            && let Err(error) = disk.log.sync()
        {
            self.shared.fail(&error);
        }
    }

    /// Waits for work and takes as much of it as makes a batch.
    fn gather(&mut self, batch: &mut Vec<Submission>) {
        let patience = if self.collecting { Duration::ZERO } else { self.patience() };
        let mut next = self.queue.recv_timeout(patience).ok();
        let mut bytes = 0;
        while let Some(message) = next {
            match message {
                Message::Do(submission) => {
                    bytes += submission.bytes;
                    batch.push(submission);
                }
                Message::Stop => self.stopping = true,
            }
            let full = batch.len() >= BATCH_COMMANDS || bytes >= BATCH_BYTES;
            next = if full { None } else { self.queue.try_recv().ok() };
        }
        self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// How long to wait for a command before something else is due.
    fn patience(&self) -> Duration {
        let alarm = self.shared.lessor.lock().next_alarm();
        alarm.map_or(IDLE, |at| at.saturating_duration_since(Instant::now()).min(IDLE))
    }

    fn expire_leases(&self, batch: &mut Vec<Submission>) {
        let mut lessor = self.shared.lessor.lock();
        let expired = lessor.expired(Instant::now(), EXPIRY_RETRY, EXPIRIES_A_ROUND);
        let revoke =
            |id| Submission { command: Command::LeaseRevoke { id }, bytes: 0, reply: None };
        batch.extend(expired.into_iter().map(revoke));
    }

    fn process(&mut self, batch: &mut Vec<Submission>) {
        let replies = match self.reserve(batch) {
            Ok(()) => self.carry_out(batch),
            Err(error) => batch.iter().map(|_| Err(error.clone())).collect(),
        };
        for (submission, reply) in batch.drain(..).zip(replies) {
            if let Some(sender) = submission.reply {
                // A caller that has gone away does not want to know.
                let _ = sender.send(reply);
            }
        }
    }

    /// Step 1: space for the batch, before anything is changed.
    fn reserve(&mut self, batch: &[Submission]) -> Result<(), Error> {
        if let Some(reason) = self.shared.failure.get() {
            return Err(Error::LogFailed(reason.clone()));
        }
        let Some(Disk { log, .. }) = &mut self.disk else { return Ok(()) };
        // A deletion by span is small to ask for and may be large to write; in
        // the rare case that this is too little, appending makes room itself.
        let bytes: usize = batch.iter().map(|s| 2 * s.bytes + EFFECT_BYTES).sum();
        let full = match log.reserve(bytes as u64) {
            Ok(()) => false,
            Err(wal::Error::NoSpace { .. }) => true,
            Err(error) => return Err(self.shared.fail(&error)),
        };
        let was_full = self.shared.no_space.swap(full, Ordering::Relaxed);
        if full && !was_full {
            tracing::error!("no space left for the log: writes are refused until there is");
        }
        if full { Err(Error::NoSpace) } else { Ok(()) }
    }

    /// Steps 2 to 5.
    fn carry_out(&mut self, batch: &[Submission]) -> Replies {
        let mut effects = Effects::new();
        let (replies, events, revision) = self.apply(batch, &mut effects);
        if let Err(error) = self.persist(&effects) {
            let error = self.shared.fail(&error);
            return batch.iter().map(|_| Err(error.clone())).collect();
        }
        self.keep_time(batch, &replies);
        self.shared.published.store(revision, Ordering::Release);
        self.shared.hub.publish(&events, revision);
        replies
    }

    fn apply(&self, batch: &[Submission], effects: &mut Effects) -> (Replies, Vec<Event>, i64) {
        let mut store = self.shared.store.write();
        let first_new = store.revision() + 1;
        let mut apply = |s: &Submission| store.apply(&s.command, effects).map_err(Error::from);
        let replies = batch.iter().map(&mut apply).collect();
        let events = store.events_since(first_new).cloned().collect();
        (replies, events, store.revision())
    }

    fn persist(&mut self, effects: &Effects) -> Result<(), wal::Error> {
        let Some(Disk { log, sync, trigger, .. }) = &mut self.disk else { return Ok(()) };
        if effects.is_empty() {
            return Ok(());
        }
        recovery::encode(effects, &mut self.payload);
        log.append(&self.payload)?;
        if *sync {
            log.sync()?;
        }
        trigger.grown(&self.shared, self.payload.len(), log.last());
        self.payload.shrink_to(BATCH_BYTES);
        Ok(())
    }

    /// Starts and stops the clocks of leases that came and went.
    fn keep_time(&self, batch: &[Submission], replies: &Replies) {
        let done = batch.iter().zip(replies).filter(|(_, reply)| reply.is_ok());
        for (submission, _) in done {
            match submission.command {
                Command::LeaseGrant { id, ttl_seconds } => {
                    self.shared.lessor.lock().grant(id, ttl_seconds, Instant::now());
                }
                Command::LeaseRevoke { id } => self.shared.lessor.lock().revoke(id),
                _ => {}
            }
        }
    }

    /// One step of freeing what compaction made unreadable.
    fn collect(&mut self) {
        let floor = self.shared.pins.lock().first_key_value().map_or(i64::MAX, |(r, _)| *r);
        let floor = floor.min(self.shared.published.load(Ordering::Acquire));
        self.collecting = self.shared.store.write().collect(floor, COLLECT_EVENTS);
    }
}

/// Makes the log durable now and then, in [`crate::WalMode::Buffered`].
pub(crate) struct Flusher {
    syncer: Syncer,
    interval: Duration,
    shared: Arc<Shared>,
}

impl Flusher {
    pub(crate) fn new(syncer: Syncer, interval: Duration, shared: Arc<Shared>) -> Self {
        Flusher { syncer, interval, shared }
    }

    /// Works until the log is gone or has failed.
    pub(crate) fn run(self) {
        while self.syncer.is_open() {
            std::thread::sleep(self.interval);
            if let Err(error) = self.syncer.sync() {
                self.shared.fail(&error);
                return;
            }
        }
    }
}
