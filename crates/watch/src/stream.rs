//! The watchers of one client stream, and the queue to it.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use mvcc::{Event, Span};
use parking_lot::Mutex;

use crate::batch::{Batch, Events};
use crate::hub::{Hub, Seat, State as HubState, Subscriber};

/// How many events may wait in one stream's queue where nothing else is said.
/// Beyond it watchers fall behind and read history instead.
pub const QUEUE_EVENTS: usize = 8192;

/// The same in bytes of keys and values, because what waits is kept in memory
/// however old it gets.
const QUEUE_BYTES: usize = 8 << 20;

/// Events read from history at a time; a revision is never split.
const HISTORY_EVENTS: usize = 1024;

/// Watchers of an ending stream that leave the hub at a time.
const DROPPED_A_TURN: usize = 1000;

/// Reads of history in one look for something to tell. Then others get a turn.
const HISTORY_READS_A_TURN: usize = 8;

/// What a client wants to watch.
#[derive(Clone, Debug)]
pub struct Watch {
    /// The ID that the client chose, or 0 to be given one.
    pub id: i64,
    /// The keys.
    pub span: Span,
    /// The first revision of interest; 0 for the next one. Not negative.
    pub start_revision: i64,
    /// Events that are not wanted.
    pub filter: Filter,
    /// Whether an event carries the key as it was before.
    pub prev_kv: bool,
    /// Whether the client wants to hear of progress in quiet times.
    pub progress_notify: bool,
    /// Whether a delivery may be split to keep messages small.
    pub fragment: bool,
}

/// Kinds of events to leave out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filter {
    /// Leave out writes.
    pub no_put: bool,
    /// Leave out deletions.
    pub no_delete: bool,
}

impl Filter {
    fn admits(self, event: &Event) -> bool {
        if event.record.is_tombstone() { !self.no_delete } else { !self.no_put }
    }
}

/// Why a watch was not created; the texts are etcd's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The span cannot contain a key.
    EmptyRange,
    /// The stream has a watch of this ID.
    DuplicateId,
}

impl Refusal {
    /// The reason as etcd words it.
    pub fn reason(self) -> &'static str {
        match self {
            Refusal::EmptyRange => "mvcc: watcher range is empty",
            Refusal::DuplicateId => "mvcc: duplicate watch ID provided on the WatchStream",
        }
    }
}

/// What the client is to be told next. `revision` is that of the header.
#[derive(Clone, Debug)]
pub enum Delivery {
    /// The watch exists from now on.
    Created { watch_id: i64, revision: i64 },
    /// The watch was not created.
    Refused { reason: &'static str, revision: i64 },
    /// The watch ended because the client asked for it.
    Canceled { watch_id: i64, revision: i64 },
    /// The watch ended because what it has yet to see is gone.
    Compacted { watch_id: i64, compact_revision: i64, revision: i64 },
    /// Something happened. Never empty.
    Events { watch_id: i64, revision: i64, events: Events, prev_kv: bool, fragment: bool },
    /// Everything up to `revision` has been delivered, to this watcher or
    /// (with the ID -1) to all watchers of the stream.
    Progress { watch_id: i64, revision: i64 },
}

/// Where watchers that fell behind read what they missed.
pub trait History {
    /// Appends to `events` those of `span` from revision `from` to `to`, both
    /// included, but ends after `limit` events were looked at, at the end of a
    /// revision. Returns the first revision that was not looked at.
    fn read(
        &self,
        span: &Span,
        from: i64,
        to: i64,
        limit: usize,
        events: &mut Vec<Event>,
    ) -> Result<i64, HistoryError>;
}

/// History before `compacted` is gone.
#[derive(Clone, Copy, Debug)]
pub struct HistoryError {
    /// The first revision that can be read.
    pub compacted: i64,
}

/// The watchers of one client, which live as long as it does.
pub struct Stream {
    hub: Arc<Hub>,
    mailbox: Arc<Mailbox>,
}

pub(crate) struct Mailbox {
    /// Events that may wait in the queue; a single larger batch may as well.
    limit: usize,
    state: Mutex<State>,
    wake: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct State {
    watchers: HashMap<i64, Watcher>,
    next_id: i64,
    queue: VecDeque<Item>,
    queued_events: usize,
    queued_bytes: usize,
    /// The client waits for news of progress until all watchers have caught up.
    progress_wanted: bool,
    /// The watchers that are behind, by the revision from which they read on.
    behind: BTreeSet<(i64, i64)>,
}

struct Watcher {
    watch: Arc<Watch>,
    /// Where the hub has it.
    seat: Seat,
    /// If it is behind, the first revision that it has not been given.
    behind: Option<i64>,
    /// Whether it heard anything since the last progress interval.
    fresh: bool,
}

/// An entry of the queue. Events are kept as they were published, shared with
/// other watchers of the span; filters are applied when they are taken out.
enum Item {
    Told(Delivery),
    Events { watch_id: i64, watch: Arc<Watch>, batch: Batch },
}

impl Mailbox {
    pub(crate) fn new(limit: usize, wake: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Mailbox { limit, state: Mutex::default(), wake: Box::new(wake) })
    }

