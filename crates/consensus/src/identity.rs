//! The identity of a member, depending on what survived since it ran last.
//!
//! Raft is safe only if a member never forgets a vote or an entry that it has acknowledged. A
//! member that may have forgotten something is therefore another member: it gets a new identity,
//! and never speaks under the old one again. It is in the cluster again when the leader has
//! replaced the old identity by the new one ([`crate::rejoin`]). Until then it counts as failed.

use crate::fault::{Fault, is_active};
use crate::id::MemberId;

/// Which failures the log of a member survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogMode {
    /// An entry is on the disk before it is acknowledged: a crash of the machine.
    Fsync,
    /// An entry is written to a file before it is acknowledged, and on the disk later: a crash of
    /// the process.
    Buffered,
    /// The log is in memory only: nothing.
    Memory,
}

/// What a data directory says about the member that used it last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredIdentity {
    /// Its identity.
    pub member: MemberId,
    /// Its mode.
    pub mode: LogMode,
    /// The boot ID of the machine, if it was known.
    pub boot_id: Option<Vec<u8>>,
}

/// The identity of a member that starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The log is complete: the member continues.
    Kept(MemberId),
    /// The log may be incomplete or does not exist: the member must discard it and join.
    Fresh(MemberId),
}

/// Decides under which identity a member starts. `stored` describes the data directory, and is
/// `None` if there is none, or if it is damaged. `fresh` is a new random identity.
pub fn identity(
    stored: Option<&StoredIdentity>,
    boot_id: Option<&[u8]>,
    fresh: MemberId,
) -> Identity {
    let Some(stored) = stored else { return Identity::Fresh(fresh) };
    let same_boot = boot_id.is_some() && stored.boot_id.as_deref() == boot_id;
    let is_complete = match stored.mode {
        LogMode::Fsync => true,
        LogMode::Buffered => same_boot || is_active(Fault::ReusedIdentityAfterReboot),
        LogMode::Memory => is_active(Fault::ReusedIdentity),
    };
    if is_complete { Identity::Kept(stored.member) } else { Identity::Fresh(fresh) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_kept_only_with_a_complete_log() {
        let (old, new) = (MemberId::new(1).unwrap(), MemberId::new(2).unwrap());
        let (kept, fresh) = (Identity::Kept(old), Identity::Fresh(new));
        let after = |mode, before: Option<&[u8]>, now: Option<&[u8]>| {
            let boot_id = before.map(<[u8]>::to_vec);
            identity(Some(&StoredIdentity { member: old, mode, boot_id }), now, new)
        };
        let (boot, other): (Option<&[u8]>, Option<&[u8]>) = (Some(b"1"), Some(b"2"));
        assert_eq!(identity(None, boot, new), fresh);
        assert_eq!(after(LogMode::Fsync, boot, other), kept);
        assert_eq!(after(LogMode::Buffered, boot, boot), kept);
        assert_eq!(after(LogMode::Buffered, boot, other), fresh);
        assert_eq!(after(LogMode::Buffered, None, None), fresh);
        assert_eq!(after(LogMode::Memory, boot, boot), fresh);
    }
}
