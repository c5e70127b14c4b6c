//! The write path: applies batches of commands.
//!
//! [`Applier::apply_next_batch`] is the entry point. It splits a batch into rounds. For
//! each round, in the order of the functions in this file: [`Applier::reserve`] space in
//! the log, [`Applier::evaluate`] the commands on the store, [`Applier::log`] their effects,
//! [`Applier::publish`] the new revision to readers and the events to watchers, reply to the
//! callers.
//!
//! What evaluation yields is one value, [`Evaluated`]. Between evaluation and publication, it
//! becomes committed: by the log of this member ([`Committer`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use mvcc::{Command, Effects, Event, Reply, Store, Undo};

use crate::exclusive_store::{ExclusiveStore, TXN_COMPARE_KEYS};
use crate::journal::{Journal, StorePosition};
use crate::large_commands::LargeCommands;
use crate::large_txn::LargeTxn;
use crate::shared_store::SharedStore;
use crate::snapshotter::SnapshotTrigger;
use crate::submission::{Outcome, ReplyTo, Submission};
use crate::{Error, held_records, pace};

/// Maximum number of commands in a batch. Readers wait while a batch is applied; that
/// takes about 1 µs per command.
pub(crate) const BATCH_COMMANDS: usize = 1024;
/// A batch ends with the first command that brings its requests to at least this size in
/// bytes.
const BATCH_BYTES: usize = 8 << 20;
/// Number of events that the garbage collector visits per command of a batch. Most
/// commands add fewer, so garbage does not accumulate.
const COLLECTED_EVENTS_PER_COMMAND: usize = 2;
/// A batch of large commands ends with the first one that brings the number of keys that they
/// visit to at least this number. Small commands wait meanwhile.
const BATCH_KEYS: usize = 1000;
/// Interval after which a lease is revoked again if its revocation has failed.
const EXPIRY_RETRY: Duration = Duration::from_secs(3);
/// Approximate maximum size of the effects of a round in bytes. Until they are logged,
/// the memory contains them three times.
const ROUND_BYTES: usize = 64 << 20;

/// Applies the queued commands. [`crate::executor`] chooses the thread that runs it.
pub(crate) struct Applier {
    shared: Arc<SharedStore>,
    queue: Receiver<Submission>,
    large_commands: Arc<LargeCommands>,
    committer: Committer,
    /// The commands of a batch that a thread has left because it must not wait for the
    /// disk. Usually empty, and kept for its capacity.
    batch: Vec<Submission>,
    /// Whether the dedicated thread has applied a batch of small commands, so that it is the turn
    /// of the large ones.
    large_turn: bool,
    /// See [`Applier::has_garbage`].
    collecting: bool,
}

/// Who makes a round committed, so that it may be published.
#[expect(clippy::large_enum_variant, reason = "a store has one")]
pub(crate) enum Committer {
    /// Nobody: the store is in memory only (`WalMode::None`).
    Memory,
    /// The log of this member. The round is committed when the call that logs it returns.
    Local(Disk),
    /// The cluster: the member's driver ([`crate::replicated`]) proposes what was evaluated, and
    /// publishes it when it is committed. Until then it can be taken back.
    Replicated,
}

/// The log and its snapshot trigger.
pub(crate) struct Disk {
    pub(crate) journal: Journal,
    pub(crate) snapshot_trigger: SnapshotTrigger,
    /// The flusher stops when this is dropped together with the applier.
    pub(crate) _alive: Sender<()>,
}

pub(crate) type Replies = Vec<Result<Outcome, Error>>;

/// A round that was evaluated: the store contains its changes, but nobody sees them yet.
pub(crate) struct Evaluated {
    /// The replies to its commands, in order. They are sent after the publication.
    pub(crate) replies: Replies,
    /// What takes it back; only with [`Committer::Replicated`].
    pub(crate) undo: Option<Undo>,
    /// Its changes, for watchers.
    events: Vec<Event>,
    /// The revision after it.
    pub(crate) revision: i64,
    /// Users and roles after it; `None` if it has no command that changes them.
    auth: Option<Arc<auth::State>>,
}

