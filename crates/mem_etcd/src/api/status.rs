//! Converts errors to gRPC statuses. Codes and messages are those of etcd
//! (`go.etcd.io/etcd/api/v3@v3.7.3/v3rpc/rpctypes/error.go`).

use grpc::{Code, Status};

/// Returns the status of a failed command or read.
pub fn from_pipeline(error: pipeline::Error) -> Status {
    Status::new(code_of(&error), error.to_string())
}

fn code_of(error: &pipeline::Error) -> Code {
    match error {
        pipeline::Error::Refused(refused) => match refused {
            mvcc::Error::Compacted
            | mvcc::Error::FutureRevision
            | mvcc::Error::LeaseTtlTooLarge => Code::OutOfRange,
            mvcc::Error::KeyNotFound | mvcc::Error::TooManyComparedKeys { .. } => {
                Code::InvalidArgument
            }
            mvcc::Error::LeaseNotFound => Code::NotFound,
            mvcc::Error::LeaseExists => Code::FailedPrecondition,
            mvcc::Error::NoSpace | mvcc::Error::ResponseTooLarge => Code::ResourceExhausted,
            mvcc::Error::Corrupt => Code::DataLoss,
            mvcc::Error::Auth(error) => code_of_auth(*error),
        },
        pipeline::Error::TooManyRequests | pipeline::Error::NoSpace => Code::ResourceExhausted,
        pipeline::Error::TooLarge => Code::InvalidArgument,
        pipeline::Error::Cancelled => Code::Cancelled,
        pipeline::Error::Stopped
        | pipeline::Error::CannotGrow(_)
        | pipeline::Error::NoLeader
        | pipeline::Error::NoConnection
        | pipeline::Error::LeaderChanged
        | pipeline::Error::TimedOut
        | pipeline::Error::LeaderFailed
        | pipeline::Error::ConnectionLost
        | pipeline::Error::LogFailed(_) => Code::Unavailable,
    }
}

/// Returns the status of a rejected request that concerns users and roles.
pub fn from_auth(error: auth::Error) -> Status {
    Status::new(code_of_auth(error), error.to_string())
}

fn code_of_auth(error: auth::Error) -> Code {
    use auth::Error;
    match error {
        Error::RootUserNotFound
        | Error::RootRoleNotGranted
        | Error::UserExists
        | Error::UserNotFound
        | Error::RoleExists
        | Error::RoleNotFound
        | Error::RoleNotGranted
        | Error::PermissionNotGranted
        | Error::NotEnabled => Code::FailedPrecondition,
        Error::UserEmpty
        | Error::RoleEmpty
        | Error::AuthFailed
        | Error::PermissionNotGiven
        | Error::InvalidManagement
        | Error::OldRevision => Code::InvalidArgument,
        Error::PermissionDenied => Code::PermissionDenied,
        Error::InvalidToken => Code::Unauthenticated,
    }
}

/// Returns why a watch is rejected. It is not the status of a call, so etcd writes the code into
/// the text.
pub fn watch_refusal(error: auth::Error) -> &'static str {
    match error {
        auth::Error::InvalidToken => {
            "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token"
        }
        auth::Error::OldRevision => {
            "rpc error: code = InvalidArgument desc = etcdserver: revision of auth store is old"
        }
        auth::Error::UserEmpty => {
            "rpc error: code = InvalidArgument desc = etcdserver: user name is empty"
        }
        _ => "rpc error: code = PermissionDenied desc = etcdserver: permission denied",
    }
}

/// Returns the status of a failed read of the ranges of a transaction that was executed.
pub fn from_executed_txn(error: pipeline::Error) -> Status {
    match error {
        // As in etcd, where this error has no other meaning either.
        pipeline::Error::Refused(mvcc::Error::ResponseTooLarge) => from_pipeline(error),
        error => ranges_not_read(&from_pipeline(error)),
    }
}

/// The ranges of a transaction could not be read after it was executed. The statuses of other
/// failed requests mean that nothing was executed, and a client may send those again.
pub fn ranges_not_read(cause: &Status) -> Status {
    let cause = cause.message();
    Status::unavailable(format!(
        "mem_etcd: the transaction was executed, but its ranges were not read: {cause}"
    ))
}

/// The request has no key.
pub fn empty_key() -> Status {
    Status::invalid_argument("etcdserver: key is not provided")
}

