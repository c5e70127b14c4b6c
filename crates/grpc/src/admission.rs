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
//! - *Replies:* a write is only queued when it starts, so many start before the first of their
//!   replies counts. A large reply is therefore encoded only when the connection may hold it.
//!   Until then it refers to records of the store.
//! - *Memory:* a response that is encoded while it is sent is larger than its memory, and may
//!   exceed what a connection may hold. So its memory counts as well, already while a slow
//!   read gathers it. While all of this budget is used, a connection starts slow reads only if it
//!   uses less than its guaranteed part. A connection whose client does not read is closed, and
//!   soon if this budget is scarce.
//! - *Slow reads:* each holds a slot, and they take turns: see [`crate::slow_reads`]. Those of
//!   a connection begin one after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::budget::{Account, Budget, Share};
use crate::metadata::Metadata;
use crate::slow_reads::{ConnectionSlots, SLOW_READ_BYTES, SlowRead, SlowReads};
use crate::stall::Patience;
use crate::status::Status;

/// Bytes that a connection may hold without counting against the budget. So calls with small
/// responses never wait for other connections, and do not touch the counter that all
/// connections share.
pub(crate) const UNCOUNTED_BYTES: usize = 64 << 10;
/// A connection that holds more than this many bytes waits for its client, even if the
/// budget has more.
const CONNECTION_BYTES: usize = 64 << 20;
/// A connection starts no calls if more than this many bytes wait: requests of slow reads and
/// expected replies, or replies.
const WAITING_BYTES: usize = 32 << 20;
/// A reply of at most this many bytes is encoded at once, such as that to a put. A client may
/// need it before it reads something else.
const SMALL_REPLY_BYTES: usize = 256;
/// A connection that holds more than this many bytes is closed if its client does not read.
const STALL_BYTES: usize = 4 << 20;
/// A request of at most this many bytes does not count against the budget for requests while its
/// streaming call lasts: the stream itself counts, see [`crate::open_streams`].
const SMALL_REQUEST_BYTES: usize = 512;
/// How often a connection checks whether other connections have returned a part of the
/// budget.
pub(crate) const RECHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The error of a call for which there is no room. etcd has the same text.
pub(crate) const TOO_MANY_REQUESTS: &str = "etcdserver: too many requests";

/// What the calls of all connections of a server may use.
#[derive(Debug)]
pub struct Capacity {
    /// Bytes of responses that the clients have not read, of requests that wait, and of slow
    /// reads that are running.
    responses: Arc<Budget>,
    /// Memory of the responses that the clients have not read, and of those that slow reads
    /// gather.
    memory: Arc<Budget>,
    /// Memory of what calls keep as long as they last, such as watches.
    kept: Arc<Budget>,
    slow_reads: Arc<SlowReads>,
}

/// What the client of a connection has not read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unread {
    /// Size in bytes, or `memory` if that is more.
    pub(crate) bytes: usize,
    /// Its memory in bytes. It is less than the size if a response is encoded while it is
    /// sent.
    pub(crate) memory: usize,
}

impl Capacity {
    /// Allows `response_bytes` of unread responses, twice as many bytes that calls keep, and
    /// `slow_reads` slow reads at the same time.
    pub fn new(response_bytes: usize, slow_reads: usize) -> Arc<Self> {
        Arc::new(Capacity {
            responses: Budget::new(response_bytes),
            memory: Budget::new(response_bytes),
            kept: Budget::new(2 * response_bytes),
            slow_reads: SlowReads::new(slow_reads),
        })
    }
}

/// What a handler has to know about its call and its connection: when the call may go on, and who
/// the client says it is.
#[derive(Clone, Debug)]
pub struct Admission {
    connection: Arc<State>,
    metadata: Option<Arc<Metadata>>,
}

#[derive(Debug)]
struct State {
    client_name: Option<Arc<str>>,
    responses: Account,
    /// Memory of unread responses, without the first [`UNCOUNTED_BYTES`].
    memory: Account,
    /// Memory of the results of slow reads that are running, and of expected replies. It has a
    /// guaranteed part of its own, beside that of `memory`.
    gathered: Arc<Account>,
    kept: Arc<Account>,
    /// What requests use of the budget for requests.
    requests: Arc<Account>,
    slow_reads: ConnectionSlots,
    /// Held by the slow read that waits for its first turn, so that the others of the connection
    /// wait behind it.
    first_in_line: Semaphore,
    /// Bytes of unread responses; 0 if they are few.
    held: AtomicUsize,
    /// Bytes of the requests of slow reads that wait, and of expected replies.
    waiting_bytes: AtomicUsize,
    /// Bytes of the replies that wait until the connection may hold them.
    waiting_replies: AtomicUsize,
    /// Lets one of these replies check again.
    next_reply: Notify,
    /// Number of slow reads that have begun.
    running: AtomicUsize,
    /// Notified when `held` or `running` decreases.
    decreased: Notify,
}

