//! Keys that have an allocation of their own, for example those of leases and of cursors.

use std::borrow::Borrow;
use std::cmp::Ordering;

use triomphe::ThinArc;

/// A key. Its clones share one allocation. Keys are ordered by their bytes.
#[derive(Clone)]
pub struct Key(ThinArc<(), u8>);

impl Key {
    /// Copies `bytes` into a new shared key.
    pub fn new(bytes: &[u8]) -> Self {
        Key(ThinArc::from_header_and_slice((), bytes))
    }

    /// The key's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0.slice
    }
}

impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl std::hash::Hash for Key {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        // `Borrow` requires that a key has the same hash as its bytes.
        self.as_bytes().hash(state);
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", self.as_bytes().escape_ascii())
    }
}
