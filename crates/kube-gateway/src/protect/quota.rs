//! A semaphore over bytes, with a fair queue.
//!
//! # Invariants
//! - A waiter is only granted if all that is in use stays within the limit, or if no other waiter that
//!   was granted is running. So one that is larger than the limit runs alone, instead of never.
//! - Nobody overtakes the waiter whose turn it is, so that a large one is not starved by small ones.
//! - Principals take turns, and within a principal its flows. A client cannot choose its principal, so
//!   inventing flows only hurts itself.

use std::collections::{HashMap, VecDeque};

/// Who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// What a client cannot choose: its verified user, or its address.
    pub principal: u64,
    /// What it claims: its User-Agent and its token.
    pub flow: u64,
}

/// The semaphore of one API server. `W` is what waits.
pub struct Quota<W> {
    in_use: u64,
    /// Granted ones that run, without those that did not wait for their turn.
    running: usize,
    waiting: usize,
    next_number: u64,
    principals: HashMap<u64, Principal<W>>,
    /// The principals that have waiters, in the order of their turns.
    turns: VecDeque<u64>,
}

struct Principal<W> {
    waiting: usize,
    flows: HashMap<u64, VecDeque<(u64, W)>>,
    /// The flows in the order of their turns.
    turns: VecDeque<u64>,
}

/// A place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    claimant: Claimant,
    number: u64,
}

/// What happened to a newcomer.
#[derive(Debug, PartialEq, Eq)]
pub enum Queued<W> {
    /// It waits.
    Waits(Ticket),
    /// It waits, and this one of the principal with most waiters lost its place.
    Displaces(Ticket, W),
    /// The queue is full, and nobody has more waiters than its principal.
    Refused(W),
}

impl<W> Default for Quota<W> {
    fn default() -> Self {
        Quota {
            in_use: 0,
            running: 0,
            waiting: 0,
            next_number: 0,
            principals: HashMap::new(),
            turns: VecDeque::new(),
        }
    }
}

