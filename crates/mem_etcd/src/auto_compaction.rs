//! Automatic compaction (`--auto-compaction-mode`, `--auto-compaction-retention`), at the times
//! and revisions at which etcd compacts, except that reads in pages are not broken off.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use mvcc::Command;
use pipeline::{ClientId, Pipeline};

use crate::go_duration;
use crate::paged_reads::PagedReads;

/// Time between two checks in the mode `revision`.
const REVISION_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// In the mode `periodic`, the time between two compactions is at most this.
const MAX_PERIODIC_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// In the mode `periodic`, the number of checks in the time between two compactions.
const CHECKS: u32 = 10;
/// The shortest period.
const MIN_PERIOD: Duration = Duration::from_millis(100);
/// The longest period. The revisions of all checks within it are kept.
const MAX_PERIOD: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// What `--auto-compaction-retention` means.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A duration; a number without a unit means hours.
    Periodic,
    /// A number of revisions.
    Revision,
}

/// The history that stays readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// The history since this time ago.
    Period(Duration),
    /// This number of revisions before the newest one.
    Revisions(i64),
}

/// Parses a retention as etcd does; `None` for 0, which means no automatic compaction.
///
/// # Errors
/// Returns one line for a retention that is malformed, negative or too short.
pub fn parse_retention(mode: Mode, text: &str) -> Result<Option<Retention>, String> {
    let number = text.parse::<u32>().ok();
    if number == Some(0) {
        return Ok(None);
    }
    match mode {
        Mode::Revision => match text.parse::<i64>() {
            Ok(revisions @ 1..) => Ok(Some(Retention::Revisions(revisions))),
            _ => Err(format!("{text:?} is not a number of revisions, such as 1000")),
        },
        Mode::Periodic => {
            let hours = |number: u32| Duration::from_secs(60 * 60) * number;
            let period = number.map(hours).or_else(|| go_duration::parse(text));
            match period {
                None => {
                    Err(format!("{text:?} is not a duration, such as 30m, or a number of hours"))
                }
                Some(Duration::ZERO) => Ok(None),
                Some(period) if (MIN_PERIOD..=MAX_PERIOD).contains(&period) => {
                    Ok(Some(Retention::Period(period)))
                }
                Some(_) => Err(format!("{text:?} is not between 100ms and ten years")),
            }
        }
    }
}

/// Compacts until the store stops. What clients still read in pages stays readable.
pub async fn run(retention: Retention, pipeline: Arc<Pipeline>, reads: Arc<PagedReads>) {
    let mut schedule = Schedule::new(retention, Instant::now());
    // The last compaction that was limited by a read in pages.
    let mut limited_to = 0;
    loop {
        schedule.record(pipeline.revision());
        tokio::time::sleep(schedule.interval()).await;
        // As in etcd, only the leader of a cluster compacts.
        if !pipeline.is_leader() {
            continue;
        }
        let now = Instant::now();
        let Some(due) = schedule.due(pipeline.revision(), now) else { continue };
        let read = reads.oldest(now).filter(|read| *read < due);
        let revision = read.unwrap_or(due);
        if read.is_some() && revision <= limited_to {
            continue;
        }
        // As in etcd, a revision that a client has compacted already counts as compacted.
        match pipeline.propose(ClientId(0), Command::Compact { revision }, 0).await {
            Ok(_) | Err(pipeline::Error::Refused(mvcc::Error::Compacted)) => {
                tracing::info!(revision, due, ?retention, "completed auto compaction");
                match read {
                    Some(read) => limited_to = read,
                    None => schedule.compacted(revision, Instant::now()),
                }
            }
            Err(pipeline::Error::Stopped) => return,
            Err(error) => {
                tracing::warn!(revision, ?retention, %error, "failed auto compaction; it is retried");
            }
        }
    }
}

/// Decides which revision is compacted when.
#[derive(Debug)]
enum Schedule {
    Periodic(Periodic),
    Revision {
        retention: i64,
        /// The revision of the last compaction.
        last: i64,
    },
}

/// The schedule of the mode `periodic`.
#[derive(Debug)]
struct Periodic {
    period: Duration,
    /// The revisions before the last checks, oldest first: those of one period and one check.
    revisions: VecDeque<i64>,
    /// The revision of the last compaction.
    last: i64,
    /// The time of the last compaction, or of the start.
    last_at: Instant,
    /// The time from `last_at` to the next compaction: the period at first.
    wait: Duration,
}

impl Schedule {
    fn new(retention: Retention, now: Instant) -> Self {
        match retention {
            Retention::Revisions(retention) => Schedule::Revision { retention, last: 0 },
            Retention::Period(period) => Schedule::Periodic(Periodic {
                period,
                revisions: VecDeque::new(),
                last: 0,
                last_at: now,
                wait: period,
            }),
        }
    }

    /// Returns the time between two checks.
    fn interval(&self) -> Duration {
        match self {
            Schedule::Periodic(periodic) => periodic.interval(),
            Schedule::Revision { .. } => REVISION_INTERVAL,
        }
    }

    /// Records the current revision. Call it before the wait for each check.
    fn record(&mut self, revision: i64) {
        if let Schedule::Periodic(periodic) = self {
            periodic.record(revision);
        }
    }

    /// Returns the revision to compact at the check `now`, if it is time to compact.
    /// `revision` is the current revision.
    fn due(&mut self, revision: i64, now: Instant) -> Option<i64> {
        match self {
            Schedule::Periodic(periodic) => periodic.due(now),
            Schedule::Revision { retention, last } => {
                Some(revision - *retention).filter(|due| *due > 0 && due != last)
            }
        }
    }

