//! The state that all replayed calls and streams share, and the order of the calls.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use indicatif::ProgressBar;
use tokio::sync::{Notify, Semaphore, oneshot};

use super::revisions::{Revisions, hash};
use super::tally::Tally;
use crate::progress::bar;

/// The state that all replayed calls and streams share.
pub struct ReplayState {
    /// The translation of revisions and leases.
    pub revisions: RefCell<Revisions>,
    /// The results so far.
    pub tally: RefCell<Tally>,
    /// Maps the hash of a key to the newest started call of the key: its sequence number, and the
    /// channel on which it signals its end.
    last_calls: RefCell<HashMap<u64, (u64, oneshot::Receiver<()>)>>,
    /// Permits for calls in progress.
    pub in_flight: Arc<Semaphore>,
    /// For each call in progress: the time at which it ended in the trace, in nanoseconds since the
    /// start of the trace, and its sequence number.
    pub recorded_ends: RefCell<BTreeSet<(u64, u64)>>,
    /// Notifies the dispatcher when a call has ended.
    pub call_ended: Notify,
    /// Shows the number of replayed requests.
    pub progress: ProgressBar,
}

/// The position of a call among the calls of the same key.
pub struct Turn {
    /// The hash of the key.
    key: u64,
    /// The sequence number of the call.
    sequence: u64,
    /// The channel on which the previous call of the key signals its end. `None` if no previous
    /// call is in progress.
    pub previous: Option<oneshot::Receiver<()>>,
    /// Sends the signal of the end of this call.
    done: oneshot::Sender<()>,
}

impl ReplayState {
    /// Creates the state of a replay with at most `in_flight` unary calls in progress.
    pub fn new(in_flight: usize) -> Self {
        ReplayState {
            revisions: RefCell::default(),
            tally: RefCell::default(),
            last_calls: RefCell::default(),
            in_flight: Arc::new(Semaphore::new(in_flight)),
            recorded_ends: RefCell::default(),
            call_ended: Notify::new(),
            progress: bar(None).with_message("replay"),
        }
    }

    /// Waits for every started call that ended before `time` in the trace.
    pub async fn wait_for_calls_before(&self, time: u64) {
        while self.recorded_ends.borrow().first().is_some_and(|(end, _)| *end < time) {
            self.call_ended.notified().await;
        }
    }

    /// Adds a call as the last one of `key`.
    pub fn new_turn(&self, key: &[u8], sequence: u64) -> Turn {
        let key = hash(key);
        let (done, end) = oneshot::channel();
        let previous = self.last_calls.borrow_mut().insert(key, (sequence, end));
        Turn { key, sequence, previous: previous.map(|(_, end)| end), done }
    }

    /// Ends a call: the next call of the key may start.
    pub fn end_turn(&self, turn: Turn) {
        let mut last_calls = self.last_calls.borrow_mut();
        if last_calls.get(&turn.key).is_some_and(|(last, _)| *last == turn.sequence) {
            last_calls.remove(&turn.key);
        }
        // Sending fails if no call waits, which is not an error.
        let _ = turn.done.send(());
    }
}
