//! What the answers 429 of an API server say about it, without a clock.
//!
//! A server that answers 429 to everything looks idle: it has few requests in flight and uses little
//! CPU. So its answers are judged on their own, in two ways:
//!
//! - The share of 429 among its answers, over about [`MEMORY`], counts as load. A server that refuses
//!   only some requests gets fewer clients.
//! - A row of answers 429 without another one starts a back-off: the server gets no clients, and loses
//!   those that it has step by step. Afterwards, [`TRIAL_CLIENTS`] come back. If they are refused too,
//!   the next back-off is twice as long.

use std::time::{Duration, Instant};

/// The time after which an answer counts 1/e of a new one.
const MEMORY: Duration = Duration::from_secs(30);
/// Answers below which the share is not taken at face value: one 429 is not a share of 1.
const FEW_ANSWERS: f64 = 20.0;
/// The first back-off.
const MIN_BACK_OFF: Duration = Duration::from_secs(10);
/// The longest back-off.
const MAX_BACK_OFF: Duration = Duration::from_secs(160);
/// A server that has not refused for this long after a back-off starts with the shortest one again.
const FORGET: Duration = Duration::from_secs(120);
/// A row counts only if it lasts for this long. A fast client that is limited by priority and fairness
/// gets many answers 429 between two requests of others.
const MIN_ROW: Duration = Duration::from_secs(1);
/// Clients that come back after a back-off, at first.
const TRIAL_CLIENTS: u32 = 3;
/// Answers 429 to the clients of a trial after which it has failed, if they are the majority.
const TRIAL_REFUSALS: u64 = 5;
/// Other answers in a trial after which it has succeeded.
const TRIAL_ANSWERS: u64 = 20;
/// A trial with too few answers for a judgement ends after this time.
const MAX_TRIAL: Duration = Duration::from_secs(30);
/// The share of its load that a server loses first. It doubles with each further step.
const FIRST_SHED: f64 = 0.05;

/// Numbers of answers of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// Answers 429.
    pub refused: u64,
    /// All others.
    pub other: u64,
}

impl Answers {
    fn since(self, earlier: Answers) -> Answers {
        Answers { refused: self.refused - earlier.refused, other: self.other - earlier.other }
    }
}

/// Whether clients may connect to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Any.
    Open,
    /// As many as this.
    Trial(u32),
    /// None.
    BackOff,
}

/// What an observation leads to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// The server refuses its clients, and loses this share of its load.
    Shed(f64),
    /// A back-off is over.
    Trial,
    /// The clients that came back were served.
    Open,
}

/// The judgement of one server's answers.
#[derive(Debug)]
pub struct Refusals {
    /// All answers until the last observation, and when that was.
    seen: Answers,
    at: Instant,
    /// Answers 429 and all answers, where older ones count less.
    refused: f64,
    all: f64,
    /// Answers 429 since the last other answer, and when the first of them was observed.
    row: u64,
    row_since: Instant,
    state: State,
    /// The last back-off, and when it ended or will end.
    back_off: Duration,
    until: Instant,
    /// The share of the load that the next step of a back-off costs.
    shed: f64,
}

#[derive(Debug)]
enum State {
    Open,
    BackOff,
    Trial { since: Instant, seen: Answers, places: u32 },
}

impl Refusals {
    /// For a server without answers.
    pub fn new(now: Instant) -> Refusals {
        Refusals {
            seen: Answers::default(),
            at: now,
            refused: 0.0,
            all: 0.0,
            row: 0,
            row_since: now,
            state: State::Open,
            back_off: Duration::ZERO,
            until: now,
            shed: FIRST_SHED,
        }
    }

