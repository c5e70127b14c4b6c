//! The state of a replica, for metrics and operators.

use crate::id::Index;
use crate::membership::MemberInfo;
use crate::output::RoleChange;

/// The state of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its role.
    pub role: RoleChange,
    /// The first entry of the log in memory.
    pub first_index: Index,
    /// The last entry of the log.
    pub last_index: Index,
    /// The last entry that is known to be committed.
    pub commit: Index,
    /// The last applied entry.
    pub applied: Index,
    /// The members.
    pub members: Vec<MemberStatus>,
}

/// The state of a member, as a replica sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// The member.
    pub info: MemberInfo,
    /// Whether it votes.
    pub is_voter: bool,
    /// The last entry that it is known to have; known only to the leader.
    pub replicated: Option<Index>,
}