    /// Leaves a batch with a watcher that follows the present. Called under the
    /// hub's lock.
    pub(crate) fn push(&self, watch_id: i64, batch: &Batch) {
        let mut state = self.state.lock();
        let fits = state.queued_events == 0
            || state.queued_events + batch.events().len() <= self.limit
                && state.queued_bytes + batch.bytes() <= QUEUE_BYTES;
        let Some(watcher) = state.watchers.get_mut(&watch_id) else { return };
        if watcher.behind.is_some() {
            return;
        }
        if !fits {
            let from = watcher.watch.start_revision.max(batch.events()[0].revision());
            watcher.behind = Some(from);
            state.behind.insert((from, watch_id));
            return;
        }
        let watch = watcher.watch.clone();
        state.queue_batch(watch_id, watch, batch.clone());
        drop(state);
        (self.wake)();
    }

    fn tell(&self, state: &mut State, delivery: Delivery) {
        state.queue.push_back(Item::Told(delivery));
        (self.wake)();
    }
}

impl Stream {
    pub(crate) fn new(hub: Arc<Hub>, mailbox: Arc<Mailbox>) -> Self {
        Stream { hub, mailbox }
    }

    /// Creates a watch; the answer and all that follows come by [`Stream::take`].
    pub fn create(&self, watch: Watch) {
        let mut hub = self.hub.lock();
        let mut state = self.mailbox.state.lock();
        let revision = hub.revision;
        let refusal = match () {
            () if watch.span.is_empty() => Some(Refusal::EmptyRange),
            () if watch.id != 0 && state.watchers.contains_key(&watch.id) => {
                Some(Refusal::DuplicateId)
            }
            () => None,
        };
        if let Some(refusal) = refusal {
            let reason = refusal.reason();
            return self.mailbox.tell(&mut state, Delivery::Refused { reason, revision });
        }
        let watch_id = if watch.id != 0 { watch.id } else { state.free_id() };
        let next = if watch.start_revision == 0 { revision + 1 } else { watch.start_revision };
        let behind = (next <= revision).then_some(next);
        state.behind.extend(behind.map(|next| (next, watch_id)));
        let subscriber = Subscriber { mailbox: self.mailbox.clone(), watch_id };
        let seat = hub.subscribe(&watch.span, subscriber);
        let watch = Arc::new(watch);
        state.watchers.insert(watch_id, Watcher { watch, seat, behind, fresh: false });
        self.mailbox.tell(&mut state, Delivery::Created { watch_id, revision });
    }

    /// Answers a request for a watch that cannot be.
    pub fn refuse(&self, reason: &'static str) {
        let revision = self.hub.lock().revision;
        let mut state = self.mailbox.state.lock();
        self.mailbox.tell(&mut state, Delivery::Refused { reason, revision });
    }

    /// Entries that wait to be taken.
    pub fn backlog(&self) -> usize {
        self.mailbox.state.lock().queue.len()
    }

    /// Ends a watch; of one that does not exist nothing is said.
    pub fn cancel(&self, watch_id: i64) {
        let mut hub = self.hub.lock();
        let revision = hub.revision;
        let mut state = self.mailbox.state.lock();
        if self.remove(&mut hub, &mut state, watch_id) {
            self.mailbox.tell(&mut state, Delivery::Canceled { watch_id, revision });
            // Perhaps it was the one that the others waited for.
            self.tell_progress(&hub, &mut state);
        }
    }

    /// Asks to be told how far all watchers of the stream have got, as soon as
    /// none of them is behind. Without watchers there is no answer.
    pub fn request_progress(&self) {
        let hub = self.hub.lock();
        let mut state = self.mailbox.state.lock();
        state.progress_wanted = true;
        self.tell_progress(&hub, &mut state);
    }

    /// Tells each watcher that asked for it, and has heard nothing since the
    /// last call, how far it has got.
    pub fn progress_interval(&self) {
        let hub = self.hub.lock();
        let revision = hub.revision;
        let mut state = self.mailbox.state.lock();
        if !state.queue.is_empty() {
            // Where something waits to be told there is no quiet to break.
            return;
        }
        let mut quiet = Vec::new();
        for (&watch_id, watcher) in &mut state.watchers {
            let heard = std::mem::take(&mut watcher.fresh);
            let current = watcher.behind.is_none() && watcher.watch.start_revision <= revision;
            if watcher.watch.progress_notify && current && !heard {
                quiet.push(watch_id);
            }
        }
        for watch_id in quiet {
            self.mailbox.tell(&mut state, Delivery::Progress { watch_id, revision });
        }
    }

