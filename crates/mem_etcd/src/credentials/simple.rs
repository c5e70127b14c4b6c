//! Simple tokens: random text that this process remembers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

/// Number of random letters of a token, as in etcd. That are 91 bits.
const LETTERS: usize = 16;
/// Maximum number of valid tokens of a user. Beyond that, the eighth that was not used for longest
/// becomes invalid, and its clients authenticate again. So a client with a password can neither
/// use up the memory nor disturb other users.
const MAX_TOKENS_OF_USER: usize = 10_000;
/// Expired tokens are removed at most this often.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// The valid simple tokens. They expire when they have not been used for a time.
pub(super) struct SimpleTokens {
    ttl: Duration,
    /// The origin of the times in tokens.
    start: Instant,
    tokens: RwLock<HashMap<String, Token>>,
    swept: Mutex<Instant>,
}

struct Token {
    user: Arc<str>,
    /// The time of the last use, in milliseconds since the start.
    used_ms: AtomicU64,
}

impl SimpleTokens {
    /// Creates a set of no tokens.
    pub(super) fn new(ttl: Duration) -> Self {
        let start = Instant::now();
        SimpleTokens { ttl, start, tokens: RwLock::default(), swept: Mutex::new(start) }
    }

    /// Issues a token. `number` ends it, as the index of the Raft log does in etcd.
    pub(super) fn issue(&self, user: &str, number: i64, now: Instant) -> String {
        self.sweep(now);
        let letters = (0..LETTERS).map(|_| {
            let index = rand::random_range(0..52_u8);
            char::from(if index < 26 { b'a' + index } else { b'A' + index - 26 })
        });
        let token = format!("{}.{number}", letters.collect::<String>());
        let used_ms = AtomicU64::new(self.millis(now));
        let mut tokens = self.tokens.write();
        remove_surplus(&mut tokens, user);
        tokens.insert(token.clone(), Token { user: user.into(), used_ms });
        token
    }

    /// Returns the user of a valid token, and starts its time again.
    pub(super) fn user_of(&self, token: &str, now: Instant) -> Option<Arc<str>> {
        let tokens = self.tokens.read();
        let found = tokens.get(token).filter(|token| !self.has_expired(token, now))?;
        found.used_ms.store(self.millis(now), Ordering::Relaxed);
        Some(found.user.clone())
    }

    pub(super) fn forget(&self, token: &str) {
        self.tokens.write().remove(token);
    }

    pub(super) fn forget_user(&self, user: &str) {
        self.tokens.write().retain(|_, token| &*token.user != user);
    }

    pub(super) fn forget_all(&self) {
        self.tokens.write().clear();
    }

    /// Removes expired tokens, if that was not done just before.
    fn sweep(&self, now: Instant) {
        let mut swept = self.swept.lock();
        if now.saturating_duration_since(*swept) >= SWEEP_INTERVAL {
            *swept = now;
            self.tokens.write().retain(|_, token| !self.has_expired(token, now));
        }
    }

    fn has_expired(&self, token: &Token, now: Instant) -> bool {
        let unused_ms = self.millis(now).saturating_sub(token.used_ms.load(Ordering::Relaxed));
        u128::from(unused_ms) > self.ttl.as_millis()
    }

    fn millis(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_millis() as u64
    }
}

/// Removes tokens of a user who has as many as possible.
fn remove_surplus(tokens: &mut HashMap<String, Token>, user: &str) {
    if tokens.len() < MAX_TOKENS_OF_USER {
        return;
    }
    let own = tokens.values().filter(|token| &*token.user == user);
    let mut uses: Vec<u64> = own.map(|token| token.used_ms.load(Ordering::Relaxed)).collect();
    if uses.len() < MAX_TOKENS_OF_USER {
        return;
    }
    let (_, oldest, _) = uses.select_nth_unstable(MAX_TOKENS_OF_USER / 8);
    let (oldest, mut surplus) = (*oldest, MAX_TOKENS_OF_USER / 8);
    tokens.retain(|_, token| {
        let removed =
            &*token.user == user && surplus > 0 && token.used_ms.load(Ordering::Relaxed) <= oldest;
        surplus -= usize::from(removed);
        !removed
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(300);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn tokens_expire_when_they_are_not_used() {
        let tokens = SimpleTokens::new(TTL);
        let now = tokens.start;
        let (a, b) = (tokens.issue("a", 7, now), tokens.issue("b", 7, now));
        assert_ne!(a, b);
        let (letters, number) = a.split_once('.').unwrap();
        assert!(letters.len() == LETTERS && letters.chars().all(|c| c.is_ascii_alphabetic()));
        assert_eq!(number, "7");
        assert_eq!(tokens.user_of(&a, now + TTL).as_deref(), Some("a"));
        assert_eq!(tokens.user_of(&b, now + TTL + SECOND), None);
        assert_eq!(tokens.user_of(&a, now + 2 * TTL).as_deref(), Some("a"));
        assert_eq!(tokens.user_of(&a, now + 4 * TTL), None);
        assert_eq!(tokens.user_of("", now), None);
        tokens.issue("a", 8, now + 4 * TTL);
        assert_eq!(tokens.tokens.read().len(), 1, "expired tokens are removed");
    }

    #[test]
    fn tokens_are_forgotten() {
        let tokens = SimpleTokens::new(TTL);
        let now = tokens.start;
        let issued = ["a", "a", "b", "c"].map(|user| tokens.issue(user, 1, now));
        let valid = || issued.each_ref().map(|token| tokens.user_of(token, now).is_some());
        tokens.forget(&issued[3]);
        assert_eq!(valid(), [true, true, true, false]);
        tokens.forget_user("a");
        assert_eq!(valid(), [false, false, true, false]);
        tokens.forget_all();
        assert_eq!(valid(), [false; 4]);
    }

    #[test]
    fn a_user_loses_only_own_tokens() {
        let tokens = SimpleTokens::new(TTL);
        let now = tokens.start;
        let other = tokens.issue("other", 1, now);
        let first = tokens.issue("greedy", 1, now);
        let used = tokens.issue("greedy", 1, now);
        for count in 0..3 * MAX_TOKENS_OF_USER as u64 {
            let now = now + Duration::from_millis(1 + count);
            tokens.issue("greedy", 1, now);
            assert!(tokens.user_of(&used, now).is_some());
        }
        assert!(tokens.tokens.read().len() <= MAX_TOKENS_OF_USER + 1);
        assert!(tokens.user_of(&other, now + SECOND).is_some());
        assert!(tokens.user_of(&first, now + SECOND).is_none());
    }

    /// The times of many tokens can be equal.
    #[test]
    fn tokens_of_one_moment_are_limited() {
        let tokens = SimpleTokens::new(TTL);
        for _ in 0..2 * MAX_TOKENS_OF_USER {
            tokens.issue("greedy", 1, tokens.start);
        }
        let left = tokens.tokens.read().len();
        assert!((MAX_TOKENS_OF_USER / 2..=MAX_TOKENS_OF_USER).contains(&left), "{left} tokens");
    }
}
