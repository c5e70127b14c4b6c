//! Users and roles as readers see them: as the log has them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;

/// The published users and roles. The store may be ahead of them: a change is published after it
/// was logged.
pub(crate) struct PublishedAuth {
    /// Whether authentication is enabled. Each request reads it.
    enabled: AtomicBool,
    state: RwLock<Arc<auth::State>>,
}

impl PublishedAuth {
    pub(crate) fn new(state: Arc<auth::State>) -> Self {
        PublishedAuth { enabled: state.is_enabled().into(), state: RwLock::new(state) }
    }

    /// Whether authentication is enabled.
    #[inline]
    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Acquire)
    }

    /// Returns the published users and roles.
    pub(crate) fn state(&self) -> Arc<auth::State> {
        self.state.read().clone()
    }

    pub(crate) fn publish(&self, state: Arc<auth::State>) {
        let enabled = state.is_enabled();
        *self.state.write() = state;
        self.enabled.store(enabled, Ordering::Release);
    }
}
