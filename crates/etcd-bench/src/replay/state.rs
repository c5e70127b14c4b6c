//! The state that all replayed calls and streams share, and the order of calls.

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
    /// For each key: the number of its last call, and the signal of its end.
    tails: RefCell<HashMap<u64, (u64, oneshot::Receiver<()>)>>,
    /// Permits for calls in progress.
    pub in_flight: Arc<Semaphore>,
    /// The recorded end and the number of each call in progress.
    pub ends: RefCell<BTreeSet<(u64, u64)>>,
    /// Notifies when a call has ended.
    pub ended: Notify,
    /// Number of replayed requests.
    pub progress: ProgressBar,
}

/// The position of a call in the order of its key's calls.
pub struct Turn {
    key: u64,
    number: u64,
    /// The signal of the previous call's end.
    pub before: Option<oneshot::Receiver<()>>,
    /// Signals the end of this call.
    done: oneshot::Sender<()>,
}

impl ReplayState {
    /// The state of a replay with at most `in_flight` calls in progress.
    pub fn new(in_flight: usize) -> Self {
        ReplayState {
            revisions: RefCell::default(),
            tally: RefCell::default(),
            tails: RefCell::default(),
            in_flight: Arc::new(Semaphore::new(in_flight)),
            ends: RefCell::default(),
            ended: Notify::new(),
            progress: bar(None).with_message("replay"),
        }
    }

    /// Waits for the started calls that ended before `time` in the trace.
    pub async fn wait_for_calls_before(&self, time: u64) {
        while self.ends.borrow().first().is_some_and(|(end, _)| *end < time) {
            self.ended.notified().await;
        }
    }

    /// Adds a call to the order of `key`.
    pub fn turn(&self, key: &[u8], number: u64) -> Turn {
        let key = hash(key);
        let (done, end) = oneshot::channel();
        let before = self.tails.borrow_mut().insert(key, (number, end)).map(|(_, before)| before);
        Turn { key, number, before, done }
    }

    /// Lets the next call of the key start.
    pub fn end_turn(&self, turn: Turn) {
        let mut tails = self.tails.borrow_mut();
        if tails.get(&turn.key).is_some_and(|(last, _)| *last == turn.number) {
            tails.remove(&turn.key);
        }
        // Sending fails if no call waits, which is not an error.
        let _ = turn.done.send(());
    }
}
