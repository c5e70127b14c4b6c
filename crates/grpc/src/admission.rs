//! Limits how much work the calls of a server do at the same time, and how many bytes of
//! responses they hold.
//!
//! A response occupies memory until the client has read it, and a slow read occupies a
//! thread and keeps old revisions of the store in memory. So both are limited over all
//! connections, and no connection can use up the limit:
//!
//! - *Responses:* a connection that holds more than its part of the [`Budget`] starts no
//!   calls and produces no messages until its client has read some. A connection that holds
//!   almost nothing may always go on, with one response at a time.
//! - *Slow reads:* each holds a slot, and they take turns: see [`crate::slow_reads`]. Those of
//!   a connection begin one after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::budget::{Account, Budget};
use crate::slow_reads::{ConnectionSlots, SlowRead, SlowReads};
use crate::status::Status;

/// Bytes that a connection may hold without counting against the budget. So calls with small
/// responses never wait for other connections, and do not touch the counter that all
/// connections share.
const UNCOUNTED_BYTES: usize = 64 << 10;
/// A connection that holds more than this many bytes waits for its client, even if the
/// budget has more.
const CONNECTION_BYTES: usize = 64 << 20;
/// The bytes for which a slow read counts while it runs: its result is not known yet.
const SLOW_READ_BYTES: usize = 4 << 20;
/// How often a connection checks whether other connections have returned a part of the
/// budget.
pub(crate) const RECHECK_INTERVAL: Duration = Duration::from_millis(50);

/// What the calls of all connections of a server may use.
#[derive(Debug)]
pub struct Capacity {
    /// Bytes of responses that the clients have not read, of requests that wait, and of slow
    /// reads that are running.
    responses: Arc<Budget>,
    slow_reads: Arc<SlowReads>,
}

impl Capacity {
    /// Allows `response_bytes` of unread responses, and `slow_reads` slow reads at the same
    /// time.
    pub fn new(response_bytes: usize, slow_reads: usize) -> Arc<Self> {
        let (responses, slow_reads) = (Budget::new(response_bytes), SlowReads::new(slow_reads));
        Arc::new(Capacity { responses, slow_reads })
    }
}

/// Decides when the calls of one connection may go on.
#[derive(Clone, Debug)]
pub struct Admission(Arc<State>);

#[derive(Debug)]
struct State {
    responses: Account,
    slow_reads: ConnectionSlots,
    /// Held by the slow read that waits for its first turn, so that the others of the connection
    /// wait behind it.
    first_in_line: Semaphore,
    /// Bytes of unread responses; 0 if they are few.
    held: AtomicUsize,
    /// Bytes of the requests of slow reads that wait.
    waiting_bytes: AtomicUsize,
    /// Number of slow reads that have begun.
    running: AtomicUsize,
    /// Notified when `held` or `running` decreases.
    decreased: Notify,
}

impl Admission {
    pub(crate) fn new(capacity: &Capacity) -> Self {
        Admission(Arc::new(State {
            responses: Account::new(capacity.responses.clone()),
            slow_reads: ConnectionSlots::new(&capacity.slow_reads),
            first_in_line: Semaphore::new(1),
            held: AtomicUsize::new(0),
            waiting_bytes: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            decreased: Notify::new(),
        }))
    }

    /// Sets the number of bytes of unread responses, and of calls that have not started.
    /// Returns whether the connection may start another call or produce another message.
    #[inline]
    pub(crate) fn admits(&self, held: usize, deferred: usize) -> bool {
        let bytes = held + deferred + self.0.running_bytes() + self.0.waiting_bytes();
        match bytes <= UNCOUNTED_BYTES && self.0.responses.used() == 0 {
            true => true,
            false => self.0.update(held, bytes),
        }
    }

    /// Runs `read`, which may take long, on a blocking thread. Waits until the connection
    /// may hold its result and a slot is free. `request_bytes` is the size of the request,
    /// which the caller keeps in memory meanwhile.
    ///
    /// Dropping the future cancels a read that waits, and makes [`SlowRead::give_way`] of a
    /// read that is running return true.
    pub async fn run_slow<T: Send + 'static>(
        &self,
        request_bytes: usize,
        read: impl FnOnce(&SlowRead) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let waiting = Counted::add(self, |state| &state.waiting_bytes, request_bytes);
        let cancelled = CancellationToken::new();
        let _cancel = cancelled.clone().drop_guard();
        let (slow, _running) = self.0.begin_slow(self, cancelled).await?;
        drop(waiting);
        let run = move || {
            let result = read(&slow);
            match slow.was_refused() {
                true => Err(Status::resource_exhausted("etcdserver: too many requests")),
                false => Ok(result),
            }
        };
        tokio::task::spawn_blocking(run).await.unwrap_or_else(|error| {
            Err(Status::internal(format!("grpc: a blocking operation failed: {error}")))
        })
    }
}

impl State {
    fn running_bytes(&self) -> usize {
        self.running.load(Ordering::Relaxed) * SLOW_READ_BYTES
    }

    fn waiting_bytes(&self) -> usize {
        self.waiting_bytes.load(Ordering::Relaxed)
    }

    /// See [`Admission::admits`]. `bytes` is the sum of all that counts against the budget.
    #[cold]
    fn update(&self, held: usize, bytes: usize) -> bool {
        // The bytes of a response that is produced piece by piece are not all in memory. So
        // a single huge response must not use up the budget.
        let counted = bytes.saturating_sub(UNCOUNTED_BYTES).min(CONNECTION_BYTES);
        self.responses.set(counted);
        let held = if counted > 0 { held } else { 0 };
        if held < self.held.swap(held, Ordering::Relaxed) {
            self.decreased.notify_one();
        }
        // Other calls do not wait for what a slow read may return.
        self.has_room(0)
    }

    /// Whether the connection may hold more in addition to `expected` bytes. What only waits
    /// does not keep itself waiting.
    fn has_room(&self, expected: usize) -> bool {
        let held = self.held.load(Ordering::Relaxed) + expected;
        let own = held.saturating_sub(UNCOUNTED_BYTES);
        own == 0 || own < self.responses.free().min(CONNECTION_BYTES)
    }

    async fn begin_slow(
        &self,
        admission: &Admission,
        cancelled: CancellationToken,
    ) -> Result<(SlowRead, Counted), Status> {
        let closed = |_| Status::unavailable("etcdserver: server stopped");
        let first_in_line = self.first_in_line.acquire().await.map_err(closed)?;
        loop {
            let decreased = self.decreased.notified();
            // Each of the running reads may return much.
            if self.has_room(self.running_bytes()) {
                break;
            }
            let _ = tokio::time::timeout(RECHECK_INTERVAL, decreased).await;
        }
        let read = self.slow_reads.begin(cancelled).await.map_err(closed)?;
        let running = Counted::add(admission, |state| &state.running, 1);
        drop(first_in_line);
        Ok((read, running))
    }
}

/// Adds an amount to a counter until it is dropped.
struct Counted {
    admission: Admission,
    counter: fn(&State) -> &AtomicUsize,
    amount: usize,
}

impl Counted {
    fn add(admission: &Admission, counter: fn(&State) -> &AtomicUsize, amount: usize) -> Self {
        counter(&admission.0).fetch_add(amount, Ordering::Relaxed);
        Counted { admission: admission.clone(), counter, amount }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.counter)(&self.admission.0).fetch_sub(self.amount, Ordering::Relaxed);
        self.admission.0.decreased.notify_one();
    }
}
