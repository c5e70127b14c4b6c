//! Renewals that arrive within a few milliseconds are handled together.
//!
//! A thread that waits for the next renewal sleeps and wakes up once for each: on a virtual machine that
//! took a quarter of a renewal's CPU time. A kubelet waits 10 s for the answer. So a thread that has
//! handled a renewal looks for the next ones only after [`INTERVAL`], unless one of its clients waits for
//! an API server's answer to something else.

use std::cell::RefCell;
use std::thread;
use std::time::{Duration, Instant};

/// Time between the beginnings of two turns of a thread that only handles renewals. It is also how long calls
/// of the store are collected (`etcd_client::unary`), so that a turn sends the renewals of the last one.
const INTERVAL: Duration = Duration::from_millis(5);

thread_local! {
    static TURNS: RefCell<Turns> = const { RefCell::new(Turns::new()) };
}

/// The turns of a thread.
#[derive(Debug)]
struct Turns {
    /// Whether a renewal was handled in this turn.
    has_renewal: bool,
    /// When this turn has begun, if a pause was before it.
    begun: Option<Instant>,
    /// Requests in progress that an API server answers, without watches.
    requests: usize,
}

impl Turns {
    const fn new() -> Turns {
        Turns { has_renewal: false, begun: None, requests: 0 }
    }

    /// Ends a turn. Returns how long the thread should not look for events.
    fn end(&mut self, now: Instant) -> Duration {
        let begun = self.begun.take().unwrap_or(now);
        if !std::mem::take(&mut self.has_renewal) || self.requests > 0 {
            return Duration::ZERO;
        }
        let pause = INTERVAL.saturating_sub(now.duration_since(begun));
        self.begun = Some(now + pause);
        pause
    }
}

/// This thread has a renewal that it writes to the store.
pub fn renewal_arrived() {
    TURNS.with_borrow_mut(|turns| turns.has_renewal = true);
}

/// A request of this thread's clients goes to an API server, whose answer must not be late.
pub fn request_began() {
    TURNS.with_borrow_mut(|turns| turns.requests += 1);
}

/// A request for which [`request_began`] was called has its answer.
pub fn request_ended() {
    TURNS.with_borrow_mut(|turns| turns.requests = turns.requests.saturating_sub(1));
}

/// Called when this thread has nothing to do, before it waits for events.
pub fn end_turn() {
    let pause = TURNS.with_borrow_mut(|turns| turns.end(Instant::now()));
    if !pause.is_zero() {
        thread::sleep(pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_turns_with_renewals_and_without_requests_have_a_pause() {
        let (mut turns, now) = (Turns::new(), Instant::now());
        assert_eq!(turns.end(now), Duration::ZERO, "a turn without a renewal");
        (turns.has_renewal, turns.requests) = (true, 1);
        assert_eq!(turns.end(now), Duration::ZERO, "a client waits for an API server");
        (turns.has_renewal, turns.requests) = (true, 0);
        assert_eq!(turns.end(now), INTERVAL);
        let later = now + INTERVAL;
        assert_eq!(turns.end(later), Duration::ZERO, "the renewal was in the turn before");
    }

    #[test]
    fn turns_begin_in_intervals() {
        let (mut turns, now) = (Turns::new(), Instant::now());
        turns.has_renewal = true;
        turns.end(now);
        // The turn took a fifth of the interval.
        turns.has_renewal = true;
        assert_eq!(turns.end(now + INTERVAL + INTERVAL / 5), INTERVAL * 4 / 5);
        // The turn took longer than the interval.
        turns.has_renewal = true;
        assert_eq!(turns.end(now + INTERVAL * 4), Duration::ZERO);
    }

    #[test]
    fn requests_are_counted() {
        request_ended();
        request_began();
        request_began();
        request_ended();
        assert_eq!(TURNS.with_borrow(|turns| turns.requests), 1);
        request_ended();
        assert_eq!(TURNS.with_borrow(|turns| turns.requests), 0);
    }
}
