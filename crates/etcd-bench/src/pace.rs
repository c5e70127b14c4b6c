//! Says when the next operation of an open loop is due.
//!
//! A thread of its own waits: the runtime's timer is late by up to a millisecond,
//! which would count as the server's latency, and to spin would take the core from
//! whoever else works on it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::prctl::set_timerslack;
use tokio::sync::Semaphore;

/// How much later than asked for the operating system may end a wait.
const SLACK_NANOS: u64 = 1000;

/// A permit for each operation, from the moment at which it is due.
pub struct Pace {
    start: Instant,
    per_second: u64,
    permits: Arc<Semaphore>,
}

impl Pace {
    /// Begins now.
    pub fn start(per_second: u64) -> std::io::Result<Pace> {
        let pace = Pace { start: Instant::now(), per_second, permits: Arc::new(Semaphore::new(0)) };
        let (start, permits) = (pace.start, pace.permits.clone());
        std::thread::Builder::new()
            .name("pace".into())
            .spawn(move || give_out(start, per_second, &permits))?;
        Ok(pace)
    }

    /// When operation number `number` is due.
    pub fn due(&self, number: u64) -> Instant {
        due(self.start, self.per_second, number)
    }

    /// Waits for the next permit; who came first is served first.
    pub async fn turn(&self) {
        self.permits.acquire().await.expect("open as long as it is there").forget();
    }
}

impl Drop for Pace {
    fn drop(&mut self) {
        self.permits.close();
    }
}

fn due(start: Instant, per_second: u64, number: u64) -> Instant {
    start + Duration::from_secs_f64(number as f64 / per_second as f64)
}

fn give_out(start: Instant, per_second: u64, permits: &Semaphore) {
    // Without it waits are less exact, and nothing else.
    let _ = set_timerslack(SLACK_NANOS);
    for number in 0.. {
        std::thread::sleep(
            due(start, per_second, number).saturating_duration_since(Instant::now()),
        );
        if permits.is_closed() {
            return;
        }
        permits.add_permits(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_turn_before_it_is_due() {
        let pace = Pace::start(1000).unwrap();
        for number in 0..20 {
            pace.turn().await;
            assert!(Instant::now() >= pace.due(number));
        }
        assert_eq!(pace.due(20) - pace.due(0), Duration::from_millis(20));
    }
}