/// The thread that calls the applier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallingThread {
    /// It may wait for the disk, and applies all commands.
    DedicatedThread,
    /// A thread of the async runtime, which serves no connection meanwhile. So it does not wait
    /// for the disk, and applies only small commands.
    RuntimeThread,
}

/// What [`Applier::apply_next_batch`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchOutcome {
    /// There was no command.
    Empty,
    /// All commands of the batch are applied.
    Applied,
    /// Applying the rest of the batch waits for the disk. The next call does it.
    Deferred,
}

impl Applier {
    pub(crate) fn new(
        shared: Arc<SharedStore>,
        queue: Receiver<Submission>,
        large_commands: Arc<LargeCommands>,
        committer: Committer,
    ) -> Self {
        let (batch, large_turn, collecting) = (Vec::new(), false, false);
        Applier { shared, queue, large_commands, committer, batch, large_turn, collecting }
    }

    /// Applies a batch and replies. Then it runs a step of garbage collection. If a batch was
    /// deferred, it continues with that one.
    pub(crate) fn apply_next_batch(&mut self, caller: CallingThread) -> BatchOutcome {
        let mut batch = std::mem::take(&mut self.batch);
        if batch.is_empty() {
            match caller {
                CallingThread::RuntimeThread => self.take_small(&mut batch),
                CallingThread::DedicatedThread => self.take_any(&mut batch),
            }
        }
        let commands = batch.len();
        self.apply_batch(&mut batch, caller);
        let applied = commands - batch.len();
        self.batch = batch;
        self.collect_garbage(applied, i64::MAX);
        match commands {
            0 => BatchOutcome::Empty,
            _ if applied == commands => BatchOutcome::Applied,
            _ => BatchOutcome::Deferred,
        }
    }

    /// Moves small or large commands to `batch`, in turns.
    pub(crate) fn take_any(&mut self, batch: &mut Vec<Submission>) {
        let large_first = std::mem::take(&mut self.large_turn);
        if large_first {
            self.take_large(batch);
        }
        if batch.is_empty() {
            self.take_small(batch);
            self.large_turn = !batch.is_empty();
        }
        if batch.is_empty() && !large_first {
            self.take_large(batch);
        }
    }

    /// Moves revocations of expired leases and large commands to `batch`.
    fn take_large(&self, batch: &mut Vec<Submission>) {
        // The revocations come first: a client may revoke such a lease and grant its ID
        // again meanwhile. The new lease must not be revoked.
        let mut keys = self.expire_leases(batch);
        let mut bytes = 0;
        while keys < BATCH_KEYS && bytes < BATCH_BYTES {
            let Some(submission) = self.large_commands.pop() else { break };
            if submission.is_abandoned() {
                continue;
            }
            bytes += submission.bytes;
            keys += self.shared.store.read().visited_keys(&submission.command, BATCH_KEYS);
            batch.push(submission);
        }
    }

    /// Moves small commands to `batch`.
    fn take_small(&mut self, batch: &mut Vec<Submission>) {
        let (mut bytes, mut abandoned_bytes) = (0, 0);
        while batch.len() < BATCH_COMMANDS && bytes < BATCH_BYTES {
            let Ok(submission) = self.queue.try_recv() else { break };
            if submission.is_abandoned() {
                abandoned_bytes += submission.bytes;
                continue;
            }
            bytes += submission.bytes;
            batch.push(submission);
        }
        self.shared.queued_bytes.fetch_sub(bytes + abandoned_bytes, Ordering::Relaxed);
    }

    /// Adds the revocations of expired leases to `batch`. Returns the number of keys that they
    /// visit.
    fn expire_leases(&self, batch: &mut Vec<Submission>) -> usize {
        let (now, mut keys) = (Instant::now(), 0);
        while keys < BATCH_KEYS {
            let expired = self.shared.lessor.lock().next_expired(now, EXPIRY_RETRY);
            let Some(id) = expired else { break };
            let command = Command::LeaseRevoke { id };
            keys += self.shared.store.read().visited_keys(&command, BATCH_KEYS);
            let caller = auth::Caller::Store;
            batch.push(Submission { command, caller, bytes: 0, reply: ReplyTo::Nobody });
        }
        keys
    }

