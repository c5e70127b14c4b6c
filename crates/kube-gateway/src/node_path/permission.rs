//! Whether the node path may be used.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

/// Says whether requests may be served without an API server. Clones share what they say. Until the
/// first [`allow`](Permission::allow) they may not.
#[derive(Clone, Debug)]
pub struct Permission(Arc<State>);

#[derive(Debug)]
struct State {
    /// Grows with each change; odd while the path may be used.
    generation: AtomicU64,
    /// Why it may not be used. Writers hold the lock.
    reason: Mutex<String>,
}

impl Default for Permission {
    fn default() -> Permission {
        let reason = Mutex::new("not examined yet".to_owned());
        Permission(Arc::new(State { generation: AtomicU64::new(0), reason }))
    }
}

impl Permission {
    /// Whether requests may be served now.
    pub fn is_allowed(&self) -> bool {
        is_odd(self.generation())
    }

    /// Changes with each change of what is allowed. Work that began in one generation must not be
    /// finished in another one.
    pub fn generation(&self) -> u64 {
        self.0.generation.load(SeqCst)
    }

    /// Why requests may not be served; `None` if they may.
    pub fn reason(&self) -> Option<String> {
        let reason = self.0.reason.lock().unwrap_or_else(PoisonError::into_inner);
        (!self.is_allowed()).then(|| reason.clone())
    }

    /// Allows requests to be served. Returns whether they were not allowed before.
    pub fn allow(&self) -> bool {
        let mut reason = self.0.reason.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_allowed() {
            return false;
        }
        reason.clear();
        self.0.generation.fetch_add(1, SeqCst);
        true
    }

    /// Refuses all further requests. Returns whether they were allowed before.
    pub fn refuse(&self, why: &str) -> bool {
        let mut reason = self.0.reason.lock().unwrap_or_else(PoisonError::into_inner);
        why.clone_into(&mut reason);
        let was_allowed = self.is_allowed();
        if was_allowed {
            self.0.generation.fetch_add(1, SeqCst);
        }
        was_allowed
    }
}

fn is_odd(generation: u64) -> bool {
    generation & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_allowed_before_someone_allows_it() {
        let permission = Permission::default();
        assert!(!permission.is_allowed());
        assert_eq!(permission.reason().as_deref(), Some("not examined yet"));
    }

    #[test]
    fn clones_see_every_change_and_a_new_generation() {
        let permission = Permission::default();
        let other = permission.clone();
        assert!(!permission.refuse("a webhook"), "it was refused before");
        assert_eq!((other.generation(), other.reason().as_deref()), (0, Some("a webhook")));
        assert!(permission.allow() && !permission.allow());
        assert!(other.is_allowed() && other.reason().is_none());
        assert_eq!(other.generation(), 1);
        assert!(permission.refuse("a policy") && !permission.refuse("two policies"));
        assert!(!other.is_allowed());
        assert_eq!((other.generation(), other.reason().as_deref()), (2, Some("two policies")));
    }
}