impl<W> Quota<W> {
    /// Bytes in use.
    pub fn in_use(&self) -> u64 {
        self.in_use
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Takes bytes without waiting. `release` returns them.
    pub fn take_now(&mut self, bytes: u64) {
        self.in_use += bytes;
    }

    /// Takes more bytes for one that runs.
    pub fn grow(&mut self, bytes: u64) {
        self.in_use += bytes;
    }

    /// Returns bytes. `granted` is true for what had to wait for its turn.
    pub fn release(&mut self, bytes: u64, granted: bool) {
        self.in_use = self.in_use.saturating_sub(bytes);
        self.running -= usize::from(granted);
    }

    /// Grants bytes at once if nobody waits and the limit allows it.
    pub fn try_grant(&mut self, bytes: u64, limit: u64) -> bool {
        let granted = self.waiting == 0 && self.allows(bytes, limit);
        if granted {
            self.in_use += bytes;
            self.running += 1;
        }
        granted
    }

    fn allows(&self, bytes: u64, limit: u64) -> bool {
        self.running == 0 || self.in_use.saturating_add(bytes) <= limit
    }

    /// Adds a waiter to a queue of at most `max` waiters.
    pub fn enqueue(&mut self, claimant: Claimant, waiter: W, max: usize) -> Queued<W> {
        let mut displaced = None;
        if self.waiting >= max {
            displaced = self.displace(claimant.principal);
            if displaced.is_none() {
                return Queued::Refused(waiter);
            }
        }
        let number = self.next_number;
        self.next_number += 1;
        let principal = self.principals.entry(claimant.principal).or_insert_with(|| {
            self.turns.push_back(claimant.principal);
            Principal { waiting: 0, flows: HashMap::new(), turns: VecDeque::new() }
        });
        let flow = principal.flows.entry(claimant.flow).or_insert_with(|| {
            principal.turns.push_back(claimant.flow);
            VecDeque::new()
        });
        flow.push_back((number, waiter));
        principal.waiting += 1;
        self.waiting += 1;
        let ticket = Ticket { claimant, number };
        match displaced {
            Some(waiter) => Queued::Displaces(ticket, waiter),
            None => Queued::Waits(ticket),
        }
    }

    /// Removes the newest waiter of the longest flow of the principal with most waiters, if it has
    /// more than the newcomer's would have.
    fn displace(&mut self, newcomer: u64) -> Option<W> {
        let own = self.principals.get(&newcomer).map_or(0, |principal| principal.waiting);
        let (&key, principal) = self.principals.iter().max_by_key(|(_, p)| p.waiting)?;
        if principal.waiting <= own + 1 {
            return None;
        }
        let (&flow, queue) = principal.flows.iter().max_by_key(|(_, queue)| queue.len())?;
        let number = queue.back()?.0;
        self.remove(Ticket { claimant: Claimant { principal: key, flow }, number })
    }

    /// Removes a waiter. Returns `None` if it does not wait any more.
    pub fn remove(&mut self, ticket: Ticket) -> Option<W> {
        let Claimant { principal: key, flow: flow_key } = ticket.claimant;
        let principal = self.principals.get_mut(&key)?;
        let queue = principal.flows.get_mut(&flow_key)?;
        let index = queue.binary_search_by_key(&ticket.number, |(number, _)| *number).ok()?;
        let (_, waiter) = queue.remove(index)?;
        if queue.is_empty() {
            principal.flows.remove(&flow_key);
            principal.turns.retain(|flow| *flow != flow_key);
        }
        principal.waiting -= 1;
        if principal.waiting == 0 {
            self.principals.remove(&key);
            self.turns.retain(|principal| *principal != key);
        }
        self.waiting -= 1;
        Some(waiter)
    }

    /// Grants the waiter whose turn it is if the limit allows it. Returns it with its bytes, which
    /// `bytes_of` says.
    pub fn next(&mut self, limit: u64, bytes_of: impl FnOnce(&W) -> u64) -> Option<(W, u64)> {
        let key = *self.turns.front()?;
        let principal = self.principals.get(&key)?;
        let flow = *principal.turns.front()?;
        let (number, waiter) = principal.flows.get(&flow)?.front()?;
        let (number, bytes) = (*number, bytes_of(waiter));
        if !self.allows(bytes, limit) {
            return None;
        }
        let waiter = self.remove(Ticket { claimant: Claimant { principal: key, flow }, number })?;
        // Whoever still has waiters goes to the end.
        if self.turns.front() == Some(&key) {
            self.turns.rotate_left(1);
        }
        if let Some(principal) = self.principals.get_mut(&key)
            && principal.turns.front() == Some(&flow)
        {
            principal.turns.rotate_left(1);
        }
        self.in_use += bytes;
        self.running += 1;
        Some((waiter, bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    const LIMIT: u64 = 100;

    fn claimant(principal: u64, flow: u64) -> Claimant {
        Claimant { principal, flow }
    }

    fn wait(quota: &mut Quota<u64>, principal: u64, flow: u64, bytes: u64) -> Ticket {
        match quota.enqueue(claimant(principal, flow), bytes, usize::MAX) {
            Queued::Waits(ticket) => ticket,
            other => panic!("{other:?}"),
        }
    }

    fn next(quota: &mut Quota<u64>) -> Option<u64> {
        quota.next(LIMIT, |bytes| *bytes).map(|(bytes, _)| bytes)
    }

    #[test]
    fn one_that_is_larger_than_the_limit_runs_alone() {
        let mut quota = Quota::default();
        assert!(quota.try_grant(60, LIMIT));
        wait(&mut quota, 1, 1, 1000);
        wait(&mut quota, 2, 1, 10);
        assert!(!quota.try_grant(10, LIMIT), "nobody overtakes");
        assert_eq!(next(&mut quota), None);
        quota.release(60, true);
        assert_eq!(next(&mut quota), Some(1000));
        assert_eq!(next(&mut quota), None);
        quota.release(1000, true);
        assert_eq!(next(&mut quota), Some(10));
    }

    #[test]
    fn what_does_not_wait_takes_room_but_blocks_nobody_for_ever() {
        let mut quota: Quota<u64> = Quota::default();
        quota.take_now(500);
        assert!(quota.try_grant(10, LIMIT), "one always runs");
        assert!(!quota.try_grant(10, LIMIT));
        quota.release(500, false);
        assert!(quota.try_grant(90, LIMIT));
        quota.grow(50);
        assert!(!quota.try_grant(1, LIMIT));
        quota.release(140, true);
        assert_eq!(quota.in_use(), 10);
    }

    #[test]
    fn principals_and_flows_take_turns() {
        let mut quota = Quota::default();
        // One noisy flow, another flow of the same principal, and a quiet principal.
        for bytes in [11, 12, 13] {
            wait(&mut quota, 1, 1, bytes);
        }
        wait(&mut quota, 1, 2, 21);
        wait(&mut quota, 2, 1, 31);
        let order: Vec<_> = std::iter::from_fn(|| next(&mut quota)).collect();
        assert_eq!(order, [11, 31, 21, 12, 13]);
    }

    #[test]
    fn a_full_queue_takes_from_the_principal_with_most_waiters() {
        let mut quota = Quota::default();
        for bytes in 1..=3 {
            wait(&mut quota, 1, 1, bytes);
        }
        assert_eq!(quota.enqueue(claimant(1, 2), 4, 3), Queued::Refused(4));
        assert!(matches!(quota.enqueue(claimant(2, 1), 5, 3), Queued::Displaces(_, 3)));
        assert_eq!(quota.enqueue(claimant(2, 1), 6, 3), Queued::Refused(6));
        assert_eq!(quota.waiting(), 3);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Arrive(u64, u64, u64),
        Leave(usize),
        End(usize),
        Grow(usize, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0_u64..4, 0_u64..3, 1_u64..150).prop_map(|(p, f, b)| Step::Arrive(p, f, b)),
            1 => any::<usize>().prop_map(Step::Leave),
            4 => any::<usize>().prop_map(Step::End),
            1 => (any::<usize>(), 1_u64..50).prop_map(|(n, b)| Step::Grow(n, b)),
        ]
    }

    proptest! {
        /// Grants never exceed the limit except for one that runs alone, nothing is lost, and when
        /// all that run end, everybody who waits is granted in the order of the turns.
        #[test]
        fn never_more_than_the_limit_and_nobody_starves(
            steps in prop::collection::vec(step(), 1..200),
        ) {
            let mut quota: Quota<(u64, u64)> = Quota::default();
            let mut waiting: Vec<(u64, Claimant, Ticket)> = Vec::new();
            let mut running: Vec<(u64, u64)> = Vec::new();
            let mut number = 0;
            for step in steps {
                match step {
                    Step::Arrive(principal, flow, bytes) => {
                        number += 1;
                        let claimant = claimant(principal, flow);
                        if quota.try_grant(bytes, LIMIT) {
                            prop_assert!(waiting.is_empty());
                            running.push((number, bytes));
                        } else if let Queued::Waits(ticket) =
                            quota.enqueue(claimant, (number, bytes), 1000)
                        {
                            waiting.push((number, claimant, ticket));
                        }
                    }
                    Step::Leave(index) if !waiting.is_empty() => {
                        let (number, _, ticket) = waiting.remove(index % waiting.len());
                        prop_assert_eq!(quota.remove(ticket).map(|w| w.0), Some(number));
                        prop_assert_eq!(quota.remove(ticket), None);
                    }
                    Step::End(index) if !running.is_empty() => {
                        let (_, bytes) = running.swap_remove(index % running.len());
                        quota.release(bytes, true);
                    }
                    Step::Grow(index, bytes) if !running.is_empty() => {
                        let index = index % running.len();
                        running[index].1 += bytes;
                        quota.grow(bytes);
                    }
                    _ => {}
                }
                grant(&mut quota, &mut waiting, &mut running)?;
                prop_assert_eq!(quota.waiting(), waiting.len());
                prop_assert_eq!(quota.in_use(), running.iter().map(|(_, bytes)| bytes).sum::<u64>());
                prop_assert!(waiting.is_empty() || !running.is_empty(), "somebody waits for nobody");
            }
            drain(quota, waiting, running)?;
        }
    }

    type Running = Vec<(u64, u64)>;

    /// Grants all that can be granted. Returns their numbers.
    fn grant(
        quota: &mut Quota<(u64, u64)>,
        waiting: &mut Vec<(u64, Claimant, Ticket)>,
        running: &mut Running,
    ) -> Result<Vec<u64>, TestCaseError> {
        let mut granted = Vec::new();
        while let Some(((number, bytes), charged)) = quota.next(LIMIT, |(_, bytes)| *bytes) {
            prop_assert_eq!(bytes, charged);
            running.push((number, bytes));
            waiting.retain(|(other, ..)| *other != number);
            granted.push(number);
            prop_assert!(quota.in_use() <= LIMIT || running.len() == 1);
        }
        Ok(granted)
    }

    /// Ends all that run, one after the other, until nobody waits. Between two turns of a principal,
    /// each other one that waits has a turn, and a flow is first in, first out.
    fn drain(
        mut quota: Quota<(u64, u64)>,
        mut waiting: Vec<(u64, Claimant, Ticket)>,
        mut running: Running,
    ) -> Result<(), TestCaseError> {
        let claimants: HashMap<u64, Claimant> = waiting.iter().map(|w| (w.0, w.1)).collect();
        let mut order = Vec::new();
        while let Some((_, bytes)) = running.pop() {
            quota.release(bytes, true);
            order.extend(grant(&mut quota, &mut waiting, &mut running)?);
        }
        prop_assert!(waiting.is_empty(), "{} starve", waiting.len());
        let of: Vec<Claimant> = order.iter().map(|number| claimants[number]).collect();
        for (index, claimant) in of.iter().enumerate() {
            let earlier = of[..index].iter().rposition(|c| c.principal == claimant.principal);
            let Some(earlier) = earlier else { continue };
            let between: HashSet<u64> = of[earlier..index].iter().map(|c| c.principal).collect();
            let later: HashSet<u64> = of[index..].iter().map(|c| c.principal).collect();
            prop_assert!(later.is_subset(&between), "{:?}", of);
        }
        for (index, number) in order.iter().enumerate() {
            let mut same = order[..index].iter().filter(|n| claimants[*n] == of[index]);
            prop_assert!(same.all(|earlier| earlier < number));
        }
        Ok(())
    }
}