    /// Applies the batch in as many rounds as the size of its effects requires, and
    /// replies. Leaves the commands in `batch` for which the thread would have to wait
    /// although it must not.
    fn apply_batch(&mut self, batch: &mut Vec<Submission>, caller: CallingThread) {
        while !batch.is_empty() {
            let Some((count, bytes)) = self.next_round(batch) else {
                // Nobody waits for the first command any more.
                batch.remove(0);
                continue;
            };
            if caller == CallingThread::RuntimeThread && self.reserve_waits(count, bytes) {
                return;
            }
            let round = &batch[..count];
            let replies = match self.reserve(count, bytes) {
                Ok(()) => self.commit(round),
                Err(error) => self.reject(round, &error),
            };
            for (submission, reply) in batch.drain(..count).zip(replies) {
                submission.reply.send(reply);
            }
        }
    }

    /// Returns the number of commands in the next round, and an upper bound of the size
    /// of their effects in bytes. `None` if the first command was abandoned before its bound
    /// was found.
    pub(crate) fn next_round(&self, batch: &[Submission]) -> Option<(usize, usize)> {
        if matches!(self.committer, Committer::Memory) {
            return Some((batch.len(), 0));
        }
        let store = self.shared.store.read();
        let mut round_bytes = 0;
        for (count, submission) in batch.iter().enumerate() {
            let round = (count > 0).then_some((count, round_bytes));
            let command = &submission.command;
            if round.is_some() && Store::bound_needs_current_state(command) {
                return round;
            }
            let cancelled = || submission.is_abandoned();
            let bytes = store.effect_bytes_unless(command, TXN_COMPARE_KEYS, &cancelled);
            let Some(bytes) = bytes else { return round };
            if round.is_some() && round_bytes + bytes > ROUND_BYTES {
                return round;
            }
            round_bytes += bytes;
        }
        Some((batch.len(), round_bytes))
    }

    /// Whether [`Applier::reserve`] with the same arguments waits for the disk.
    fn reserve_waits(&self, commands: usize, bytes: usize) -> bool {
        let Committer::Local(Disk { journal, .. }) = &self.committer else { return false };
        let last_revision = self.shared.store.read().revision() + commands as i64;
        self.shared.failure.get().is_none() && journal.reserve_waits(bytes as u64, last_revision)
    }

    /// Step 1: reserves space in the log for the round, before anything is changed.
    fn reserve(&mut self, commands: usize, bytes: usize) -> Result<(), Error> {
        if let Some(reason) = self.shared.failure.get() {
            return Err(Error::LogFailed(reason.clone()));
        }
        let Committer::Local(Disk { journal, snapshot_trigger, .. }) = &mut self.committer else {
            return Ok(());
        };
        if bytes > wal::MAX_PAYLOAD_BYTES {
            return Err(Error::TooLarge);
        }
        let last_revision = self.shared.store.read().revision() + commands as i64;
        let reserved = journal.reserve(bytes as u64, last_revision);
        let no_space = matches!(reserved, Err(files::Error::NoSpace { .. }));
        self.shared.set_no_space(no_space);
        if no_space {
            // The log does not grow any more, but a snapshot that has failed may succeed now,
            // and free a part of the log.
            let started = snapshot_trigger.start_if_due(&self.shared, journal);
            started.map_err(|error| self.shared.fail(&error))?;
        }
        reserved.map_err(|error| match error {
            files::Error::NoSpace { .. } => Error::NoSpace,
            files::Error::Poisoned => self.shared.fail(&error),
            _ if journal.has_failed() => self.shared.fail(&error),
            // The log is undamaged. An example is that no file descriptor is free.
            other => Error::CannotGrow(other.to_string().into()),
        })
    }

