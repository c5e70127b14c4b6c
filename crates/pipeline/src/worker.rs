//! Who does the steps, and the thread that flushes behind.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use futures_channel::oneshot;
use mvcc::{Command, Effects, Event, Reply, Store};
use wal::{DataDir, Syncer};

use crate::journal::{Journal, Moment};
use crate::pipeline::Shared;
use crate::snapshotter::Trigger;
use crate::{Error, pace};

/// Commands of one batch, at most. The store is locked for readers while a
/// batch is applied, about a microsecond a command.
const BATCH_COMMANDS: usize = 1024;
/// Bytes of requests of one batch, about; one more command may come on top.
const BATCH_BYTES: usize = 8 << 20;
/// Garbage that is collected with each command, so that it does not outgrow what
/// is added.
const COLLECTED_A_COMMAND: usize = 2;
/// Leases revoked at a time, so that a mass expiry does not starve writers.
const EXPIRIES_A_ROUND: usize = 256;
/// How soon a lease whose revocation failed is tried again.
const EXPIRY_RETRY: Duration = Duration::from_secs(3);
/// Bytes that the effects of one round may take, about: what is not safe yet is
/// in memory three times over.
const ROUND_BYTES: usize = 64 << 20;
/// How often a full disk is tried again when a round is stuck on it.
const FULL_DISK_RETRY: Duration = Duration::from_millis(100);

/// A command on its way, and who waits for it.
pub(crate) struct Submission {
    pub(crate) command: Command,
    pub(crate) bytes: usize,
    pub(crate) reply: Option<oneshot::Sender<Result<Reply, Error>>>,
}

/// Does the steps, for whoever holds it.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    queue: Receiver<Submission>,
    disk: Option<Disk>,
    batch: Vec<Submission>,
    collecting: bool,
}

/// Where effects are kept.
pub(crate) struct Disk {
    pub(crate) journal: Journal,
    pub(crate) trigger: Trigger,
    /// Held so that the flusher knows that we live.
    pub(crate) _alive: Sender<()>,
    /// Held so that nobody else takes the directory.
    pub(crate) _dir: Option<DataDir>,
}

type Replies = Vec<Result<Reply, Error>>;

impl Worker {
    pub(crate) fn new(
        shared: Arc<Shared>,
        queue: Receiver<Submission>,
        disk: Option<Disk>,
    ) -> Self {
        Worker { shared, queue, disk, batch: Vec::new(), collecting: false }
    }

    /// Takes a batch from the queue through all steps, and does what is due.
    /// Returns whether there was anything to do.
    pub(crate) fn turn(&mut self) -> bool {
        let mut batch = std::mem::take(&mut self.batch);
        self.gather(&mut batch);
        self.expire_leases(&mut batch);
        let commands = batch.len();
        if commands > 0 {
            self.process(&mut batch);
        }
        self.batch = batch;
        self.collect(pace::STEP.max(COLLECTED_A_COMMAND * commands));
        commands > 0
    }

    /// Whether there is garbage that need not wait.
    pub(crate) fn is_collecting(&self) -> bool {
        self.collecting
    }

    /// In a quiet moment, writes down what can wait for one.
    pub(crate) fn idle(&mut self) {
        let moment = self.moment();
        let Some(disk) = &mut self.disk else { return };
        match disk.journal.idle(moment) {
            // Without room for it, or after a failure, there just is no note.
            Ok(()) | Err(wal::Error::NoSpace { .. } | wal::Error::Poisoned) => {}
            Err(error) => tracing::warn!(%error, "the end of the log could not be marked"),
        }
    }

    /// Ends in good order, or at least durably.
    pub(crate) fn finish(mut self) {
        // After a failure the state may have what the log has not.
        let good = self.shared.failure.get().is_none().then(|| self.moment());
        let Some(disk) = &mut self.disk else { return };
        match disk.journal.end(good) {
            Ok(()) => {}
            // What was acknowledged is safe; only the good order is not noted.
            Err(error @ wal::Error::NoSpace { .. }) => {
                tracing::warn!(%error, "the end of the log could not be marked");
            }
            Err(error) => drop(self.shared.fail(&error)),
        }
    }

    fn moment(&self) -> Moment {
        let store = self.shared.store.read();
        let clock_ms = self.shared.clock.at(Instant::now());
        Moment { revision: store.revision(), clock_ms, leases: store.stats().leases > 0 }
    }