    /// Records that the compaction at `revision` has succeeded.
    fn compacted(&mut self, revision: i64, now: Instant) {
        match self {
            Schedule::Periodic(periodic) => (periodic.last, periodic.last_at) = (revision, now),
            Schedule::Revision { last, .. } => *last = revision,
        }
    }
}

impl Periodic {
    fn interval(&self) -> Duration {
        self.period.min(MAX_PERIODIC_INTERVAL) / CHECKS
    }

    fn record(&mut self, revision: i64) {
        self.revisions.push_back(revision);
        let checks = self.period.as_nanos() / self.interval().as_nanos();
        if self.revisions.len() as u128 > checks + 1 {
            self.revisions.pop_front();
        }
    }

    fn due(&mut self, now: Instant) -> Option<i64> {
        let oldest = *self.revisions.front()?;
        if now.saturating_duration_since(self.last_at) < self.wait || oldest == self.last {
            return None;
        }
        self.wait = self.period.min(MAX_PERIODIC_INTERVAL);
        Some(oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(60 * 60);
    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn retentions_are_read_as_in_etcd() {
        use Mode::{Periodic, Revision};
        let period = |period| Ok(Some(Retention::Period(period)));
        for (mode, text, expected) in [
            (Periodic, "0", Ok(None)),
            (Periodic, "0s", Ok(None)),
            (Revision, "0", Ok(None)),
            (Periodic, "8", period(8 * HOUR)),
            (Periodic, "5m", period(5 * MINUTE)),
            (Periodic, "1h30m", period(90 * MINUTE)),
            (Periodic, "1.5h", period(90 * MINUTE)),
            (Periodic, "500ms", period(Duration::from_millis(500))),
            (Revision, "1000", Ok(Some(Retention::Revisions(1000)))),
        ] {
            assert_eq!(parse_retention(mode, text), expected, "{text}");
        }
        for (mode, text) in [
            (Periodic, ""),
            (Periodic, "-5m"),
            (Periodic, "5 m"),
            (Periodic, "m"),
            (Periodic, "5min"),
            (Periodic, "1.2.3h"),
            (Periodic, "10ms"),
            (Periodic, "1000000h"),
            (Revision, "5m"),
            (Revision, "-1"),
            (Revision, "many"),
        ] {
            assert!(parse_retention(mode, text).is_err(), "{text:?}");
        }
    }

    /// Runs a schedule, and returns the time of each compaction since the start and its
    /// revision. `revision_at` is the revision at the time of a check.
    fn compactions(
        retention: Retention,
        duration: Duration,
        revision_at: impl Fn(Duration) -> i64,
    ) -> Vec<(Duration, i64)> {
        let start = Instant::now();
        let mut schedule = Schedule::new(retention, start);
        let (mut time, mut found) = (Duration::ZERO, Vec::new());
        while time < duration {
            schedule.record(revision_at(time));
            time += schedule.interval();
            if let Some(revision) = schedule.due(revision_at(time), start + time) {
                schedule.compacted(revision, start + time);
                found.push((time, revision));
            }
        }
        found
    }

    fn minutes(time: Duration) -> i64 {
        (time.as_secs() / 60) as i64
    }

    /// The oldest recorded revision is from one check before the period, as in etcd.
    #[test]
    fn periodic_compacts_the_revision_of_one_period_ago() {
        let revision = |time| 1 + minutes(time);
        let found = compactions(Retention::Period(10 * MINUTE), 41 * MINUTE, revision);
        let expected = [(10, 1), (20, 10), (30, 20), (40, 30)];
        assert_eq!(found, expected.map(|(minute, revision)| (minute * MINUTE, revision)));

        let found = compactions(Retention::Period(3 * HOUR), 6 * HOUR, revision);
        let expected = [(3, 1), (4, 55), (5, 115), (6, 175)];
        assert_eq!(found, expected.map(|(hour, revision)| (hour * HOUR, revision)));
    }

    #[test]
    fn periodic_waits_for_a_new_revision() {
        let revision = |time| if time < 35 * MINUTE { 7 } else { 8 };
        let found = compactions(Retention::Period(10 * MINUTE), 60 * MINUTE, revision);
        assert_eq!(found, [(10 * MINUTE, 7), (46 * MINUTE, 8)]);
    }

    /// A failed compaction is tried again at the next check.
    #[test]
    fn a_failed_compaction_is_retried() {
        let start = Instant::now();
        let mut schedule = Schedule::new(Retention::Period(10 * MINUTE), start);
        (1..=10).for_each(|revision| schedule.record(revision));
        assert_eq!(schedule.due(10, start + 9 * MINUTE), None);
        assert_eq!(schedule.due(10, start + 10 * MINUTE), Some(1));
        assert_eq!(schedule.due(10, start + 11 * MINUTE), Some(1));
        schedule.compacted(1, start + 11 * MINUTE);
        assert_eq!(schedule.due(10, start + 12 * MINUTE), None);
    }

    #[test]
    fn revision_keeps_a_number_of_revisions() {
        let revision = |time| [100, 900, 1500, 1500, 1600][(minutes(time) / 5) as usize];
        let found = compactions(Retention::Revisions(1000), 20 * MINUTE, revision);
        assert_eq!(found, [(10 * MINUTE, 500), (20 * MINUTE, 600)]);
    }
}
