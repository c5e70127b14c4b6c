//! Time as the simulation sees it: ticks for what is due, and the wall clock for objects.

use std::fmt;
use std::time::{Duration, Instant, SystemTime};

use serde::{Serialize, Serializer};

/// The resolution of timers.
pub const TICK: Duration = Duration::from_millis(10);

/// Ticks since the start of the process. They last for 497 days.
pub type Ticks = u32;

/// A point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Ticks since the start of the process.
    pub tick: Ticks,
    /// Seconds since 1970.
    pub seconds: u64,
    /// Microseconds of the second.
    pub micros: u32,
}

/// Reads the time.
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock whose first tick is now.
    pub fn start() -> Clock {
        Clock { start: Instant::now() }
    }

    /// The current tick.
    pub fn tick(&self) -> Ticks {
        (self.start.elapsed().as_millis() / TICK.as_millis()) as Ticks
    }

    /// The current time.
    pub fn now(&self) -> Moment {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let wall = since_1970.unwrap_or_default();
        let tick = self.tick();
        Moment { tick, seconds: wall.as_secs(), micros: wall.subsec_micros() }
    }
}

impl Moment {
    /// Seconds since 1970 as Kubernetes writes them in JSON.
    pub fn rfc3339(self) -> String {
        Rfc3339(self.seconds).to_string()
    }
}

/// Seconds since 1970 as Kubernetes writes them in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rfc3339(pub u64);

impl fmt::Display for Rfc3339 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(self.0);
        write!(f, "{}", humantime::format_rfc3339_seconds(time))
    }
}

impl Serialize for Rfc3339 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A duration in ticks, rounded to the nearest one.
pub fn ticks(duration: Duration) -> Ticks {
    let ticks = (duration + TICK / 2).as_millis() / TICK.as_millis();
    Ticks::try_from(ticks).unwrap_or(Ticks::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_kubernetes_does() {
        assert_eq!(Rfc3339(0).to_string(), "1970-01-01T00:00:00Z");
        assert_eq!(
            serde_json::to_string(&Rfc3339(1_700_000_000)).unwrap(),
            "\"2023-11-14T22:13:20Z\""
        );
    }

    #[test]
    fn durations_are_rounded_to_ticks() {
        assert_eq!(ticks(Duration::from_secs(10)), 1000);
        assert_eq!(ticks(Duration::from_millis(14)), 1);
        assert_eq!(ticks(Duration::from_millis(16)), 2);
        assert_eq!(ticks(Duration::MAX / 2), Ticks::MAX / 2);
    }
}
