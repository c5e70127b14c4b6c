//! Users and roles as readers see them: as the log has them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;

use crate::Pipeline;

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

    pub(crate) fn publish(&self, state: Arc<auth::State>) {
        let enabled = state.is_enabled();
        *self.state.write() = state;
        self.enabled.store(enabled, Ordering::Release);
    }
}

impl Pipeline {
    /// Whether authentication is enabled.
    #[inline]
    pub fn is_auth_enabled(&self) -> bool {
        self.shared().auth.enabled.load(Ordering::Acquire)
    }

    /// Returns the published users and roles.
    pub fn auth(&self) -> Arc<auth::State> {
        self.shared().auth.state.read().clone()
    }
}
