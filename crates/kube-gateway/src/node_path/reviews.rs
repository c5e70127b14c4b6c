//! What users of RBAC may do.
//!
//! The result of a SubjectAccessReview is kept as long as kubelet keeps those of its own clients
//! (`--authorization-webhook-cache-*`). A role that names single objects is not found: its users'
//! requests are forwarded.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::review::{Access, Reviewer};
use crate::identity::IdentityFields;

/// How long a user may do something after a review has allowed it, and may not after one has not.
const ALLOWED_FOR: Duration = Duration::from_secs(5 * 60);
const REFUSED_FOR: Duration = Duration::from_secs(30);
/// A review that failed is not repeated before.
const FAILED_FOR: Duration = Duration::from_secs(1);
/// Results that are kept. The requests of further users are forwarded.
const MAX_REVIEWS: usize = 4096;
/// Reviews at once. Further ones wait, and their users' requests are forwarded.
const MAX_RUNNING: usize = 8;

/// Reviews what users may do, and keeps the results.
pub struct Reviews {
    reviewer: Reviewer,
    kept: Mutex<Kept>,
    running: Arc<Semaphore>,
}

impl Reviews {
    /// Creates one that knows nobody.
    pub fn new(reviewer: Reviewer) -> Reviews {
        let running = Arc::new(Semaphore::new(MAX_RUNNING));
        Reviews { reviewer, kept: Mutex::default(), running }
    }

    /// Whether somebody certainly may do this. If that is not known, begins to ask; must be called in a
    /// runtime.
    pub fn allows(self: &Arc<Self>, identity: &Arc<IdentityFields>, access: &Access) -> bool {
        let key = key(identity, access);
        match self.kept.lock().look_up(&key, Instant::now()) {
            Known::Allowed => return true,
            Known::Refused => return false,
            Known::Asked => {}
        }
        let (this, identity, access) = (self.clone(), identity.clone(), access.clone());
        tokio::spawn(async move {
            let Ok(_permit) = this.running.acquire().await else { return };
            let result = this.reviewer.allows(&identity, &access).await;
            let (allowed, kept) = match result {
                Ok(true) => (true, ALLOWED_FOR),
                Ok(false) => (false, REFUSED_FOR),
                Err(error) => {
                    let error = format!("{error:#}");
                    let Access { verb, resource, .. } = &access;
                    tracing::warn!(error, verb, resource, "failed to review what a user may do");
                    (false, FAILED_FOR)
                }
            };
            this.kept.lock().note(&key, allowed, Instant::now() + kept);
        });
        false
    }

    /// Forgets what a review has said.
    pub fn forget(&self, identity: &IdentityFields, access: &Access) {
        self.kept.lock().verdicts.remove(&key(identity, access));
    }
}

fn key(identity: &IdentityFields, access: &Access) -> Box<[u8]> {
    let Access { verb, group, resource, namespace } = access;
    let mut key = Vec::from(identity.key());
    for part in [*verb, *group, *resource, namespace] {
        key.push(0);
        key.extend_from_slice(part.as_bytes());
    }
    key.into()
}

/// What reviews have said.
#[derive(Default)]
struct Kept {
    verdicts: HashMap<Box<[u8]>, Verdict>,
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

impl Kept {
    fn look_up(&mut self, key: &[u8], now: Instant) -> Known {
        match self.verdicts.get(key) {
            Some(verdict) if now < verdict.until => {
                return if verdict.allowed { Known::Allowed } else { Known::Refused };
            }
            Some(_) => {}
            None => {
                if self.verdicts.len() >= MAX_REVIEWS {
                    self.verdicts.retain(|_, verdict| now < verdict.until);
                }
                if self.verdicts.len() >= MAX_REVIEWS {
                    return Known::Refused;
                }
            }
        }
        let verdict = Verdict { allowed: false, until: now + REFUSED_FOR };
        self.verdicts.insert(key.into(), verdict);
        Known::Asked
    }

    fn note(&mut self, key: &[u8], allowed: bool, until: Instant) {
        if let Some(verdict) = self.verdicts.get_mut(key) {
            *verdict = Verdict { allowed, until };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_review_is_asked_for_and_kept_for_its_time() {
        let (mut reviews, now) = (Kept::default(), Instant::now());
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
    fn the_number_of_reviews_is_bounded() {
        let (mut reviews, now) = (Kept::default(), Instant::now());
        for number in 0..MAX_REVIEWS {
            assert_eq!(reviews.look_up(number.to_string().as_bytes(), now), Known::Asked);
        }
        assert_eq!(reviews.look_up(b"another", now), Known::Refused);
        assert_eq!(reviews.look_up(b"another", now + REFUSED_FOR), Known::Asked);
        assert_eq!(reviews.verdicts.len(), 1);
    }
}