impl Admission {
    /// Creates the admission of the calls without metadata of a connection.
    pub(crate) fn new(
        capacity: &Capacity,
        requests: Arc<Account>,
        client_name: Option<Arc<str>>,
    ) -> Self {
        let connection = Arc::new(State {
            client_name,
            responses: Account::new(capacity.responses.clone()),
            memory: Account::new(capacity.memory.clone()),
            gathered: Arc::new(Account::new(capacity.memory.clone())),
            kept: Arc::new(Account::new(capacity.kept.clone())),
            requests,
            slow_reads: ConnectionSlots::new(&capacity.slow_reads),
            first_in_line: Semaphore::new(1),
            held: AtomicUsize::new(0),
            waiting_bytes: AtomicUsize::new(0),
            waiting_replies: AtomicUsize::new(0),
            next_reply: Notify::new(),
            running: AtomicUsize::new(0),
            decreased: Notify::new(),
        });
        Admission { connection, metadata: None }
    }

    /// Starts a call of the same connection with its own admission.
    #[inline]
    pub(crate) fn start_call<T>(
        &self,
        metadata: Option<Arc<Metadata>>,
        start: impl FnOnce(&Admission) -> T,
    ) -> T {
        match metadata {
            None => start(self),
            metadata => start(&Admission { connection: self.connection.clone(), metadata }),
        }
    }

    /// The token that the client has sent with the call.
    pub fn token(&self) -> Option<&str> {
        self.metadata.as_ref().and_then(|metadata| metadata.token())
    }

    /// Whether the client wants the call to fail while the cluster has no leader (etcd's
    /// `WithRequireLeader`).
    pub fn requires_leader(&self) -> bool {
        self.metadata.as_ref().is_some_and(|metadata| metadata.requires_leader())
    }

    /// The name that the client has proved by its certificate; `None` if it has no certificate,
    /// or forwards the call of another client.
    pub fn client_name(&self) -> Option<&Arc<str>> {
        let forwards = self.metadata.as_ref().is_some_and(|metadata| metadata.is_from_gateway());
        self.connection.client_name.as_ref().filter(|_| !forwards)
    }

    /// Returns a number that no other open connection has.
    pub fn connection(&self) -> usize {
        Arc::as_ptr(&self.connection) as usize
    }

    /// What requests of the connection use of the budget for requests.
    pub(crate) fn requests(&self) -> &Arc<Account> {
        &self.connection.requests
    }

    /// Sets the number of bytes of unread responses, and of calls that have not started.
    /// Returns whether the connection may start another call or produce another message.
    #[inline]
    pub(crate) fn admits(&self, unread: Unread, deferred: usize) -> bool {
        let waiting = self.connection.waiting_bytes() + self.connection.waiting_replies();
        let bytes = unread.bytes + deferred + self.connection.running_bytes() + waiting;
        match bytes <= UNCOUNTED_BYTES && self.connection.responses.used() == 0 {
            true => true,
            false => self.connection.update(unread, bytes),
        }
    }

    /// How long the client of a connection that holds `bytes` bytes for it may make no progress.
    pub(crate) fn patience(&self, bytes: usize) -> Patience {
        if self.connection.memory.should_shrink() || self.connection.requests.should_shrink() {
            Patience::Short
        } else if bytes > STALL_BYTES || self.replies_wait() || self.connection.memory.free() == 0 {
            Patience::Long
        } else {
            Patience::Unlimited
        }
    }

    /// Whether the connection may hold another reply.
    pub(crate) fn has_room(&self) -> bool {
        self.connection.has_room(0)
    }

    /// Whether replies wait until the connection may hold them.
    pub(crate) fn replies_wait(&self) -> bool {
        self.connection.waiting_replies() > 0
    }

    /// Waits until the connection may hold a reply of `bytes` bytes, unless it is small.
    /// [`Admission::let_reply_go_on`] ends the wait.
    pub(crate) async fn wait_for_room(&self, bytes: usize) {
        if bytes <= SMALL_REPLY_BYTES {
            return;
        }
        let _waiting = Counted::add(self, |state| &state.waiting_replies, bytes);
        while !self.has_room() {
            self.connection.next_reply.notified().await;
        }
    }

    /// Lets the reply that has waited longest go on if the connection may hold it. Call it
    /// whenever [`Admission::admits`] was called and replies may go on.
    pub(crate) fn let_reply_go_on(&self) {
        if self.replies_wait() && self.has_room() {
            self.connection.next_reply.notify_one();
        }
    }

    /// Counts the request message of a streaming call, of `bytes` bytes, as long as the call lasts:
    /// its handler may keep it. Fails if there is no memory for it.
    pub(crate) fn keep_request(&self, bytes: usize) -> Result<Share, Status> {
        let mut share = Share::new(self.connection.requests.clone());
        if bytes > SMALL_REQUEST_BYTES && share.grow(bytes).is_err() {
            return Err(Status::resource_exhausted(TOO_MANY_REQUESTS));
        }
        Ok(share)
    }

