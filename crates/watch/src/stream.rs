//! The watchers of one client stream, and the queue to it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use mvcc::{Event, Span};
use parking_lot::Mutex;

use crate::hub::{Hub, State as HubState, Subscriber};

/// How many events may wait in one stream's queue where nothing else is said.
/// Beyond it watchers fall behind and read history instead.
pub const QUEUE_EVENTS: usize = 8192;

/// Events read from history at a time; a revision is never split.
const HISTORY_EVENTS: usize = 1024;

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
    Events { watch_id: i64, revision: i64, events: Vec<Event>, prev_kv: bool, fragment: bool },
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
    /// The client waits for news of progress until all watchers have caught up.
    progress_wanted: bool,
    behind: usize,
}

struct Watcher {
    watch: Arc<Watch>,
    /// While it is behind, the first revision that it has not been given.
    next: i64,
    behind: bool,
    /// Whether it heard anything since the last progress interval.
    fresh: bool,
}

/// An entry of the queue. Events are kept as they were published, shared with
/// other watchers of the span; filters are applied when they are taken out.
enum Item {
    Told(Delivery),
    Events { watch_id: i64, watch: Arc<Watch>, revision: i64, events: Arc<[Event]> },
}

impl Mailbox {
    pub(crate) fn new(limit: usize, wake: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Mailbox { limit, state: Mutex::default(), wake: Box::new(wake) })
    }

    /// Leaves events of a batch that ends at `revision`. Called under the hub's
    /// lock, for a watcher that follows the present.
    pub(crate) fn push_events(&self, watch_id: i64, events: &Arc<[Event]>, revision: i64) {
        let mut state = self.state.lock();
        let fits = state.queued_events == 0 || state.queued_events + events.len() <= self.limit;
        let Some(watcher) = state.watchers.get_mut(&watch_id) else { return };
        if watcher.behind {
            return;
        }
        if !fits {
            watcher.next = watcher.next.max(events[0].revision());
            watcher.behind = true;
            state.behind += 1;
            return;
        }
        let (watch, events) = (watcher.watch.clone(), events.clone());
        state.queue_events(watch_id, watch, revision, events);
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
        let behind = next <= revision;
        state.behind += usize::from(behind);
        let subscriber = Subscriber { mailbox: self.mailbox.clone(), watch_id };
        hub.subscribe(&watch.span, subscriber);
        let watch = Arc::new(watch);
        state.watchers.insert(watch_id, Watcher { watch, next, behind, fresh: false });
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
        let mut quiet = Vec::new();
        for (&watch_id, watcher) in &mut state.watchers {
            let heard = std::mem::take(&mut watcher.fresh);
            let current = !watcher.behind && watcher.watch.start_revision <= revision;
            if watcher.watch.progress_notify && current && !heard {
                quiet.push(watch_id);
            }
        }
        for watch_id in quiet {
            self.mailbox.tell(&mut state, Delivery::Progress { watch_id, revision });
        }
    }

    /// The next thing to tell the client, if there is one now. Watchers that
    /// are behind read from `history`.
    pub fn take(&self, history: &impl History) -> Option<Delivery> {
        loop {
            let mut state = self.mailbox.state.lock();
            match state.queue.pop_front() {
                Some(Item::Told(delivery)) => return Some(delivery),
                Some(Item::Events { watch_id, watch, revision, events }) => {
                    state.queued_events -= events.len();
                    let events = watch.wanted(&events);
                    if events.is_empty() {
                        continue;
                    }
                    if let Some(watcher) = state.watchers.get_mut(&watch_id) {
                        watcher.fresh = true;
                    }
                    let (prev_kv, fragment) = (watch.prev_kv, watch.fragment);
                    return Some(Delivery::Events {
                        watch_id,
                        revision,
                        events,
                        prev_kv,
                        fragment,
                    });
                }
                None if state.behind > 0 => {
                    drop(state);
                    self.catch_up(history);
                }
                None => return None,
            }
        }
    }

    /// Lets one watcher that is behind read on, and leaves what it found in the
    /// queue.
    fn catch_up(&self, history: &impl History) {
        let to = self.hub.lock().revision;
        let state = self.mailbox.state.lock();
        let Some((watch_id, span, from)) = state.furthest_behind() else { return };
        drop(state);

        let mut events = Vec::new();
        let read = match from > to {
            true => Ok(from),
            false => history.read(&span, from, to, HISTORY_EVENTS, &mut events),
        };
        let mut hub = self.hub.lock();
        let mut state = self.mailbox.state.lock();
        let next = match read {
            Ok(next) => next,
            Err(HistoryError { compacted }) => {
                let revision = hub.revision;
                if self.remove(&mut hub, &mut state, watch_id) {
                    let told =
                        Delivery::Compacted { watch_id, compact_revision: compacted, revision };
                    self.mailbox.tell(&mut state, told);
                }
                return self.tell_progress(&hub, &mut state);
            }
        };
        let Some(watcher) = state.watchers.get_mut(&watch_id) else { return };
        watcher.next = next;
        let watch = watcher.watch.clone();
        if next > hub.revision {
            watcher.behind = false;
            state.behind -= 1;
        }
        if !events.is_empty() {
            state.queue_events(watch_id, watch, to, events.into());
        }
        self.tell_progress(&hub, &mut state);
    }

    fn tell_progress(&self, hub: &HubState, state: &mut State) {
        if !state.progress_wanted || state.behind > 0 {
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
        state.behind -= usize::from(watcher.behind);
        hub.unsubscribe(&watcher.watch.span, &self.mailbox, watch_id);
        true
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut hub = self.hub.lock();
        let mut state = self.mailbox.state.lock();
        for (watch_id, watcher) in state.watchers.drain() {
            hub.unsubscribe(&watcher.watch.span, &self.mailbox, watch_id);
        }
        // The mailbox may outlive the stream in a publication under way.
        state.queue.clear();
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

    /// The watcher that has most to read: its ID, its span, and from where.
    fn furthest_behind(&self) -> Option<(i64, Span, i64)> {
        let behind = self.watchers.iter().filter(|(_, watcher)| watcher.behind);
        let (id, watcher) = behind.min_by_key(|(_, watcher)| watcher.next)?;
        Some((*id, watcher.watch.span.clone(), watcher.next))
    }

    fn queue_events(
        &mut self,
        watch_id: i64,
        watch: Arc<Watch>,
        revision: i64,
        events: Arc<[Event]>,
    ) {
        self.queued_events += events.len();
        self.queue.push_back(Item::Events { watch_id, watch, revision, events });
    }
}

impl Watch {
    fn wanted(&self, events: &[Event]) -> Vec<Event> {
        let wanted =
            |event: &&Event| event.revision() >= self.start_revision && self.filter.admits(event);
        events.iter().filter(wanted).cloned().collect()
    }
}