    /// Steps 2 to 5 (see the crate): evaluates the round (2), logs its effects (3), and publishes
    /// it (4 and 5). Returns the replies, which the caller sends.
    fn commit(&mut self, round: &[Submission]) -> Replies {
        let mut effects = Effects::new();
        let evaluated = self.evaluate(round, &mut effects);
        if let Err(error) = self.log(&effects) {
            let error = self.shared.fail(&error);
            return round.iter().map(|_| Err(error.clone())).collect();
        }
        self.publish(round, &evaluated);
        evaluated.replies
    }

    /// Step 2: changes the store. Appends the changes to `effects`.
    pub(crate) fn evaluate(&mut self, round: &[Submission], effects: &mut Effects) -> Evaluated {
        let mut store = ExclusiveStore::lock(&self.shared.store);
        let clock_ms = self.shared.clock.time_ms(Instant::now());
        store.tick(clock_ms);
        if let Committer::Local(disk) = &mut self.committer
            && let Some(renewed) = disk.journal.take_unlogged_renewals(clock_ms)
        {
            store.replay(renewed.clone()).expect("replaying a lease renewal never fails");
            effects.push(renewed);
        }
        let is_replicated = matches!(self.committer, Committer::Replicated);
        if is_replicated {
            store.begin_undo();
        }
        let first_new = store.revision() + 1;
        let mut apply = |s: &Submission| {
            Ok(match mvcc::apply(&mut store, &s.command, &s.caller, effects)? {
                Reply::OpenTxn(txn) => Outcome::OpenTxn(LargeTxn::executed(&self.shared, txn)),
                reply => Outcome::Done(reply),
            })
        };
        let replies = round.iter().map(&mut apply).collect();
        let undo = is_replicated.then(|| store.end_undo());
        let store = store.downgrade();
        let events = store.events_since(first_new).cloned().collect();
        let changes_auth = round.iter().any(|s| matches!(s.command, Command::Auth(_)));
        let auth = changes_auth.then(|| store.auth().clone());
        Evaluated { replies, undo, events, revision: store.revision(), auth }
    }

    /// Step 3: appends the effects to the log, and syncs it if a WAL mode requires it.
    fn log(&mut self, effects: &Effects) -> Result<(), files::Error> {
        let position = self.position();
        let Committer::Local(Disk { journal, snapshot_trigger, .. }) = &mut self.committer else {
            return Ok(());
        };
        if !journal.prepare(effects, position) {
            return Ok(());
        }
        // Space is reserved. If the disk is full all the same, the reservation was too small,
        // which is a bug. The store is already changed, so no later command may be applied:
        // this error stops all writes, as a failed write does.
        journal.write()?;
        snapshot_trigger.start_if_due(&self.shared, journal)?;
        journal.shrink_buffer(BATCH_BYTES);
        Ok(())
    }

    /// Steps 4 and 5: lets readers and watchers see a committed round.
    pub(crate) fn publish(&self, round: &[Submission], evaluated: &Evaluated) {
        let Evaluated { replies, events, revision, auth, .. } = evaluated;
        self.update_lessor(round, replies);
        if let Some(auth) = auth {
            self.shared.auth.publish(auth.clone());
        }
        self.shared.published.store(*revision, Ordering::Release);
        self.shared.hub.publish(events, *revision);
    }

    /// Passes granted and revoked leases to the lessor.
    fn update_lessor(&self, round: &[Submission], replies: &Replies) {
        let succeeded = round.iter().zip(replies).filter(|(_, reply)| reply.is_ok());
        for (submission, _) in succeeded {
            match submission.command {
                Command::LeaseGrant { id, ttl_seconds } => {
                    self.shared.lessor.lock().grant(id, ttl_seconds, Instant::now());
                }
                Command::LeaseRevoke { id } => self.shared.lessor.lock().revoke(id),
                _ => {}
            }
        }
    }