    /// Reserves memory for what a call keeps until it ends. It is empty at first.
    pub fn reserve(&self) -> Reservation {
        Reservation(Share::new(self.connection.kept.clone()))
    }

    /// Counts the memory of a reply that does not exist yet, until the guard is dropped. A
    /// connection that expects much starts no calls. Fails if there is no memory for the reply.
    pub fn expect_reply(&self, bytes: usize) -> Result<ExpectedReply, Status> {
        let _counted = Counted::add(self, |state| &state.waiting_bytes, bytes);
        let _memory = self.connection.share_of_waiting(&self.connection.gathered, bytes)?;
        Ok(ExpectedReply { _counted, _memory })
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
        // The request stays in memory while the read runs.
        let _request =
            self.connection.share_of_waiting(&self.connection.requests, request_bytes)?;
        let cancelled = CancellationToken::new();
        let _cancel = cancelled.clone().drop_guard();
        let (slow, _running) = self.connection.begin_slow(self, cancelled).await?;
        drop(waiting);
        let run = move || {
            let result = read(&slow);
            match slow.was_refused() {
                true => Err(Status::resource_exhausted(TOO_MANY_REQUESTS)),
                false => Ok(result),
            }
        };
        tokio::task::spawn_blocking(run).await.unwrap_or_else(|error| {
            Err(Status::internal(format!("grpc: a blocking operation failed: {error}")))
        })
    }
}

/// Memory that the reply of a call is expected to need. It counts until this is dropped.
pub struct ExpectedReply {
    _counted: Counted,
    _memory: Share,
}

/// Memory that a call keeps until it ends, or drops the reservation.
#[derive(Debug)]
pub struct Reservation(Share);

impl Reservation {
    /// Changes the size of the reservation. Returns false, and changes nothing, if the
    /// connection would then keep more than it leaves free.
    pub fn resize(&mut self, bytes: usize) -> bool {
        self.0.resize(bytes).is_ok()
    }
}

impl State {
    fn running_bytes(&self) -> usize {
        self.running.load(Ordering::Relaxed) * SLOW_READ_BYTES
    }

    fn waiting_bytes(&self) -> usize {
        self.waiting_bytes.load(Ordering::Relaxed)
    }

    /// Takes `bytes`, which were added to `waiting_bytes`, of a budget that all connections share,
    /// unless little waits. So a connection may always let something wait. Fails if the connection
    /// would then use more of the budget than it leaves free.
    fn share_of_waiting(&self, account: &Arc<Account>, bytes: usize) -> Result<Share, Status> {
        let mut share = Share::new(account.clone());
        if self.waiting_bytes() > UNCOUNTED_BYTES && share.grow(bytes).is_err() {
            return Err(Status::resource_exhausted(TOO_MANY_REQUESTS));
        }
        Ok(share)
    }

    fn waiting_replies(&self) -> usize {
        self.waiting_replies.load(Ordering::Relaxed)
    }

    /// See [`Admission::admits`]. `bytes` is the sum of all that counts against the budget.
    #[cold]
    fn update(&self, unread: Unread, bytes: usize) -> bool {
        let memory = unread.memory.saturating_sub(UNCOUNTED_BYTES);
        self.memory.set(memory);
        // The bytes of a response that is produced piece by piece are not all in memory. So
        // a single huge response counts with the memory that it holds.
        let counted = bytes.saturating_sub(UNCOUNTED_BYTES).min(CONNECTION_BYTES).max(memory);
        self.responses.set(counted);
        let held = if counted > 0 { unread.bytes } else { 0 };
        if held < self.held.swap(held, Ordering::Relaxed) {
            self.decreased.notify_one();
        }
        // Other calls do not wait for what a slow read may return.
        self.has_room(0)
            && self.waiting_bytes() <= WAITING_BYTES
            && self.waiting_replies() <= WAITING_BYTES
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
        let read = loop {
            let decreased = self.decreased.notified();
            // Each of the running reads may return much.
            if self.has_room(self.running_bytes()) {
                let gathered = Share::new(self.gathered.clone());
                let read = self.slow_reads.begin(cancelled.clone(), gathered).await;
                let read = read.map_err(closed)?;
                // The result of a slow read may be large, even that of a connection that holds
                // nothing. Other reads may have used the memory during the wait for the slot.
                if self.memory.has_room() {
                    break read;
                }
            }
            let _ = tokio::time::timeout(RECHECK_INTERVAL, decreased).await;
        };
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
        counter(&admission.connection).fetch_add(amount, Ordering::Relaxed);
        Counted { admission: admission.clone(), counter, amount }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.counter)(&self.admission.connection).fetch_sub(self.amount, Ordering::Relaxed);
        self.admission.connection.decreased.notify_one();
    }
}