    /// Takes as much from the queue as makes a batch.
    fn gather(&mut self, batch: &mut Vec<Submission>) {
        let mut bytes = 0;
        while batch.len() < BATCH_COMMANDS && bytes < BATCH_BYTES {
            let Ok(submission) = self.queue.try_recv() else { break };
            bytes += submission.bytes;
            batch.push(submission);
        }
        self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn expire_leases(&self, batch: &mut Vec<Submission>) {
        let mut lessor = self.shared.lessor.lock();
        let expired = lessor.expired(Instant::now(), EXPIRY_RETRY, EXPIRIES_A_ROUND);
        let revoke =
            |id| Submission { command: Command::LeaseRevoke { id }, bytes: 0, reply: None };
        batch.extend(expired.into_iter().map(revoke));
    }

    /// Takes the batch through all steps, in as many rounds as its size needs.
    fn process(&mut self, batch: &mut Vec<Submission>) {
        while !batch.is_empty() {
            let (count, bytes) = self.next_round(batch);
            let round = &batch[..count];
            let replies = match self.reserve(count, bytes) {
                Ok(()) => self.carry_out(round),
                Err(error) => self.refuse(round, &error),
            };
            for (submission, reply) in batch.drain(..count).zip(replies) {
                if let Some(sender) = submission.reply {
                    // A caller that has gone away does not want to know.
                    let _ = sender.send(reply);
                }
            }
        }
    }

    /// How many of the commands make the next round, and what they write at most.
    fn next_round(&self, batch: &[Submission]) -> (usize, usize) {
        if self.disk.is_none() {
            return (batch.len(), 0);
        }
        let store = self.shared.store.read();
        let mut sum = 0;
        for (count, submission) in batch.iter().enumerate() {
            let bytes = store.effect_bytes(&submission.command);
            let ends = sum + bytes > ROUND_BYTES || Store::copies_value(&submission.command);
            if count > 0 && ends {
                return (count, sum);
            }
            sum += bytes;
        }
        (batch.len(), sum)
    }

    /// Step 1: space for the round, before anything is changed.
    fn reserve(&mut self, commands: usize, bytes: usize) -> Result<(), Error> {
        if let Some(reason) = self.shared.failure.get() {
            return Err(Error::LogFailed(reason.clone()));
        }
        let Some(Disk { journal, .. }) = &mut self.disk else { return Ok(()) };
        if bytes > wal::MAX_PAYLOAD_BYTES {
            return Err(Error::TooLarge);
        }
        let last = self.shared.store.read().revision() + commands as i64;
        let reserved = journal.reserve(bytes as u64, last);
        self.shared.note_space(matches!(reserved, Err(wal::Error::NoSpace { .. })));
        reserved.map_err(|error| match error {
            wal::Error::NoSpace { .. } => Error::NoSpace,
            wal::Error::Poisoned => self.shared.fail(&error),
            _ if journal.has_failed() => self.shared.fail(&error),
            // No file descriptors, say. The log is as good as it was.
            other => Error::CannotGrow(other.to_string().into()),
        })
    }

    /// The answers to a round that cannot be carried out. Leases are renewed all
    /// the same when only the space is missing: a full disk must not end them.
    fn refuse(&mut self, round: &[Submission], error: &Error) -> Replies {
        let renews = |s: &Submission| matches!(s.command, Command::LeaseRenew { .. });
        let stuck = matches!(error, Error::NoSpace | Error::CannotGrow(_));
        if stuck && round.iter().any(renews) {
            let clock_ms = self.shared.clock.at(Instant::now());
            self.disk.iter_mut().for_each(|disk| disk.journal.renewals_go_unlogged(clock_ms));
        }
        let revision = self.shared.published.load(Ordering::Acquire);
        let answer = |s: &Submission| match stuck && renews(s) {
            true => Ok(Reply::Done { revision }),
            false => Err(error.clone()),
        };
        round.iter().map(answer).collect()
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

    fn apply(&mut self, batch: &[Submission], effects: &mut Effects) -> (Replies, Vec<Event>, i64) {
        let mut store = self.shared.store.write();
        let clock_ms = self.shared.clock.at(Instant::now());
        store.tick(clock_ms);
        let unlogged = self.disk.as_mut().and_then(|d| d.journal.unlogged_renewals(clock_ms));
        if let Some(renewed) = unlogged {
            store.replay(renewed.clone()).expect("only writes can be out of order");
            effects.push(renewed);
        }
        let first_new = store.revision() + 1;
        let mut apply = |s: &Submission| store.apply(&s.command, effects).map_err(Error::from);
        let replies = batch.iter().map(&mut apply).collect();
        let events = store.events_since(first_new).cloned().collect();
        (replies, events, store.revision())
    }

    fn persist(&mut self, effects: &Effects) -> Result<(), wal::Error> {
        let moment = self.moment();
        let Some(Disk { journal, trigger, .. }) = &mut self.disk else { return Ok(()) };
        if !journal.prepare(effects, moment) {
            return Ok(());
        }
        // The estimate was too low, which must not be. What was changed must be
        // kept, so wait until it can be.
        let bytes = loop {
            match journal.write() {
                Ok(bytes) => break bytes,
                Err(wal::Error::NoSpace { .. })
                    if !self.shared.stopping.load(Ordering::Relaxed) =>
                {
                    self.shared.note_space(true);
                    std::thread::sleep(FULL_DISK_RETRY);
                }
                Err(error) => return Err(error),
            }
        };
        trigger.grown(&self.shared, bytes, journal);
        journal.shrink(BATCH_BYTES);
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
    fn collect(&mut self, events: usize) {
        let floor = self.shared.pins.lock().floor(Instant::now());
        let floor = floor.min(self.shared.published.load(Ordering::Acquire));
        self.collecting = self.shared.store.write().collect(floor, events);
    }
}

/// Makes the log durable now and then, in [`crate::WalMode::Buffered`].
pub(crate) struct Flusher {
    syncer: Syncer,
    interval: Duration,
    /// Disconnected when the worker has ended.
    worker: Receiver<()>,
    shared: Arc<Shared>,
}

impl Flusher {
    pub(crate) fn new(
        syncer: Syncer,
        interval: Duration,
        worker: Receiver<()>,
        shared: Arc<Shared>,
    ) -> Self {
        Flusher { syncer, interval, worker, shared }
    }

    /// Works until the worker has ended or the log has failed.
    pub(crate) fn run(self) {
        while self.worker.recv_timeout(self.interval) == Err(RecvTimeoutError::Timeout) {
            if let Err(error) = self.syncer.sync() {
                self.shared.fail(&error);
                return;
            }
        }
    }
}
