//! The errors of commands and reads.

/// The reason for rejecting a command or a read.
///
/// The texts are exactly those of etcd, because clients compare them.
/// Source: `go.etcd.io/etcd/api/v3@v3.7.3/v3rpc/rpctypes/error.go`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The requested revision is before the compacted revision.
    #[error("etcdserver: mvcc: required revision has been compacted")]
    Compacted,
    /// The requested revision is greater than the current revision.
    #[error("etcdserver: mvcc: required revision is a future revision")]
    FutureRevision,
    /// `ignore_value` or `ignore_lease` was set for a key that does not exist.
    #[error("etcdserver: key not found")]
    KeyNotFound,
    /// No lease has this ID: it was never granted, was revoked or has expired.
    #[error("etcdserver: requested lease not found")]
    LeaseNotFound,
    /// A lease with this ID already exists.
    #[error("etcdserver: lease already exists")]
    LeaseExists,
    /// The TTL exceeds [`crate::MAX_LEASE_TTL_SECONDS`].
    #[error("etcdserver: too large lease TTL")]
    LeaseTtlTooLarge,
    /// The command exceeds the quota, or a NOSPACE alarm is raised already.
    #[error("etcdserver: mvcc: database space exceeded")]
    NoSpace,
    /// A CORRUPT alarm is raised.
    #[error("etcdserver: corrupt cluster")]
    Corrupt,
}