    /// Notes the numbers of all answers so far. `limit` is the length of a row that starts a back-off.
    pub fn observe(&mut self, now: Instant, answers: Answers, limit: u64) -> Option<Change> {
        self.add(now, answers);
        let refuses = self.row >= limit && now.duration_since(self.row_since) >= MIN_ROW;
        match self.state {
            State::Open if refuses => Some(self.back_off(now)),
            State::Open => None,
            State::BackOff if now < self.until => refuses.then(|| self.shed()),
            // Clients that are still there answer the question of a trial.
            State::BackOff if self.row >= TRIAL_REFUSALS => Some(self.back_off(now)),
            State::BackOff => {
                (self.refused, self.all, self.row) = (0.0, 0.0, 0);
                self.state = State::Trial { since: now, seen: answers, places: TRIAL_CLIENTS };
                Some(Change::Trial)
            }
            State::Trial { since, seen, .. } => {
                let Answers { refused, other } = answers.since(seen);
                if refused >= TRIAL_REFUSALS && refused > other {
                    return Some(self.back_off(now));
                }
                let over = other >= TRIAL_ANSWERS || now.duration_since(since) >= MAX_TRIAL;
                over.then(|| {
                    (self.state, self.shed) = (State::Open, FIRST_SHED);
                    Change::Open
                })
            }
        }
    }

    fn add(&mut self, now: Instant, answers: Answers) {
        let new = answers.since(self.seen);
        let keep = (-now.duration_since(self.at).as_secs_f64() / MEMORY.as_secs_f64()).exp();
        self.refused = self.refused * keep + new.refused as f64;
        self.all = self.all * keep + (new.refused + new.other) as f64;
        if new.other > 0 {
            self.row = 0;
        } else if new.refused > 0 {
            if self.row == 0 {
                self.row_since = now;
            }
            self.row += new.refused;
        }
        (self.seen, self.at) = (answers, now);
    }

    /// Starts a back-off.
    fn back_off(&mut self, now: Instant) -> Change {
        let again = self.back_off > Duration::ZERO && now < self.until + FORGET;
        self.back_off = if again { (self.back_off * 2).min(MAX_BACK_OFF) } else { MIN_BACK_OFF };
        self.until = now + self.back_off;
        self.state = State::BackOff;
        self.shed()
    }

    /// Starts a new row, whose end is the next step.
    fn shed(&mut self) -> Change {
        self.row = 0;
        let share = self.shed;
        self.shed = (share * 2.0).min(1.0);
        Change::Shed(share)
    }

    /// Whether clients may connect.
    pub fn standing(&self) -> Standing {
        match self.state {
            State::Open => Standing::Open,
            State::BackOff => Standing::BackOff,
            State::Trial { places, .. } => Standing::Trial(places),
        }
    }

    /// Takes one of the places of a trial. Returns whether there was one.
    pub fn take_place(&mut self) -> bool {
        match &mut self.state {
            State::Trial { places, .. } if *places > 0 => {
                *places -= 1;
                true
            }
            _ => false,
        }
    }

    /// The share of 429 among the answers of about the last [`MEMORY`].
    pub fn share(&self) -> f64 {
        self.refused / self.all.max(FEW_ANSWERS)
    }

