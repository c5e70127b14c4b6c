//! The errors of commands and reads.

/// The reason for rejecting a command or a read.
///
/// If etcd has the same error, the text is exactly that of etcd, because clients compare it.
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
    /// A change of users or roles was rejected, or the client may not execute the command.
    #[error(transparent)]
    Auth(#[from] auth::Error),
    /// The compares of a transaction that writes visit too many keys.
    #[error(
        "mem_etcd: the compares of a transaction that writes may read {max_keys} keys at most: compare smaller ranges"
    )]
    TooManyComparedKeys {
        /// The limit.
        max_keys: usize,
    },
    /// The ranges of a transaction exceed the maximum size of a response.
    #[error(
        "mem_etcd: the ranges of the transaction exceed the largest response, 2 GiB: read them with RangeStream; if the transaction writes, it was executed"
    )]
    ResponseTooLarge,
}
