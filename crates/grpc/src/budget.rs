//! Limits on memory that all connections share fairly.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::status::Status;

/// The guaranteed parts of all connections that use a budget are together this fraction of it: a
/// quarter.
const GUARANTEED_FRACTION: usize = 4;
/// The guaranteed part of a connection does not become smaller if more connections than this use
/// the budget. It is then 1/8,192 of the budget. Connections that use no more than this do not
/// count, so that many with little do not make the parts of others small.
const MAX_PARTS: usize = 2048;
/// A budget is scarce if less than this fraction of it is free: a sixteenth.
const SCARCE_FRACTION: usize = 16;

/// Memory in bytes, or number of places, that all connections of a server may use together for
/// one purpose.
///
/// A connection may use at most as much as it leaves free for the others (a *dynamic
/// threshold*, as network switches use it for their packet memory). So one connection gets
/// at most half of the budget. As long as what they took is returned, `n` greedy connections get
/// `n / (n + 1)` of it, and a further connection finds room.
///
/// If nothing is returned, each further connection gets half of the rest, and at last nothing. So
/// a connection also has a *guaranteed part*, even if nothing is free: a quarter of the budget,
/// divided by the number of connections that use more than 1/8,192 of it. It shrinks as more of
/// them come, but those that came before keep what they have. So `n` connections use at most
/// `1 + (1 + 1/2 + ... + 1/n) / 4` times the limit: about twice the limit for 30 connections, three
/// times for 2,048, and then 1/8,192 of it for each further one.
///
/// One atomic word counts all, and no list of connections is needed.
#[derive(Debug)]
pub struct Budget {
    /// The used bytes, plus [`USER`] for each account that uses more than the smallest part.
    usage: AtomicUsize,
    limit: usize,
}

/// One account in [`Budget::usage`]. The bits below count bytes, up to 16 TiB: more than a million
/// connections can hold, which is the most that the bits above count.
const USER: usize = 1 << 44;

impl Budget {
    /// Creates a budget of `limit` bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Budget { usage: AtomicUsize::new(0), limit })
    }

    pub(crate) fn used(&self) -> usize {
        self.usage.load(Ordering::Relaxed) % USER
    }

    /// Number of bytes that are not used. It is 0 if more than the limit is used.
    pub(crate) fn free(&self) -> usize {
        self.limit.saturating_sub(self.used())
    }

    /// Returns the guaranteed part of each of `users` accounts.
    fn part(&self, users: usize) -> usize {
        self.limit / (GUARANTEED_FRACTION * users.clamp(1, MAX_PARTS))
    }

    /// Whether an account that uses `own` bytes counts as a user.
    fn is_user(&self, own: usize) -> bool {
        own > self.part(MAX_PARTS)
    }

    /// Returns the guaranteed part of an account that uses `own` bytes.
    fn guaranteed(&self, own: usize) -> usize {
        let users = self.usage.load(Ordering::Relaxed) / USER;
        self.part(users + usize::from(!self.is_user(own)))
    }

    /// Changes what an account uses from `before` to `after` bytes.
    fn change(&self, before: usize, after: usize) {
        let counted = |bytes: usize| bytes + usize::from(self.is_user(bytes)) * USER;
        // Wraps around if the use decreases.
        self.usage.fetch_add(counted(after).wrapping_sub(counted(before)), Ordering::Relaxed);
    }
}

/// The part of a budget that one connection uses. It is returned when the account is
/// dropped.
#[derive(Debug)]
pub(crate) struct Account {
    budget: Arc<Budget>,
    used: AtomicUsize,
}

impl Account {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Account { budget, used: AtomicUsize::new(0) }
    }

    /// Number of bytes that the connection uses.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Number of bytes that no connection uses.
    pub(crate) fn free(&self) -> usize {
        self.budget.free()
    }

    /// Whether the connection may take at least a little.
    pub(crate) fn has_room(&self) -> bool {
        let own = self.used();
        self.free() > 0 || own < self.budget.guaranteed(own)
    }

    /// Whether the connection uses more than its guaranteed part.
    pub(crate) fn exceeds_part(&self) -> bool {
        let own = self.used();
        own > self.budget.guaranteed(own)
    }

    /// Whether the connection should return what it has had for long, because the budget is scarce
    /// and the connection uses more than its guaranteed part.
    pub(crate) fn should_shrink(&self) -> bool {
        self.free() < self.budget.limit / SCARCE_FRACTION && self.exceeds_part()
    }

    /// Takes `bytes` more bytes. Returns false if the connection would then use more than
    /// it leaves free, and more than its guaranteed part.
    fn try_add(&self, bytes: usize) -> bool {
        let before = self.used();
        let own = before + bytes;
        if own > self.free() && own > self.budget.guaranteed(before) {
            return false;
        }
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        self.budget.change(before, before + bytes);
        true
    }

    fn subtract(&self, bytes: usize) {
        let before = self.used.fetch_sub(bytes, Ordering::Relaxed);
        self.budget.change(before, before - bytes);
    }

    /// Sets the number of bytes that the connection uses, whether they are free or not.
    /// Only one thread may call it at a time.
    pub(crate) fn set(&self, bytes: usize) {
        let before = self.used.swap(bytes, Ordering::Relaxed);
        self.budget.change(before, bytes);
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.budget.change(*self.used.get_mut(), 0);
    }
}

