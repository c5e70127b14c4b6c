//! Identities of clusters and members, and positions in the log.

use std::fmt;
use std::num::NonZeroU64;

/// The index of an entry in the log. The first entry has the index 1.
pub type Index = u64;
/// A Raft term.
pub type Term = u64;

/// The identity of a member: a random number that is used by one member only. A member that has
/// lost its log gets a new one ([`crate::identity`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(NonZeroU64);

/// The identity of a cluster. Members of different clusters ignore each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClusterId(pub u64);

/// An entry of the log: its index, and the term of the leader that appended it. Two logs with the
/// same position have the same entries up to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The term. It comes first: positions are ordered as Raft compares logs.
    pub term: Term,
    /// The index.
    pub index: Index,
}

impl MemberId {
    /// Returns the identity with this number; `None` for 0, which Raft reserves.
    pub fn new(id: u64) -> Option<MemberId> {
        NonZeroU64::new(id).map(MemberId)
    }

    /// Returns the number.
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

// As etcd prints them.
impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}
