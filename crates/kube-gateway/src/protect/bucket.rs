//! A token bucket.

use std::time::{Duration, Instant};

/// Gives out tokens at a mean rate. Tokens that nobody takes are kept up to the burst.
#[derive(Debug)]
pub struct Bucket {
    rate: f64,
    burst: f64,
    tokens: f64,
    updated: Instant,
}

impl Bucket {
    /// A full bucket. `rate` is in tokens per second; both are above 0.
    pub fn new(rate: f64, burst: f64, now: Instant) -> Bucket {
        Bucket { rate, burst, tokens: burst, updated: now }
    }

    /// Takes a token.
    ///
    /// # Errors
    /// If there is none, returns the time until the next one.
    pub fn take(&mut self, now: Instant) -> Result<(), Duration> {
        let passed = now.saturating_duration_since(self.updated).as_secs_f64();
        self.tokens = (self.tokens + passed * self.rate).min(self.burst);
        self.updated = self.updated.max(now);
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return Ok(());
        }
        Err(Duration::from_secs_f64((1.0 - self.tokens) / self.rate))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let start = Instant::now();
        let mut bucket = Bucket::new(2.0, 3.0, start);
        let taken = |bucket: &mut Bucket, now| (0..10).filter(|_| bucket.take(now).is_ok()).count();
        assert_eq!(taken(&mut bucket, start), 3);
        assert_eq!(bucket.take(start), Err(Duration::from_millis(500)));
        assert_eq!(taken(&mut bucket, start + Duration::from_secs(1)), 2);
        assert_eq!(taken(&mut bucket, start + Duration::from_secs(60)), 3);
    }

    proptest! {
        #[test]
        fn never_more_than_rate_and_burst(
            rate in 0.01_f64..1000.0,
            burst in 1_u32..100,
            pauses in prop::collection::vec(0_u64..200_000_000, 1..300),
        ) {
            let start = Instant::now();
            let mut bucket = Bucket::new(rate, f64::from(burst), start);
            let (mut now, mut taken) = (start, 0);
            for pause in pauses {
                now += Duration::from_nanos(pause);
                match bucket.take(now) {
                    Ok(()) => taken += 1,
                    // After the time that it names there is a token.
                    Err(wait) => {
                        let mut later = Bucket { ..bucket };
                        prop_assert!(later.take(now + wait + Duration::from_micros(1)).is_ok());
                    }
                }
                let limit = (now - start).as_secs_f64() * rate + f64::from(burst);
                prop_assert!(f64::from(taken) <= limit + 1e-6);
            }
        }
    }
}
