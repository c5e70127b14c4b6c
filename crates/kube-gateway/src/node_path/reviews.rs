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
/// Results that are kept for one user, who may ask for any namespace, also for those that do not exist. It is enough
/// for all resources and about a hundred namespaces; its further requests are forwarded.
const MAX_OF_USER: usize = 128;
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

    /// Whether somebody may do this, as a review has said. If that is not known, begins to ask; must be called in a
    /// runtime.
    pub fn verdict(self: &Arc<Self>, identity: &Arc<IdentityFields>, access: &Access) -> Verdict {
        let key = Key::new(identity, access);
        if let Found::Known(verdict) = self.kept.lock().look_up(&key, Instant::now()) {
            return verdict;
        }
        let (this, identity, access) = (self.clone(), identity.clone(), access.clone());
        tokio::spawn(async move {
            let Ok(_permit) = this.running.acquire().await else { return };
            let result = this.reviewer.allows(&identity, &access).await;
            let (verdict, kept) = match result {
                Ok(true) => (Verdict::Allowed, ALLOWED_FOR),
                Ok(false) => (Verdict::Refused, REFUSED_FOR),
                Err(error) => {
                    let error = format!("{error:#}");
                    let Access { verb, resource, .. } = &access;
                    tracing::warn!(error, verb, resource, "failed to review what a user may do");
                    (Verdict::Unknown, FAILED_FOR)
                }
            };
            this.kept.lock().note(&key, verdict, Instant::now() + kept);
        });
        Verdict::Unknown
    }

    /// Whether somebody certainly may do this. Asks as [`Reviews::verdict`].
    pub fn allows(self: &Arc<Self>, identity: &Arc<IdentityFields>, access: &Access) -> bool {
        self.verdict(identity, access) == Verdict::Allowed
    }

    /// Forgets what a review has said.
    pub fn forget(&self, identity: &IdentityFields, access: &Access) {
        self.kept.lock().forget(&Key::new(identity, access));
    }
}

/// What is known about what a user may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A review has allowed it.
    Allowed,
    /// A review has not.
    Refused,
    /// No review has said anything yet, or the last one failed.
    Unknown,
}

/// Who wants to do what.
struct Key {
    user: Box<[u8]>,
    access: Box<[u8]>,
}

impl Key {
    fn new(identity: &IdentityFields, access: &Access) -> Key {
        let Access { verb, group, resource, namespace } = access;
        let access = [*verb, *group, *resource, namespace].join("\0").into_bytes().into();
        Key { user: identity.key(), access }
    }
}

/// What reviews have said about a user, by access.
type Entries = HashMap<Box<[u8]>, Entry>;

/// What reviews have said.
#[derive(Default)]
struct Kept {
    users: HashMap<Box<[u8]>, Entries>,
    /// The number of entries of all users.
    count: usize,
}

#[derive(Clone, Copy)]
struct Entry {
    verdict: Verdict,
    until: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Known(Verdict),
    /// Nothing is known, and the caller must ask. Until it notes the result, nobody else does.
    Asked,
}

impl Kept {
    fn look_up(&mut self, key: &Key, now: Instant) -> Found {
        let entries = self.users.get(&key.user);
        match entries.and_then(|entries| entries.get(&key.access)).copied() {
            Some(entry) if now < entry.until => return Found::Known(entry.verdict),
            Some(_) => {}
            None if self.has_room(&key.user, now) => self.count += 1,
            None => return Found::Known(Verdict::Unknown),
        }
        let entry = Entry { verdict: Verdict::Unknown, until: now + REFUSED_FOR };
        self.users.entry(key.user.clone()).or_default().insert(key.access.clone(), entry);
        Found::Asked
    }