    /// The next thing to tell the client, if there is one now. Watchers that
    /// are behind read from `history`, a bounded part of it; if there is more,
    /// the stream is woken again.
    pub fn take(&self, history: &impl History) -> Option<Delivery> {
        let mut reads = 0;
        loop {
            let mut state = self.mailbox.state.lock();
            match state.queue.pop_front() {
                Some(Item::Told(delivery)) => return Some(delivery),
                Some(Item::Events { watch_id, watch, batch }) => {
                    let delivery = state.deliver(watch_id, &watch, batch);
                    if delivery.is_some() {
                        return delivery;
                    }
                }
                None if state.behind.is_empty() => return None,
                None if reads == HISTORY_READS_A_TURN => {
                    drop(state);
                    (self.mailbox.wake)();
                    return None;
                }
                None => {
                    drop(state);
                    self.catch_up(history);
                    reads += 1;
                }
            }
        }
    }

    /// Lets the watcher that is furthest behind read on, and leaves what it
    /// found in the queue.
    fn catch_up(&self, history: &impl History) {
        let to = self.hub.lock().revision;
        let state = self.mailbox.state.lock();
        let Some(&(from, watch_id)) = state.behind.first() else { return };
        let watch = state.watchers[&watch_id].watch.clone();
        drop(state);

        let mut events = Vec::new();
        let read = match from > to {
            true => Ok(from),
            false => history.read(&watch.span, from, to, HISTORY_EVENTS, &mut events),
        };
        let mut hub = self.hub.lock();
        let mut state = self.mailbox.state.lock();
        // Canceled meanwhile; another of the same ID may be there by now.
        let same = |watcher: &&mut Watcher| Arc::ptr_eq(&watcher.watch, &watch);
        let Some(watcher) = state.watchers.get_mut(&watch_id).filter(same) else { return };
        match read {
            Ok(next) => {
                watcher.behind = (next <= hub.revision).then_some(next);
                let behind = watcher.behind;
                state.behind.remove(&(from, watch_id));
                state.behind.extend(behind.map(|next| (next, watch_id)));
                if !events.is_empty() {
                    state.queue_batch(watch_id, watch, Batch::new(to, events));
                }
            }
            Err(HistoryError { compacted: compact_revision }) => {
                let revision = hub.revision;
                self.remove(&mut hub, &mut state, watch_id);
                let told = Delivery::Compacted { watch_id, compact_revision, revision };
                self.mailbox.tell(&mut state, told);
            }
        }
        self.tell_progress(&hub, &mut state);
    }

    fn tell_progress(&self, hub: &HubState, state: &mut State) {
        if !state.progress_wanted || !state.behind.is_empty() {
            return;
        }
        state.progress_wanted = false;
        let revision = hub.revision;
        let waiting = |watcher: &Watcher| watcher.watch.start_revision > revision;
        if state.watchers.is_empty() || state.watchers.values().any(waiting) {
            return;
        }
        self.mailbox.tell(state, Delivery::Progress { watch_id: -1, revision });
    }

    fn remove(&self, hub: &mut HubState, state: &mut State, watch_id: i64) -> bool {
        let Some(watcher) = state.watchers.remove(&watch_id) else { return false };
        if let Some(from) = watcher.behind {
            state.behind.remove(&(from, watch_id));
        }
        hub.unsubscribe(&watcher.watch.span, watcher.seat);
        true
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut watchers: Vec<Watcher> = {
            let mut state = self.mailbox.state.lock();
            // The mailbox may outlive the stream in a publication under way.
            state.queue.clear();
            state.watchers.drain().map(|(_, watcher)| watcher).collect()
        };
        // In parts, so that a publication need not wait for a million of them.
        while !watchers.is_empty() {
            let mut hub = self.hub.lock();
            for watcher in watchers.drain(watchers.len().saturating_sub(DROPPED_A_TURN)..) {
                hub.unsubscribe(&watcher.watch.span, watcher.seat);
            }
        }
    }
}

impl State {
    fn free_id(&mut self) -> i64 {
        while self.watchers.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        self.next_id - 1
    }

    fn queue_batch(&mut self, watch_id: i64, watch: Arc<Watch>, batch: Batch) {
        self.queued_events += batch.events().len();
        self.queued_bytes += batch.bytes();
        self.queue.push_back(Item::Events { watch_id, watch, batch });
    }

    /// What of a batch that was queued the watcher wants, if anything.
    fn deliver(&mut self, watch_id: i64, watch: &Watch, batch: Batch) -> Option<Delivery> {
        self.queued_events -= batch.events().len();
        self.queued_bytes -= batch.bytes();
        let revision = batch.revision;
        let events = Events::wanted(batch, |event| watch.wants(event))?;
        if let Some(watcher) = self.watchers.get_mut(&watch_id) {
            watcher.fresh = true;
        }
        let (prev_kv, fragment) = (watch.prev_kv, watch.fragment);
        Some(Delivery::Events { watch_id, revision, events, prev_kv, fragment })
    }
}

impl Watch {
    fn wants(&self, event: &Event) -> bool {
        event.revision() >= self.start_revision && self.filter.admits(event)
    }
}