/// The request has both `ignore_value` and a value.
pub fn value_provided() -> Status {
    Status::invalid_argument("etcdserver: value is provided")
}

/// The request has both `ignore_lease` and a lease.
pub fn lease_provided() -> Status {
    Status::invalid_argument("etcdserver: lease is provided")
}

/// The sort order or the sort target does not exist.
pub fn invalid_sort_option() -> Status {
    Status::invalid_argument("etcdserver: invalid sort option")
}

/// The transaction has more operations than `--max-txn-ops`.
pub fn too_many_ops() -> Status {
    Status::invalid_argument("etcdserver: too many operations in txn request")
}

/// The transaction could change a key twice.
pub fn duplicate_key() -> Status {
    Status::invalid_argument("etcdserver: duplicate key given in txn request")
}

/// An operation of the transaction is empty.
pub fn key_not_found() -> Status {
    Status::invalid_argument("etcdserver: key not found")
}

/// The request has more bytes than `--max-request-bytes`.
pub fn request_too_large() -> Status {
    Status::invalid_argument("etcdserver: request is too large")
}

/// The client may not call the method, or not for these keys.
pub fn permission_denied() -> Status {
    from_auth(auth::Error::PermissionDenied)
}

/// Returns the status of a failed MoveLeader.
pub fn from_move_leader(error: pipeline::MoveLeaderError) -> Status {
    use pipeline::MoveLeaderError;
    match error {
        MoveLeaderError::NotLeader | MoveLeaderError::BadTransferee => {
            Status::failed_precondition(error.to_string())
        }
        MoveLeaderError::TimedOut => Status::unavailable(error.to_string()),
    }
}

/// Returns the status of a failed change of the members.
pub fn from_member_error(error: pipeline::MemberError) -> Status {
    use pipeline::MemberError;
    let code = match &error {
        MemberError::Failed(error) => code_of(error),
        MemberError::NotFound => Code::NotFound,
        MemberError::Unhealthy => Code::Unavailable,
        MemberError::NoPeers => Code::Unimplemented,
        MemberError::Exists
        | MemberError::PeerUrlExists
        | MemberError::NotLearner
        | MemberError::LearnerNotReady
        | MemberError::TooManyLearners
        | MemberError::NotEnoughStarted => Code::FailedPrecondition,
    };
    Status::new(code, error.to_string())
}

/// The request has no peer URL, or one that cannot be used.
pub fn bad_member_urls() -> Status {
    Status::invalid_argument("etcdserver: given member URLs are invalid")
}

/// A learner does not answer this request.
pub fn not_supported_for_learner() -> Status {
    Status::failed_precondition("etcdserver: rpc not supported for learner")
}

/// The cluster has no leader, and the client wants the call to fail then.
pub fn no_leader() -> Status {
    from_pipeline(pipeline::Error::NoLeader)
}

/// The target of the downgrade is not a version.
pub fn wrong_downgrade_version_format() -> Status {
    Status::invalid_argument("etcdserver: wrong downgrade target version format")
}

/// The target of the downgrade is not the previous minor version.
pub fn invalid_downgrade_target_version() -> Status {
    Status::invalid_argument("etcdserver: invalid downgrade target version")
}

/// A downgrade is already enabled.
pub fn downgrade_in_process() -> Status {
    Status::failed_precondition("etcdserver: cluster has a downgrade job in progress")
}

/// The action of a Downgrade request is unknown.
pub fn unknown_method() -> Status {
    Status::unknown("etcdserver: unknown method")
}

/// The health of an unknown service was requested.
pub fn unknown_service() -> Status {
    Status::not_found("unknown service")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_after_the_execution_of_a_transaction_say_so() {
        for error in [mvcc::Error::Compacted.into(), pipeline::Error::TooManyRequests] {
            let not_executed = from_pipeline(error);
            assert_ne!(not_executed.code(), Code::Unavailable);
            let status = ranges_not_read(&not_executed);
            assert_eq!(status.code(), Code::Unavailable);
            assert!(status.message().contains("was executed"), "{}", status.message());
            assert!(status.message().ends_with(not_executed.message()));
        }
        let compacted = from_executed_txn(mvcc::Error::Compacted.into());
        assert_eq!(compacted.code(), Code::Unavailable);
        let too_large = from_executed_txn(mvcc::Error::ResponseTooLarge.into());
        assert_eq!(too_large.code(), Code::ResourceExhausted);
    }
}