    /// Whether there is room for another entry of a user. Removes old ones if there is none.
    fn has_room(&mut self, user: &[u8], now: Instant) -> bool {
        if let Some(entries) = self.users.get_mut(user).filter(|it| it.len() >= MAX_OF_USER) {
            self.count -= remove_old(entries, now);
            if entries.len() >= MAX_OF_USER {
                return false;
            }
        }
        if self.count >= MAX_REVIEWS {
            for entries in self.users.values_mut() {
                self.count -= remove_old(entries, now);
            }
            self.users.retain(|_, entries| !entries.is_empty());
        }
        self.count < MAX_REVIEWS
    }

    fn note(&mut self, key: &Key, verdict: Verdict, until: Instant) {
        let entries = self.users.get_mut(&key.user);
        if let Some(entry) = entries.and_then(|entries| entries.get_mut(&key.access)) {
            *entry = Entry { verdict, until };
        }
    }

    fn forget(&mut self, key: &Key) {
        let Some(entries) = self.users.get_mut(&key.user) else { return };
        self.count -= usize::from(entries.remove(&key.access).is_some());
        if entries.is_empty() {
            self.users.remove(&key.user);
        }
    }
}

/// Removes entries whose time is over. Returns how many.
fn remove_old(entries: &mut HashMap<Box<[u8]>, Entry>, now: Instant) -> usize {
    let before = entries.len();
    entries.retain(|_, entry| now < entry.until);
    before - entries.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(user: &str, access: &str) -> Key {
        Key { user: user.as_bytes().into(), access: access.as_bytes().into() }
    }

    #[test]
    fn one_review_is_asked_for_and_kept_for_its_time() {
        let (mut reviews, now) = (Kept::default(), Instant::now());
        let (a, b) = (key("a", "x"), key("b", "x"));
        assert_eq!(reviews.look_up(&a, now), Found::Asked);
        assert_eq!(reviews.look_up(&a, now), Found::Known(Verdict::Unknown), "one asks");
        reviews.note(&a, Verdict::Allowed, now + ALLOWED_FOR);
        let known = reviews.look_up(&a, now + ALLOWED_FOR / 2);
        assert_eq!(known, Found::Known(Verdict::Allowed));
        assert_eq!(reviews.look_up(&b, now), Found::Asked);
        assert_eq!(reviews.look_up(&a, now + ALLOWED_FOR), Found::Asked);
        reviews.note(&a, Verdict::Refused, now + ALLOWED_FOR + REFUSED_FOR);
        assert_eq!(reviews.look_up(&a, now + ALLOWED_FOR), Found::Known(Verdict::Refused));
        reviews.forget(&a);
        assert_eq!(reviews.look_up(&a, now + ALLOWED_FOR), Found::Asked);
        assert_eq!(reviews.count, 2);
    }

    #[test]
    fn the_number_of_reviews_is_bounded() {
        let (mut reviews, now) = (Kept::default(), Instant::now());
        for number in 0..MAX_REVIEWS {
            assert_eq!(reviews.look_up(&key(&number.to_string(), "x"), now), Found::Asked);
        }
        let another = key("another", "x");
        assert_eq!(reviews.look_up(&another, now), Found::Known(Verdict::Unknown));
        assert_eq!(reviews.look_up(&another, now + REFUSED_FOR), Found::Asked);
        assert_eq!((reviews.users.len(), reviews.count), (1, 1));
    }

    #[test]
    fn a_user_with_many_namespaces_takes_nothing_from_others() {
        let (mut reviews, now) = (Kept::default(), Instant::now());
        for number in 0..2 * MAX_REVIEWS {
            let found = reviews.look_up(&key("a", &number.to_string()), now);
            assert_eq!(found == Found::Asked, number < MAX_OF_USER);
        }
        assert_eq!(reviews.look_up(&key("b", "x"), now), Found::Asked);
        assert_eq!(reviews.count, MAX_OF_USER + 1);
        let later = now + REFUSED_FOR;
        assert_eq!(reviews.look_up(&key("a", "another"), later), Found::Asked);
    }
}
