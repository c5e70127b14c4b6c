//! What is known about Leases.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::num::NonZeroU64;
use std::sync::Arc;

use node_lease::{Fingerprint, Lease, Timestamp};
use parking_lot::Mutex;

use super::Reason;
use super::answer::AnswerFields;
use super::recognize::Candidate;
use crate::node_path::NAMESPACE;

/// Leases that are known. Beyond it, any other one is forgotten, and its next renewal is forwarded.
const MAX_LEASES: usize = 1 << 20;
/// Parts of the map, each with a lock of its own.
const PARTS: usize = 64;

/// A Lease as it was last seen in the store.
#[derive(Clone, Debug)]
pub struct Known {
    /// The revision of the store at which it was written.
    pub version: NonZeroU64,
    /// What a renewal does not change.
    pub fingerprint: Fingerprint,
    /// Its `renewTime`.
    pub renewed: Timestamp,
    /// What an answer to its holder has besides the body.
    pub fields: Arc<AnswerFields>,
}

impl Known {
    /// What a Lease that was sent by the store or an API server says; `None` if it has no version.
    pub fn new(lease: &Lease<'_>, fields: Arc<AnswerFields>) -> Option<Known> {
        Some(Known {
            version: lease.resource_version?,
            fingerprint: lease.fingerprint(),
            renewed: lease.renew_time,
            fields,
        })
    }

    /// Whether a request changes the `renewTime` of this Lease and nothing else, as its manager.
    ///
    /// # Errors
    /// If not, with the reason.
    pub fn allows(&self, lease: &Lease<'_>, manager: &[u8]) -> Result<(), Reason> {
        if lease.resource_version != Some(self.version) {
            return Err(Reason::Version);
        }
        // kube-apiserver does not write an object that does not change.
        if lease.fingerprint() != self.fingerprint || lease.renew_time == self.renewed {
            return Err(Reason::Content);
        }
        if !lease.is_renewable(manager) {
            return Err(Reason::Manager);
        }
        Ok(())
    }
}

/// Takes the body of a request apart.
///
/// # Errors
/// If it is not the Lease of the URL.
pub fn parse<'a>(candidate: &Candidate, body: &'a [u8]) -> Result<Lease<'a>, Reason> {
    let lease = Lease::parse(body).ok_or(Reason::Object)?;
    let is_named = *lease.name == *candidate.name && lease.namespace == NAMESPACE.as_bytes();
    is_named.then_some(lease).ok_or(Reason::Object)
}

/// The Leases that are known, by name.
pub struct KnownLeases {
    parts: Vec<Mutex<HashMap<Box<[u8]>, Known>>>,
    hasher: RandomState,
    max_of_part: usize,
}

impl Default for KnownLeases {
    fn default() -> Self {
        KnownLeases::new(MAX_LEASES / PARTS)
    }
}

impl KnownLeases {
    fn new(max_of_part: usize) -> KnownLeases {
        let parts = (0..PARTS).map(|_| Mutex::default()).collect();
        KnownLeases { parts, hasher: RandomState::new(), max_of_part }
    }

    fn part(&self, name: &[u8]) -> &Mutex<HashMap<Box<[u8]>, Known>> {
        &self.parts[self.hasher.hash_one(name) as usize % PARTS]
    }

    /// Returns what is known about a Lease.
    pub fn get(&self, name: &[u8]) -> Option<Known> {
        self.part(name).lock().get(name).cloned()
    }

    /// Remembers a Lease, unless a newer version is known.
    pub fn learn(&self, name: &[u8], known: Known) {
        let mut part = self.part(name).lock();
        if let Some(last) = part.get_mut(name) {
            if last.version < known.version {
                *last = known;
            }
            return;
        }
        if part.len() >= self.max_of_part
            && let Some(other) = part.keys().next().cloned()
        {
            part.remove(&other);
        }
        part.insert(name.into(), known);
    }

    /// Forgets a Lease that is not what it was thought to be.
    pub fn forget(&self, name: &[u8], version: NonZeroU64) {
        let mut part = self.part(name).lock();
        if part.get(name).is_some_and(|known| known.version == version) {
            part.remove(name);
        }
    }

    /// The number of Leases.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.lock().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn known(body: &[u8]) -> Known {
        Known::new(&Lease::parse(body).unwrap(), Arc::default()).unwrap()
    }

    #[test]
    fn only_a_later_time_on_the_known_version_is_a_renewal() {
        let before = known(&sample::lease("node-1", 7, 100, "kubelet"));
        let verdict =
            |body: &[u8], manager: &[u8]| before.allows(&Lease::parse(body).unwrap(), manager);
        let renewed = sample::lease("node-1", 7, 110, "kubelet");
        assert_eq!(verdict(&renewed, b"kubelet"), Ok(()));
        assert_eq!(verdict(&renewed, b"kwok"), Err(Reason::Manager));
        for (body, reason) in [
            (sample::lease("node-1", 6, 110, "kubelet"), Reason::Version),
            (sample::lease("node-1", 8, 110, "kubelet"), Reason::Version),
            (sample::lease("node-1", 7, 100, "kubelet"), Reason::Content),
            (sample::lease("node-2", 7, 110, "kubelet"), Reason::Content),
            (sample::lease("node-1", 7, 110, "kwok"), Reason::Content),
        ] {
            assert_eq!(verdict(&body, b"kubelet"), Err(reason));
        }
    }

    #[test]
    fn the_body_must_have_the_name_of_the_url() {
        let body = sample::lease("node-1", 7, 100, "kubelet");
        let candidate = |name: &[u8]| Candidate {
            name: name.into(),
            manager: (*b"kubelet").into(),
            length: body.len(),
        };
        assert!(parse(&candidate(b"node-1"), &body).is_ok());
        assert_eq!(parse(&candidate(b"node-2"), &body).unwrap_err(), Reason::Object);
        let object = parse(&candidate(b"node-1"), &body[..body.len() - 1]);
        assert_eq!(object.unwrap_err(), Reason::Object);
    }

    #[test]
    fn the_newest_version_wins_and_the_number_is_bounded() {
        let leases = KnownLeases::new(1);
        let version = |version| known(&sample::lease("a", version, 100, "kubelet"));
        leases.learn(b"a", version(7));
        leases.learn(b"a", version(6));
        assert_eq!(leases.get(b"a").unwrap().version.get(), 7);
        leases.forget(b"a", NonZeroU64::new(6).unwrap());
        assert!(leases.get(b"a").is_some(), "what is known is newer than what was wrong");
        leases.forget(b"a", NonZeroU64::new(7).unwrap());
        assert!(leases.get(b"a").is_none());
        for number in 0..1000 {
            leases.learn(format!("{number}").as_bytes(), version(7));
        }
        assert!(leases.len() <= PARTS);
        assert!(leases.get(b"999").is_some(), "the newest is known");
    }
}