    /// The last back-off.
    pub fn last_back_off(&self) -> Duration {
        self.back_off
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 50;

    /// A server whose answers are counted and observed ten times a second.
    struct Server {
        refusals: Refusals,
        now: Instant,
        answers: Answers,
    }

    impl Server {
        fn new() -> Server {
            let now = Instant::now();
            Server { refusals: Refusals::new(now), now, answers: Answers::default() }
        }

        /// Lets time pass with so many answers in each tenth of a second. Returns what changed.
        fn run(&mut self, seconds: f64, refused: u64, other: u64) -> Vec<Change> {
            let observe = |_| {
                self.now += Duration::from_millis(100);
                self.answers.refused += refused;
                self.answers.other += other;
                self.refusals.observe(self.now, self.answers, LIMIT)
            };
            (0..(seconds * 10.0).round() as usize).filter_map(observe).collect()
        }

        /// Lets the back-off end without answers. Returns its length in seconds.
        fn wait_for_trial(&mut self) -> f64 {
            let start = self.now;
            while self.run(0.1, 0, 0) != [Change::Trial] {
                assert!(self.now - start < 2 * MAX_BACK_OFF);
            }
            (self.now - start).as_secs_f64()
        }
    }

    #[test]
    fn a_row_starts_a_back_off_that_sheds_twice_as_much_at_each_step() {
        let mut server = Server::new();
        let changes = server.run(8.0, 10, 0);
        let shares = [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0];
        assert_eq!(changes[..], shares.map(Change::Shed)[..changes.len()]);
        assert!(changes.len() >= 6, "{changes:?}");
        assert_eq!(server.refusals.standing(), Standing::BackOff);
    }

    #[test]
    fn short_rows_and_rows_with_other_answers_change_nothing() {
        let mut server = Server::new();
        assert_eq!(server.run(0.5, 1000, 0), []);
        assert_eq!(server.run(0.1, 0, 1), []);
        assert_eq!(server.run(0.5, 1000, 0), []);
        assert_eq!(server.run(60.0, 1000, 1), []);
        assert_eq!(server.refusals.standing(), Standing::Open);
    }

    #[test]
    fn the_back_off_doubles_while_clients_that_come_back_are_refused() {
        let mut server = Server::new();
        assert_eq!(server.run(1.1, 50, 0), [Change::Shed(0.05)]);
        let mut waited = Vec::new();
        for _ in 0..6 {
            waited.push(server.wait_for_trial().round());
            // Six refusals are not a row, but enough after a back-off.
            assert!(matches!(server.run(0.6, 1, 0)[..], [Change::Shed(_)]));
        }
        assert_eq!(waited, [10.0, 20.0, 40.0, 80.0, 160.0, 160.0]);
    }

    #[test]
    fn a_trial_has_few_places_and_opens_the_server_when_clients_are_served() {
        let mut server = Server::new();
        server.run(1.1, 50, 0);
        server.wait_for_trial();
        assert_eq!(server.refusals.standing(), Standing::Trial(3));
        let taken = [(); 4].map(|()| server.refusals.take_place());
        assert_eq!(taken, [true, true, true, false]);
        assert_eq!(server.refusals.standing(), Standing::Trial(0));
        assert_eq!(server.run(2.0, 0, 1), [Change::Open]);
        assert_eq!(server.refusals.standing(), Standing::Open);
        // Soon afterwards it backs off for longer, later as at first.
        server.run(1.1, 50, 0);
        assert_eq!(server.refusals.last_back_off(), Duration::from_secs(20));
        server.wait_for_trial();
        server.run(2.0, 0, 1);
        server.run(FORGET.as_secs_f64(), 0, 1);
        server.run(1.1, 50, 0);
        assert_eq!(server.refusals.last_back_off(), MIN_BACK_OFF);
    }

    #[test]
    fn a_trial_without_requests_ends() {
        let mut server = Server::new();
        server.run(1.1, 50, 0);
        server.wait_for_trial();
        assert_eq!(server.run(29.9, 0, 0), []);
        assert_eq!(server.run(0.1, 0, 0), [Change::Open]);
    }

    #[test]
    fn a_back_off_is_extended_while_the_last_clients_are_refused() {
        let mut server = Server::new();
        let changes = server.run(25.0, 10, 0);
        assert!(!changes.contains(&Change::Trial), "{changes:?}");
        assert_eq!(server.refusals.last_back_off(), Duration::from_secs(20));
    }

    #[test]
    fn the_share_decays_slowly() {
        let mut server = Server::new();
        server.run(0.1, 1, 0);
        assert!(server.refusals.share() < 0.06, "a single answer");
        server.run(60.0, 5, 5);
        assert!((0.45..0.55).contains(&server.refusals.share()));
        server.run(10.0, 0, 10);
        assert!((0.3..0.4).contains(&server.refusals.share()), "{}", server.refusals.share());
        server.run(90.0, 0, 10);
        assert!(server.refusals.share() < 0.03);
    }
}