/// The part of an account that one message uses. It is returned when the share is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    account: Arc<Account>,
    bytes: usize,
}

impl Share {
    pub(crate) fn new(account: Arc<Account>) -> Self {
        Share { account, bytes: 0 }
    }

    /// Takes `bytes` more bytes. Fails if the connection may not use as many.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), Status> {
        if !self.account.try_add(bytes) {
            return Err(Status::resource_exhausted("grpc: too many unread messages"));
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Takes or returns as many bytes that the share has `bytes` bytes. Fails if the
    /// connection may not use as many.
    pub(crate) fn resize(&mut self, bytes: usize) -> Result<(), Status> {
        match bytes.checked_sub(self.bytes) {
            // Even if the connection uses more than it may take by now.
            Some(0) => {}
            Some(more) => self.grow(more)?,
            None => {
                self.account.subtract(self.bytes - bytes);
                self.bytes = bytes;
            }
        }
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.account.subtract(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes as much as the account gets, in steps of 100 bytes.
    fn exhaust(account: &Account) -> usize {
        while account.try_add(100) {}
        account.used()
    }

    #[test]
    fn greedy_connections_leave_room_for_others() {
        let budget = Budget::new(100_000);
        let accounts: Vec<_> = (0..10).map(|_| Account::new(budget.clone())).collect();
        let got: Vec<usize> = accounts.iter().map(exhaust).collect();
        assert_eq!(got[..3], [50_000, 25_000, 12_500]);
        assert!(got.iter().all(|bytes| *bytes > 0), "{got:?}");
        // When the first one gives up a part, another one may use it.
        accounts[0].subtract(40_000);
        assert!(exhaust(&accounts[9]) > 10_000);
        drop(accounts);
        assert_eq!(budget.usage.load(Ordering::Relaxed), 0);
    }

    /// Connections take all they get and return nothing. A further one gets its part, and the
    /// sum remains bounded.
    #[test]
    fn each_connection_has_a_guaranteed_part() {
        const LIMIT: usize = 512 << 20;
        for (others, part, factor) in
            [(30, 4 << 20, 2.0), (1000, 130_000, 2.9), (4000, 65_000, 3.4)]
        {
            let budget = Budget::new(LIMIT);
            let greedy: Vec<_> = (0..others).map(|_| Account::new(budget.clone())).collect();
            for _ in 0..2 {
                for account in &greedy {
                    exhaust(account);
                }
            }
            let further = Account::new(budget.clone());
            assert!(further.has_room());
            let got = exhaust(&further);
            assert!(got >= part, "{got} bytes beside {others} connections");
            let used = budget.used() as f64 / LIMIT as f64;
            assert!(used < factor, "{others} connections use {used} times the limit");
            assert!(greedy[0].should_shrink() && !further.should_shrink());
            drop(greedy);
            assert!(!further.should_shrink(), "the budget is not scarce");
            drop(further);
            assert_eq!(budget.usage.load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn an_account_with_little_is_not_a_user() {
        let budget = Budget::new(8192 * 100);
        let account = Account::new(budget.clone());
        for (bytes, users) in [(0, 0), (100, 0), (101, 1), (200, 1), (100, 0), (500, 1)] {
            account.set(bytes);
            assert_eq!(budget.usage.load(Ordering::Relaxed), users * USER + bytes);
        }
        drop(account);
        let accounts: Vec<_> = (0..5000).map(|_| Account::new(budget.clone())).collect();
        assert!(accounts.iter().all(|account| account.try_add(100)));
        assert_eq!(budget.guaranteed(0), 8192 * 25);
    }

    #[test]
    fn an_account_of_a_small_budget_is_a_user_as_long_as_it_uses_something() {
        let budget = Budget::new(1000);
        let (account, idle) = (Account::new(budget.clone()), Account::new(budget.clone()));
        for (bytes, users) in [(0, 0), (10, 1), (500, 1), (20, 1), (0, 0)] {
            account.set(bytes);
            assert_eq!(budget.usage.load(Ordering::Relaxed), users * USER + bytes);
        }
        assert!(account.try_add(10) && account.try_add(5) && idle.try_add(0));
        account.subtract(5);
        assert_eq!(budget.usage.load(Ordering::Relaxed), USER + 10);
        assert_eq!(budget.guaranteed(account.used()), 250);
        assert_eq!(budget.guaranteed(idle.used()), 125);
    }
}
