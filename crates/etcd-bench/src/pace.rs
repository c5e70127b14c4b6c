//! The pace of an open loop: issues a permit for each operation when it is due.
//!
//! A separate thread waits for the due times. Tokio's timer is up to 1 ms late, which would
//! count as latency of the server. Busy waiting would take CPU time from the server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::prctl::set_timerslack;
use tokio::sync::Semaphore;

/// Timer slack of the thread: how long the kernel may delay its wake-up.
const TIMER_SLACK_NANOS: u64 = 1000;

/// Issues permits at a constant rate.
pub struct Pace {
    start: Instant,
    per_second: u64,
    permits: Arc<Semaphore>,
}

impl Pace {
    /// Starts to issue `per_second` permits per second.
    ///
    /// # Errors
    /// Fails if the thread cannot be started.
    pub fn start(per_second: u64) -> std::io::Result<Pace> {
        let pace = Pace { start: Instant::now(), per_second, permits: Arc::new(Semaphore::new(0)) };
        let (start, permits) = (pace.start, pace.permits.clone());
        std::thread::Builder::new()
            .name("pace".into())
            .spawn(move || issue_permits(start, per_second, &permits))?;
        Ok(pace)
    }

    /// When the operation with this number is due.
    pub fn due(&self, number: u64) -> Instant {
        due(self.start, self.per_second, number)
    }

    /// Waits for the next permit. Tasks get permits in the order in which they call this method.
    pub async fn acquire(&self) {
        self.permits.acquire().await.expect("closed only on drop").forget();
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

fn issue_permits(start: Instant, per_second: u64, permits: &Semaphore) {
    // If setting the timer slack fails, permits are issued less precisely.
    let _ = set_timerslack(TIMER_SLACK_NANOS);
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
    async fn no_permit_is_issued_before_it_is_due() {
        let pace = Pace::start(1000).unwrap();
        for number in 0..20 {
            pace.acquire().await;
            assert!(Instant::now() >= pace.due(number));
        }
        assert_eq!(pace.due(20) - pace.due(0), Duration::from_millis(20));
    }
}
