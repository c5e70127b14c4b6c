//! A timer wheel: one entry of 12 bytes for each timer.

use crate::time::Ticks;

/// Slots of the wheel. An entry that is due later than one turn is looked at once a turn.
const SLOTS: usize = 4096;

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// A step of the start of a node, or a renewal of its Lease.
    Lease(u32),
    /// A report of the status of a node.
    Status(u32),
    /// A node that flaps stops or starts.
    Flap(u32),
    /// The containers of a pod make progress.
    Pod(u32),
    /// The status of a pod is reported again after a failure.
    Report(u32),
    /// The status of a pod is reported again because somebody else has changed it.
    Sync(u32),
    /// A token of a pod is requested.
    Token(u32),
    /// A node looks for watched objects that nobody reads.
    Objects(u32),
}

/// Timers by the tick at which they are due.
pub struct Wheel {
    slots: Vec<Vec<(Ticks, Timer)>>,
    /// The first tick that was not handled.
    next: Ticks,
}

impl Wheel {
    /// A wheel without timers.
    pub fn new() -> Wheel {
        Wheel { slots: vec![Vec::new(); SLOTS], next: 0 }
    }

    /// Adds a timer. One that is due in the past is due at the next tick.
    pub fn add(&mut self, due: Ticks, timer: Timer) {
        let at = due.max(self.next) as usize % SLOTS;
        self.slots[at].push((due, timer));
    }

    /// Removes and returns what is due until `now`, with the tick at which it was due.
    pub fn take_due(&mut self, now: Ticks) -> Vec<(Ticks, Timer)> {
        let mut due = Vec::new();
        if now < self.next {
            return due;
        }
        // After a long pause, one turn sees every slot.
        let count = ((now - self.next) as usize + 1).min(SLOTS);
        for step in 0..count {
            let slot = &mut self.slots[(self.next as usize + step) % SLOTS];
            if !slot.is_empty() {
                due.extend(slot.extract_if(.., |(tick, _)| *tick <= now));
            }
        }
        self.next = now + 1;
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_are_returned_once_when_they_are_due() {
        let mut wheel = Wheel::new();
        let dues = [0, 1, 5, 4095, 4096, 4097, 9000, 30_000];
        dues.iter().for_each(|due| wheel.add(*due, Timer::Lease(*due)));
        let mut now = 0;
        let mut seen = Vec::new();
        while now < 31_000 {
            for (due, timer) in wheel.take_due(now) {
                assert_eq!(timer, Timer::Lease(due));
                assert!(due <= now && now < due + 7, "{due} at {now}");
                seen.push(due);
            }
            now += 7;
        }
        assert_eq!(seen, dues);
    }

    #[test]
    fn a_timer_in_the_past_is_due_at_once() {
        let mut wheel = Wheel::new();
        assert!(wheel.take_due(100).is_empty());
        wheel.add(3, Timer::Pod(1));
        assert_eq!(wheel.take_due(101), [(3, Timer::Pod(1))]);
    }

    #[test]
    fn a_long_pause_misses_nothing() {
        let mut wheel = Wheel::new();
        (0..20_000).for_each(|due| wheel.add(due, Timer::Status(due)));
        assert_eq!(wheel.take_due(19_999).len(), 20_000);
        assert!(wheel.take_due(40_000).is_empty());
    }
}
