//! Why a command or a read was refused.

/// Each text is etcd's own, word for word: clients match on it.
/// Source: `go.etcd.io/etcd/api/v3@v3.7.3/v3rpc/rpctypes/error.go`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A read or a watch asked for a revision before the last compaction.
    #[error("etcdserver: mvcc: required revision has been compacted")]
    Compacted,
    /// A read or a compaction asked for a revision that is yet to come.
    #[error("etcdserver: mvcc: required revision is a future revision")]
    FutureRevision,
    /// `ignore_value` or `ignore_lease` on a key that does not exist.
    #[error("etcdserver: key not found")]
    KeyNotFound,
    /// No lease has this ID, or no longer.
    #[error("etcdserver: requested lease not found")]
    LeaseNotFound,
    /// A lease with this ID was granted before and still lives.
    #[error("etcdserver: lease already exists")]
    LeaseExists,
    /// The TTL exceeds [`crate::MAX_LEASE_TTL_SECONDS`].
    #[error("etcdserver: too large lease TTL")]
    LeaseTtlTooLarge,
    /// The quota is used up, or was and the alarm has not been cleared.
    #[error("etcdserver: mvcc: database space exceeded")]
    NoSpace,
    /// Somebody has raised the alarm that the content is corrupt.
    #[error("etcdserver: corrupt cluster")]
    Corrupt,
}