    /// Returns the replies to a round that is not applied because reserving space has
    /// failed. If the only reason is that the log cannot grow (for example, the disk is
    /// full), lease renewals succeed, so that leases do not expire.
    fn reject(&mut self, round: &[Submission], error: &Error) -> Replies {
        let renews = |s: &Submission| matches!(s.command, Command::LeaseRenew { .. });
        let log_cannot_grow = matches!(error, Error::NoSpace | Error::CannotGrow(_));
        if log_cannot_grow && round.iter().any(renews) {
            let clock_ms = self.shared.clock.time_ms(Instant::now());
            if let Committer::Local(disk) = &mut self.committer
                && let Err(error) = disk.journal.set_renewals_unlogged(clock_ms)
            {
                let error = self.shared.fail(&error);
                return round.iter().map(|_| Err(error.clone())).collect();
            }
        }
        let revision = self.shared.published.load(Ordering::Acquire);
        let reply = |s: &Submission| match log_cannot_grow && renews(s) {
            true => Ok(Outcome::Done(Reply::Done { revision })),
            false => Err(error.clone()),
        };
        round.iter().map(reply).collect()
    }

    /// Frees a part of the history that compaction made unreadable, after a batch with this number
    /// of commands. Keeps what can be read at the revision `needed` or later. Discards responses
    /// that hold too much of what was freed.
    pub(crate) fn collect_garbage(&mut self, commands: usize, needed: i64) {
        let max_events = pace::STEP_ENTRIES.max(COLLECTED_EVENTS_PER_COMMAND * commands);
        let pinned = self.shared.pins.lock().oldest(Instant::now()).min(needed);
        let oldest_needed = pinned.min(self.shared.published.load(Ordering::Acquire));
        let mut store = self.shared.store.write();
        let before = store.stats().total_bytes;
        self.collecting = store.collect(oldest_needed, max_events);
        let collected = before - store.stats().total_bytes;
        drop(store);
        let discarded = self.shared.held_records.add_collected(collected.max(0) as u64);
        if !discarded.is_empty() {
            held_records::discard(discarded);
        }
    }

    /// Whether commands wait.
    pub(crate) fn has_commands(&self) -> bool {
        !self.queue.is_empty() || !self.large_commands.is_empty()
    }

    /// Whether garbage is left that the pipeline's thread should collect without waiting.
    pub(crate) fn has_garbage(&self) -> bool {
        self.collecting
    }

    /// Writes the log records that were postponed until the store is idle: see
    /// [`Journal::on_idle`]. Starts a snapshot if one is due.
    pub(crate) fn on_idle(&mut self) {
        if self.shared.failure.get().is_some() {
            return;
        }
        let position = self.position();
        let Committer::Local(Disk { journal, snapshot_trigger, .. }) = &mut self.committer else {
            return;
        };
        match journal.on_idle(position) {
            // These effects are optional. Without space, they are omitted.
            Ok(()) | Err(files::Error::NoSpace { .. }) => {}
            // Report the failure now. The next write may be far away.
            Err(error) if journal.has_failed() => {
                self.shared.fail(&error);
                return;
            }
            Err(error) => tracing::warn!(%error, "could not append to the log of the idle store"),
        }
        if let Err(error) = snapshot_trigger.start_if_due(&self.shared, journal) {
            self.shared.fail(&error);
        }
    }

    /// Marks a clean shutdown in the log and syncs it.
    pub(crate) fn finish(mut self) {
        // After a failure the store may contain changes that the log does not.
        let clean_at = self.shared.failure.get().is_none().then(|| self.position());
        let Committer::Local(disk) = &mut self.committer else { return };
        match disk.journal.close(clean_at) {
            Ok(()) => {}
            // All writes are durable. Only the mark of a clean shutdown is missing.
            Err(error @ files::Error::NoSpace { .. }) => {
                tracing::warn!(%error, "could not mark the clean shutdown in the log");
            }
            Err(error) => drop(self.shared.fail(&error)),
        }
    }

    /// Returns what the journal needs to know about the store.
    fn position(&self) -> StorePosition {
        let store = self.shared.store.read();
        let clock_ms = self.shared.clock.time_ms(Instant::now());
        let has_leases = store.stats().leases > 0;
        StorePosition { revision: store.revision(), clock_ms, has_leases }
    }
}
