//! Who takes the steps when.
//!
//! With nothing to wait for but memory and the page cache, whoever brings
//! commands carries them out: handing them to another thread and being woken by
//! it would cost more than most of them do. One does it at a time; what others
//! bring meanwhile is carried out by the one who is at it. Where each batch waits
//! for a disk, a thread of its own does it. The same thread does, in every mode,
//! what is due without anybody asking.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;

use crate::pace;
use crate::pipeline::Shared;
use crate::worker::{Submission, Worker};

/// The longest that the thread sleeps.
const IDLE: Duration = Duration::from_millis(500);
/// Turns that a caller takes, for itself and for others, before it leaves the
/// rest to the thread.
const TURNS: usize = 4;

pub(crate) struct Engine {
    shared: Arc<Shared>,
    queue: Receiver<Submission>,
    /// Nothing once the store has ended.
    worker: Mutex<Option<Worker>>,
    /// It has ended, and nobody will look at the queue of its own accord.
    ended: AtomicBool,
    /// Whether callers carry out what they bring.
    inline: bool,
    bell: Sender<()>,
    rung: Receiver<()>,
}

impl Engine {
    pub(crate) fn new(
        shared: Arc<Shared>,
        queue: Receiver<Submission>,
        worker: Worker,
        inline: bool,
    ) -> Arc<Self> {
        let (bell, rung) = bounded(1);
        let worker = Mutex::new(Some(worker));
        let ended = AtomicBool::new(false);
        Arc::new(Engine { shared, queue, worker, ended, inline, bell, rung })
    }

    /// Carries out what is in the queue, or has it done.
    pub(crate) fn progress(&self) {
        if self.queue.is_empty() {
            return;
        }
        fence(Ordering::SeqCst);
        if self.ended.load(Ordering::Relaxed) {
            return self.refuse();
        }
        if !self.inline {
            return self.ring();
        }
        for _ in 0..TURNS {
            // Whoever has it looks at the queue again when it is done.
            fence(Ordering::SeqCst);
            let Some(mut worker) = self.worker.try_lock() else { return };
            let Some(worker_there) = worker.as_mut() else { return self.refuse() };
            let before = worker_there.is_collecting();
            worker_there.turn();
            let begins = worker_there.is_collecting() && !before;
            drop(worker);
            if begins {
                self.ring();
            }
            fence(Ordering::SeqCst);
            if self.queue.is_empty() {
                return;
            }
        }
        self.ring();
    }

    /// Tells the thread that there is something to do.
    pub(crate) fn ring(&self) {
        // If it has been told already, it is yet to look.
        let _ = self.bell.try_send(());
    }

    /// The thread: works until the store is asked to end and the queue is empty.
    pub(crate) fn run(&self) {
        let mut patience = Duration::ZERO;
        loop {
            if !patience.is_zero() {
                let _ = self.rung.recv_timeout(patience);
            }
            let stopping = self.shared.stopping.load(Ordering::Acquire);
            let mut worker = self.worker.lock();
            let Some(there) = worker.as_mut() else { return };
            if !there.turn() {
                if stopping {
                    let worker = worker.take();
                    worker.into_iter().for_each(Worker::finish);
                    // Whoever queues something from here on sees this.
                    self.ended.store(true, Ordering::Relaxed);
                    fence(Ordering::SeqCst);
                    return self.refuse();
                }
                there.idle();
            }
            let collecting = there.is_collecting();
            drop(worker);
            fence(Ordering::SeqCst);
            patience = match () {
                () if stopping || !self.queue.is_empty() => Duration::ZERO,
                () if collecting => pace::REST,
                () => self.patience(),
            };
        }
    }

    /// How long to wait for a command before something else is due.
    fn patience(&self) -> Duration {
        let alarm = self.shared.lessor.lock().next_alarm();
        alarm.map_or(IDLE, |at| at.saturating_duration_since(Instant::now()).min(IDLE))
    }

    /// Drops what is in the queue, which tells those who wait.
    fn refuse(&self) {
        while self.queue.try_recv().is_ok() {}
    }
}
