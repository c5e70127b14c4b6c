//! Chooses the thread that runs the [`Applier`].
//!
//! - If no key has `WalMode::Fsync`, the thread that submits a small command runs the applier
//!   itself (*inline*). Passing a command to another thread and being woken by it would
//!   cost more than most commands. Only one thread runs the applier at a time. This
//!   thread also applies the small commands that other threads submit meanwhile.
//! - If a key has `WalMode::Fsync`, a dedicated thread runs the applier. Commands that
//!   arrive during an fsync wait in the queue and share the next fsync.
//!
//! A submitting thread belongs to the async runtime. While it runs the applier, its connections
//! wait, and possibly all others too: it may be the one that waits for I/O. So it must not wait
//! for the disk, and must not execute a large command ([`crate::large_commands`]). It leaves
//! these to the dedicated thread, and also a batch that needs a segment that is not prepared, or
//! an fsync.
//!
//! In both cases the dedicated thread does the work that no command triggers: it revokes
//! expired leases, collects garbage, and writes to the log of an idle store.
//!
//! Invariant: a queued command is never forgotten. A thread that leaves a batch wakes the
//! dedicated thread. A thread that has released the applier checks the queue again. The
//! `SeqCst` fences order this check and the submission: either the check finds the command,
//! or the submitting thread finds the applier free.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use parking_lot::Mutex;

use crate::applier::{Applier, BatchOutcome, CallingThread};
use crate::large_commands::LargeCommands;
use crate::pace;
use crate::shared_store::SharedStore;
use crate::submission::Submission;
use crate::waker::{Wake, Waker, waker};

/// Maximum sleep of the dedicated thread.
const MAX_SLEEP: Duration = Duration::from_millis(500);
/// Maximum number of batches that a submitting thread applies, including commands of
/// other threads. It leaves the rest to the dedicated thread.
const MAX_INLINE_BATCHES: usize = 4;

/// Runs the applier, on the submitting thread or on the dedicated one.
pub(crate) struct Executor {
    shared: Arc<SharedStore>,
    queue: Receiver<Submission>,
    large_commands: Arc<LargeCommands>,
    /// `None` once the store has stopped, and if the store is a member of a cluster: its thread owns
    /// the applier ([`crate::replicated`]).
    applier: Mutex<Option<Applier>>,
    /// Whether the dedicated thread has stopped. After that, no thread executes the
    /// queue.
    stopped: AtomicBool,
    /// Whether submitting threads run the applier.
    inline: bool,
    waker: Waker,
    /// What the dedicated thread waits for; `None` in a cluster.
    wake: Option<Wake>,
}

impl Executor {
    pub(crate) fn new(
        shared: Arc<SharedStore>,
        queue: Receiver<Submission>,
        large_commands: Arc<LargeCommands>,
        applier: Applier,
        inline: bool,
    ) -> Arc<Self> {
        let (waker, wake) = waker();
        let applier = Mutex::new(Some(applier));
        let stopped = AtomicBool::new(false);
        let wake = Some(wake);
        Arc::new(Executor { shared, queue, large_commands, applier, stopped, inline, waker, wake })
    }

    /// Creates the executor of a member of a cluster, which only wakes the thread of the member.
    pub(crate) fn of_member(
        shared: Arc<SharedStore>,
        queue: Receiver<Submission>,
        large_commands: Arc<LargeCommands>,
        waker: Waker,
    ) -> Arc<Self> {
        let (applier, stopped) = (Mutex::new(None), AtomicBool::new(false));
        let (inline, wake) = (false, None);
        Arc::new(Executor { shared, queue, large_commands, applier, stopped, inline, waker, wake })
    }

    /// Applies the queued commands, or wakes the dedicated thread to do so.
    pub(crate) fn run_queue(&self) {
        let has_large = !self.large_commands.is_empty();
        if self.queue.is_empty() && !has_large {
            return;
        }
        fence(Ordering::SeqCst);
        if self.stopped.load(Ordering::Relaxed) {
            return self.drop_queue();
        }
        if !self.inline || has_large {
            self.wake();
        }
        if !self.inline || self.queue.is_empty() {
            return;
        }
        for _ in 0..MAX_INLINE_BATCHES {
            // If another thread has locked the applier, that thread checks the queue
            // again.
            fence(Ordering::SeqCst);
            let Some(mut guard) = self.applier.try_lock() else { return };
            let Some(applier) = guard.as_mut() else { return self.drop_queue() };
            let was_collecting = applier.has_garbage();
            let outcome = applier.apply_next_batch(CallingThread::RuntimeThread);
            let starts_collecting = applier.has_garbage() && !was_collecting;
            drop(guard);
            if starts_collecting {
                self.wake();
            }
            if outcome == BatchOutcome::Deferred {
                return self.wake();
            }
            fence(Ordering::SeqCst);
            if self.queue.is_empty() {
                return;
            }
        }
        self.wake();
    }

    /// Wakes the dedicated thread.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// The main function of the dedicated thread. Returns when the store is stopping and
    /// the queue is empty.
    pub(crate) fn run(&self) {
        let mut timeout = Duration::ZERO;
        let wake = self.wake.as_ref().expect("the store is no member of a cluster");
        loop {
            if !timeout.is_zero() {
                wake.wait(timeout);
            }
            let stopping = self.shared.stopping.load(Ordering::Acquire);
            let mut guard = self.applier.lock();
            let Some(applier) = guard.as_mut() else { return };
            if applier.apply_next_batch(CallingThread::DedicatedThread) == BatchOutcome::Empty {
                if stopping {
                    guard.take().into_iter().for_each(Applier::finish);
                    return self.stop();
                }
                applier.on_idle();
            }
            let collecting = applier.has_garbage();
            drop(guard);
            fence(Ordering::SeqCst);
            timeout = match () {
                () if stopping || self.has_commands() => Duration::ZERO,
                () if collecting => pace::STEP_PAUSE,
                () => self.until_next_expiry(),
            };
        }
    }

    /// Executes no commands any more. The callers of those that are queued get `Error::Stopped`.
    pub(crate) fn stop(&self) {
        // A thread that queues a command after this fence sees that the executor has stopped.
        self.stopped.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.drop_queue();
    }

    fn has_commands(&self) -> bool {
        !self.queue.is_empty() || !self.large_commands.is_empty()
    }

    /// Returns the time until the next lease may expire, at most [`MAX_SLEEP`].
    fn until_next_expiry(&self) -> Duration {
        let next = self.shared.lessor.lock().next_check();
        next.map_or(MAX_SLEEP, |at| at.saturating_duration_since(Instant::now()).min(MAX_SLEEP))
    }

    /// Drops the queued commands. Their callers get `Error::Stopped`.
    fn drop_queue(&self) {
        while self.queue.try_recv().is_ok() {}
        while self.large_commands.pop().is_some() {}
    }
}
