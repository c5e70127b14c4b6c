//! Tests: clusters with faults, in one thread and without real time.
//!
//! A seed determines the mode of the log, the number of members, what clients do, how messages are
//! delayed, lost, doubled and reordered, which processes and machines crash, which networks are cut,
//! and how the members change by commands. What must hold is in `history`, and at the end of
//! [`world::World`]: one leader a term, one log, the effects and replies of a single machine,
//! linearizable reads, nothing acknowledged lost, and equal states when the faults are over.
//!
//! `SIMULATE_SEEDS=100000 cargo test --release -p consensus simulation` runs more seeds;
//! `SIMULATE_FIRST` is the first one. A failure names its seed, and `SIMULATE_SEEDS=1
//! SIMULATE_FIRST=seed` repeats it.

mod disk;
mod faults;
mod history;
mod machine;
mod node;
mod random;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use world::{Counts, MILLISECOND, Run, Time, World};

use crate::fault::{self, Fault};

/// Simulated time with faults.
const FAULTS: Time = 3_000 * MILLISECOND;
/// Simulated time in which clients work without faults.
const CALM: Time = 500 * MILLISECOND;
/// Simulated time in which the members must agree when nobody does anything any more.
const SETTLE: Time = 30_000 * MILLISECOND;
/// Simulated time between two comparisons of the logs.
const CHECK: Time = 250 * MILLISECOND;

/// Runs a cluster. Returns what has happened, and a hash of it.
fn simulate(seed: u64) -> Run<(Counts, u64)> {
    let mut world = World::new(seed);
    run_until(&mut world, FAULTS)?;
    world.end_faults();
    run_until(&mut world, FAULTS + CALM)?;
    world.quiet = true;
    while !world.is_settled() && world.now < FAULTS + CALM + SETTLE {
        let until = world.now + 20 * MILLISECOND;
        run_until(&mut world, until)?;
    }
    world.check_logs()?;
    match world.is_settled() {
        true => world.check_states()?,
        false if world.has_quorum(None) => {
            return Err(format!("the members do not agree: {}", world.describe()));
        }
        false => world.counts.unavailable += 1,
    }
    Ok((world.finish_counts(), world.trace()))
}

/// Like [`simulate`]; a panic is an error. The library notices some faults by a panic.
fn simulate_or_catch(seed: u64) -> Run<(Counts, u64)> {
    let result = catch_unwind(AssertUnwindSafe(|| simulate(seed)));
    result.unwrap_or_else(|_| Err("panic".to_owned()))
}

fn run_until(world: &mut World, until: Time) -> Run {
    let mut check = world.now + CHECK;
    while world.now < until {
        world.step()?;
        if world.now >= check {
            world.check_logs()?;
            check = world.now + CHECK;
        }
    }
    Ok(())
}

fn from_environment(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).ok();
    value.map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

/// Runs all seeds. Returns the sums of what has happened, and the failures.
fn campaign(first: u64, seeds: u64) -> (Counts, Vec<String>) {
    let next = AtomicU64::new(first);
    let worker = || {
        let (mut counts, mut failures) = (Counts::default(), Vec::new());
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + seeds {
                return (counts, failures);
            }
            match simulate_or_catch(seed) {
                Ok((run, _)) => counts.add(&run),
                Err(error) => failures.push(format!("seed {seed}: {error}")),
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, |threads| threads.get());
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        let (mut counts, mut failures) = (Counts::default(), Vec::new());
        for worker in workers {
            let (run, failed) = worker.join().expect("a seed panicked");
            counts.add(&run);
            failures.extend(failed);
        }
        (counts, failures)
    })
}

#[test]
fn clusters_with_faults_keep_their_promises() {
    let (first, seeds) =
        (from_environment("SIMULATE_FIRST", 0), from_environment("SIMULATE_SEEDS", 1000));
    let (counts, failures) = campaign(first, seeds);
    println!("{seeds} seeds: {counts:?}");
    let shown = failures.iter().take(20).cloned().collect::<Vec<_>>().join("\n");
    assert!(failures.is_empty(), "{} of {seeds} seeds failed:\n{shown}", failures.len());
    if seeds >= 1000 {
        counts.check(seeds);
    }
}

#[test]
fn a_seed_always_gives_the_same_run() {
    for seed in 0..20 {
        let (first, second) = (simulate(seed), simulate(seed));
        assert_eq!(first.map(|(_, trace)| trace), second.map(|(_, trace)| trace), "seed {seed}");
    }
}

/// Number of seeds after which a fault must have been noticed.
const FAULT_SEEDS: u64 = 2000;

#[test]
fn every_deliberate_fault_is_noticed() {
    let unnoticed: Vec<_> = thread::scope(|scope| {
        let notice = |fault: Fault| scope.spawn(move || (fault, first_noticed(fault)));
        let workers: Vec<_> = fault::ALL.iter().map(|fault| notice(*fault)).collect();
        let results = workers.into_iter().map(|worker| worker.join().expect("a panic escaped"));
        let print = |(fault, noticed): (Fault, Option<(u64, String)>)| match noticed {
            Some((seed, error)) => {
                println!("{fault:?}: seed {seed}: {error}");
                None
            }
            None => Some(fault),
        };
        results.filter_map(print).collect()
    });
    assert!(unnoticed.is_empty(), "not noticed in {FAULT_SEEDS} seeds: {unnoticed:?}");
}

/// Returns the first seed with which a fault is noticed, and how.
fn first_noticed(fault: Fault) -> Option<(u64, String)> {
    fault::activate(Some(fault));
    (0..FAULT_SEEDS).find_map(|seed| Some((seed, simulate_or_catch(seed).err()?)))
}

impl Counts {
    fn each(&mut self) -> [(&'static str, &mut u64); 15] {
        [
            ("writes", &mut self.writes),
            ("reads", &mut self.reads),
            ("terms", &mut self.terms),
            ("crashes", &mut self.crashes),
            ("undone batches", &mut self.undone),
            ("lost proposals", &mut self.lost),
            ("unknown outcomes", &mut self.unknown),
            ("snapshots", &mut self.snapshots),
            ("replaced members", &mut self.replaced),
            ("changes of members", &mut self.changes),
            ("started members", &mut self.claimed),
            ("transfers", &mut self.transfers),
            ("refused proposals", &mut self.stale),
            ("messages to old identities", &mut self.wrong_receiver),
            ("unavailable clusters", &mut self.unavailable),
        ]
    }

    fn add(&mut self, other: &Counts) {
        let mut other = other.clone();
        for ((_, sum), (_, value)) in self.each().into_iter().zip(other.each()) {
            *sum += *value;
        }
    }

    /// Checks that the seeds have tested something.
    fn check(mut self, seeds: u64) {
        for (name, count) in self.each() {
            assert!(*count > 0, "no {name} in {seeds} seeds");
        }
        assert!(self.writes > 20 * seeds && self.reads > 10 * seeds, "{self:?}");
        assert!(self.unavailable < seeds / 10, "{self:?}");
    }
}
