//! Hashes of passwords. They are bcrypt hashes as etcd writes them.
//!
//! Hashing takes tens of milliseconds with the default cost, so it must run on a blocking thread.

/// The longest password in bytes. bcrypt ignores what follows.
pub const MAX_BYTES: usize = 72;
/// The costs that bcrypt has.
const COSTS: std::ops::RangeInclusive<u32> = 4..=31;
/// The cost that etcd uses by default, and instead of an impossible one.
const DEFAULT_COST: u32 = 10;

/// Returns the cost to use for `--bcrypt-cost`.
pub fn checked_cost(cost: u32) -> u32 {
    if COSTS.contains(&cost) {
        return cost;
    }
    tracing::warn!(
        given_cost = cost,
        min_cost = COSTS.start(),
        max_cost = COSTS.end(),
        default_cost = DEFAULT_COST,
        "use default bcrypt cost instead of the invalid given cost"
    );
    DEFAULT_COST
}

/// Hashes a password of at most [`MAX_BYTES`] bytes. `cost` is a possible one.
pub fn hash(password: &str, cost: u32) -> Vec<u8> {
    let parts = bcrypt::hash_with_result(password, cost);
    let parts = parts.expect("the cost is possible, and the machine has a source of randomness");
    parts.format_for_version(bcrypt::Version::TwoA).into_bytes()
}

/// Whether `hash` is that of the password.
pub fn matches(password: &str, hash: &[u8]) -> bool {
    let hash = std::str::from_utf8(hash).unwrap_or_default();
    bcrypt::verify(password, hash).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_compared_with_their_hashes() {
        let stored = hash("secret", 4);
        assert!(stored.starts_with(b"$2a$04$"));
        assert!(matches("secret", &stored));
        assert!(!matches("Secret", &stored));
        assert!(!matches("", &stored));
        assert!(!matches("secret", b""));
        assert!(!matches("secret", b"secret"));
        assert_ne!(stored, hash("secret", 4), "the salt is random");
        // Written by golang.org/x/crypto/bcrypt, which etcd uses.
        let by_go = b"$2a$10$XajjQvNhvvRt5GSeFk1xFeyqRrsxkhBkUiQeg0dt.wU1qD4aFDcga";
        assert!(matches("allmine", by_go));
        assert!(!matches("allmine ", by_go));
    }

    #[test]
    fn an_impossible_cost_is_replaced() {
        assert_eq!([3, 4, 10, 31, 32].map(checked_cost), [10, 4, 10, 31, 10]);
    }
}
