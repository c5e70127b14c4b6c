//! The pace of the thread of the simulation: while much arrives, it is handled in short intervals.
//!
//! An answer can arrive in parts, and the event that a write causes arrives on another connection. If the thread
//! woke up for each of them, each would cost two task switches and cold caches.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The time from a beginning of work to the next one, at least, while much arrives: half of a tick.
const INTERVAL: Duration = Duration::from_millis(5);
/// Less arrives if the thread waited longer than this since the last beginning. Then nothing is delayed.
const QUIET: Duration = Duration::from_micros(7500);

/// When the thread of a runtime began to work. The hooks of a runtime share it, so it consists of atomics,
/// although only one thread uses it.
pub struct Pace {
    start: Instant,
    /// The last beginning and the one before, in microseconds since the start.
    begun: [AtomicU64; 2],
}

impl Pace {
    /// A pace of a thread that has not begun.
    pub fn new() -> Pace {
        Pace { start: Instant::now(), begun: Default::default() }
    }

    /// Notes that the thread begins to work.
    pub fn begin(&self) {
        self.begin_at(self.start.elapsed());
    }

    /// Sleeps before the thread waits for more work, so that more of it comes together.
    pub fn rest(&self) {
        let pause = self.pause_at(self.start.elapsed());
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }

    fn begin_at(&self, now: Duration) {
        let before = self.begun[0].swap(now.as_micros() as u64, Relaxed);
        self.begun[1].store(before, Relaxed);
    }

    /// The time for which the thread sleeps; zero if the last two beginnings are not close to each other.
    fn pause_at(&self, now: Duration) -> Duration {
        let [last, before] = [0, 1].map(|it| Duration::from_micros(self.begun[it].load(Relaxed)));
        match last - before < QUIET {
            true => (last + INTERVAL).saturating_sub(now),
            false => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pauses after beginnings at these microseconds, if the work takes no time.
    fn pauses<const N: usize>(beginnings: [u64; N]) -> [u64; N] {
        let pace = Pace::new();
        pace.begin_at(Duration::from_secs(1));
        beginnings.map(|micros| {
            let now = Duration::from_secs(2) + Duration::from_micros(micros);
            pace.begin_at(now);
            pace.pause_at(now).as_micros() as u64
        })
    }

    #[test]
    fn only_what_follows_closely_is_delayed() {
        assert_eq!(pauses([0, 10_000, 20_000]), [0, 0, 0], "ticks");
        assert_eq!(pauses([0, 300, 5300, 10_300]), [0, 5000, 5000, 5000], "answers that follow");
        assert_eq!(pauses([0, 300, 10_000, 20_000]), [0, 5000, 0, 0], "quiet again");
    }

    #[test]
    fn work_shortens_the_pause() {
        let pace = Pace::new();
        let begun = Duration::from_secs(1);
        pace.begin_at(begun);
        pace.begin_at(begun);
        let pause = |millis| pace.pause_at(begun + Duration::from_millis(millis));
        assert_eq!([0, 3, 5, 60].map(|millis| pause(millis).as_millis()), [5, 2, 0, 0]);
    }
}
