//! The identity of a store.

use std::fmt;

/// The IDs of a store. Neither is 0. They never change during the life of a data
/// directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// ID of the cluster.
    pub cluster_id: u64,
    /// ID of this member.
    pub member_id: u64,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cluster {:016x}, member {:016x}", self.cluster_id, self.member_id)
    }
}
