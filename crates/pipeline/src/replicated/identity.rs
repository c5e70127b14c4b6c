//! The identities of members.

use consensus::id::MemberId;

/// Returns an identity that no other member has.
pub(super) fn random_member() -> MemberId {
    MemberId::new(rand::random_range(1..=u64::MAX)).expect("it is not 0")
}
