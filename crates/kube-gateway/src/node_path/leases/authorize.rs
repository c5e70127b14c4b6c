//! Who may renew a Lease.
//!
//! A node may renew its own one, as the Node authorizer says. For anybody else RBAC decides, through
//! a SubjectAccessReview. Its result is kept as long as kubelet keeps those of its own clients
//! (`--authorization-webhook-cache-*`). A role that names single Leases is not found: its users'
//! renewals are forwarded.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::review::Reviewer;
use crate::identity::IdentityFields;

/// How long a user may renew Leases after a review has allowed it, and may not after one has not.
const ALLOWED_FOR: Duration = Duration::from_secs(5 * 60);
const REFUSED_FOR: Duration = Duration::from_secs(30);
/// A review that failed is not repeated before.
const FAILED_FOR: Duration = Duration::from_secs(1);
/// Users whose reviews are kept. Renewals of further ones are forwarded.
const MAX_USERS: usize = 4096;
/// Reviews at once. Further users wait, and their renewals are forwarded.
const MAX_REVIEWS: usize = 8;

/// Somebody who may renew a Lease.
pub enum Sender {
    /// Its node.
    Node,
    /// Anybody, by a review.
    Reviewed(Arc<IdentityFields>),
}

/// Decides who may renew a Lease.
pub struct Authorizer {
    reviewer: Reviewer,
    reviews: Mutex<Reviews>,
    running: Arc<Semaphore>,
}

impl Authorizer {
    /// Creates one that knows nobody.
    pub fn new(reviewer: Reviewer) -> Authorizer {
        let running = Arc::new(Semaphore::new(MAX_REVIEWS));
        Authorizer { reviewer, reviews: Mutex::default(), running }
    }

    /// Returns somebody as the sender of a renewal, if it may renew the Lease with this name. If that
    /// is not known, begins to ask; must be called in a runtime.
    pub fn right(self: &Arc<Self>, identity: &Arc<IdentityFields>, lease: &[u8]) -> Option<Sender> {
        if let Some(node) = identity.node() {
            return (node == lease).then_some(Sender::Node);
        }
        match self.reviews.lock().look_up(&identity.key(), Instant::now()) {
            Known::Allowed => return Some(Sender::Reviewed(identity.clone())),
            Known::Refused => return None,
            Known::Asked => {}
        }
        let (this, identity) = (self.clone(), identity.clone());
        tokio::spawn(async move {
            let Ok(_permit) = this.running.acquire().await else { return };
            let result = this.reviewer.may_renew(&identity).await;
            let (allowed, kept) = match result {
                Ok(true) => (true, ALLOWED_FOR),
                Ok(false) => (false, REFUSED_FOR),
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::warn!(error, "failed to review who may renew Leases");
                    (false, FAILED_FOR)
                }
            };
            this.reviews.lock().note(&identity.key(), allowed, Instant::now() + kept);
        });
        None
    }

    /// Forgets what a review has said about somebody.
    pub fn forget(&self, identity: &IdentityFields) {
        self.reviews.lock().users.remove(&identity.key());
    }
}

/// What reviews have said.
#[derive(Default)]
struct Reviews {
    users: HashMap<Box<[u8]>, Verdict>,
}

#[derive(Clone, Copy)]
struct Verdict {
    allowed: bool,
    until: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Allowed,
    Refused,
    /// Nothing is known, and the caller must ask. Until it notes the result, nobody else does.
    Asked,
}

impl Reviews {
    fn look_up(&mut self, user: &[u8], now: Instant) -> Known {
        match self.users.get(user) {
            Some(verdict) if now < verdict.until => {
                return if verdict.allowed { Known::Allowed } else { Known::Refused };
            }
            Some(_) => {}
            None => {
                if self.users.len() >= MAX_USERS {
                    self.users.retain(|_, verdict| now < verdict.until);
                }
                if self.users.len() >= MAX_USERS {
                    return Known::Refused;
                }
            }
        }
        let verdict = Verdict { allowed: false, until: now + REFUSED_FOR };
        self.users.insert(user.into(), verdict);
        Known::Asked
    }

    fn note(&mut self, user: &[u8], allowed: bool, until: Instant) {
        if let Some(verdict) = self.users.get_mut(user) {
            *verdict = Verdict { allowed, until };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_review_is_asked_for_and_kept_for_its_time() {
        let (mut reviews, now) = (Reviews::default(), Instant::now());
        assert_eq!(reviews.look_up(b"a", now), Known::Asked);
        assert_eq!(reviews.look_up(b"a", now), Known::Refused, "one asks");
        reviews.note(b"a", true, now + ALLOWED_FOR);
        assert_eq!(reviews.look_up(b"a", now + ALLOWED_FOR / 2), Known::Allowed);
        assert_eq!(reviews.look_up(b"b", now), Known::Asked);
        assert_eq!(reviews.look_up(b"a", now + ALLOWED_FOR), Known::Asked);
        reviews.note(b"a", false, now + ALLOWED_FOR + REFUSED_FOR);
        assert_eq!(reviews.look_up(b"a", now + ALLOWED_FOR), Known::Refused);
    }

    #[test]
    fn the_number_of_users_is_bounded() {
        let (mut reviews, now) = (Reviews::default(), Instant::now());
        for number in 0..MAX_USERS {
            assert_eq!(reviews.look_up(number.to_string().as_bytes(), now), Known::Asked);
        }
        assert_eq!(reviews.look_up(b"another", now), Known::Refused);
        assert_eq!(reviews.look_up(b"another", now + REFUSED_FOR), Known::Asked);
        assert_eq!(reviews.users.len(), 1);
    }
}
