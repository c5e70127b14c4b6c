//! The format of errors in the responses to forwarded commands.

use bytes::{Buf, BufMut, Bytes};

use super::wire_format::{WireError, get_string, put_bytes};
use crate::Error;

// The kinds of errors. They never change. Those of the lists below follow their bases.
const TOO_MANY_REQUESTS: u8 = 1;
const NO_SPACE: u8 = 2;
const TOO_LARGE: u8 = 3;
const STOPPED: u8 = 4;
const NO_LEADER: u8 = 5;
const LEADER_CHANGED: u8 = 6;
const LEADER_FAILED: u8 = 7;
const TIMED_OUT: u8 = 8;
const CONNECTION_LOST: u8 = 9;
const CANCELLED: u8 = 10;
const CANNOT_GROW: u8 = 11;
const LOG_FAILED: u8 = 12;
const TOO_MANY_COMPARED_KEYS: u8 = 13;
const NO_CONNECTION: u8 = 14;
const STORE: u8 = 64;
const AUTH: u8 = 128;

/// The errors of the store, in the order of their numbers. New ones are appended.
const STORE_ERRORS: [mvcc::Error; 9] = [
    mvcc::Error::Compacted,
    mvcc::Error::FutureRevision,
    mvcc::Error::KeyNotFound,
    mvcc::Error::LeaseNotFound,
    mvcc::Error::LeaseExists,
    mvcc::Error::LeaseTtlTooLarge,
    mvcc::Error::NoSpace,
    mvcc::Error::Corrupt,
    mvcc::Error::ResponseTooLarge,
];

/// The errors of users and roles, in the order of their numbers. New ones are appended.
const AUTH_ERRORS: [auth::Error; 17] = [
    auth::Error::RootUserNotFound,
    auth::Error::RootRoleNotGranted,
    auth::Error::UserExists,
    auth::Error::UserEmpty,
    auth::Error::UserNotFound,
    auth::Error::RoleExists,
    auth::Error::RoleNotFound,
    auth::Error::RoleEmpty,
    auth::Error::AuthFailed,
    auth::Error::PermissionNotGiven,
    auth::Error::PermissionDenied,
    auth::Error::RoleNotGranted,
    auth::Error::PermissionNotGranted,
    auth::Error::NotEnabled,
    auth::Error::InvalidToken,
    auth::Error::InvalidManagement,
    auth::Error::OldRevision,
];

/// Appends an error.
pub(super) fn encode_error(error: &Error, buf: &mut Vec<u8>) {
    let kind = match error {
        Error::Refused(error) => return encode_refusal(*error, buf),
        Error::TooManyRequests => TOO_MANY_REQUESTS,
        Error::NoSpace => NO_SPACE,
        Error::TooLarge => TOO_LARGE,
        Error::Stopped => STOPPED,
        Error::NoLeader => NO_LEADER,
        Error::NoConnection => NO_CONNECTION,
        Error::LeaderChanged => LEADER_CHANGED,
        Error::LeaderFailed => LEADER_FAILED,
        Error::TimedOut => TIMED_OUT,
        Error::ConnectionLost => CONNECTION_LOST,
        Error::Cancelled => CANCELLED,
        Error::CannotGrow(text) => return encode_text(CANNOT_GROW, text, buf),
        Error::LogFailed(text) => return encode_text(LOG_FAILED, text, buf),
    };
    buf.put_u8(kind);
}

fn encode_refusal(error: mvcc::Error, buf: &mut Vec<u8>) {
    let kind = match error {
        mvcc::Error::TooManyComparedKeys { max_keys } => {
            buf.put_u8(TOO_MANY_COMPARED_KEYS);
            return buf.put_u64_le(max_keys as u64);
        }
        mvcc::Error::Auth(error) => AUTH + position(&AUTH_ERRORS, &error),
        error => STORE + position(&STORE_ERRORS, &error),
    };
    buf.put_u8(kind);
}

fn position<T: PartialEq>(list: &[T], error: &T) -> u8 {
    list.iter().position(|known| known == error).expect("the list has all errors") as u8
}

fn encode_text(kind: u8, text: &str, buf: &mut Vec<u8>) {
    buf.put_u8(kind);
    put_bytes(text.as_bytes(), buf);
}

/// Decodes an error.
pub(super) fn decode_error(mut bytes: Bytes) -> Result<Error, WireError> {
    let kind = bytes.try_get_u8()?;
    Ok(match kind {
        TOO_MANY_REQUESTS => Error::TooManyRequests,
        NO_SPACE => Error::NoSpace,
        TOO_LARGE => Error::TooLarge,
        STOPPED => Error::Stopped,
        NO_LEADER => Error::NoLeader,
        NO_CONNECTION => Error::NoConnection,
        LEADER_CHANGED => Error::LeaderChanged,
        LEADER_FAILED => Error::LeaderFailed,
        TIMED_OUT => Error::TimedOut,
        CONNECTION_LOST => Error::ConnectionLost,
        CANCELLED => Error::Cancelled,
        CANNOT_GROW => Error::CannotGrow(get_string(&mut bytes)?.into()),
        LOG_FAILED => Error::LogFailed(get_string(&mut bytes)?.into()),
        TOO_MANY_COMPARED_KEYS => {
            let max_keys = bytes.try_get_u64_le()? as usize;
            mvcc::Error::TooManyComparedKeys { max_keys }.into()
        }
        kind => {
            let unknown = || WireError::Unknown("error", kind);
            let auth = kind.checked_sub(AUTH).map(|at| AUTH_ERRORS.get(usize::from(at)));
            let store = kind.checked_sub(STORE).map(|at| STORE_ERRORS.get(usize::from(at)));
            match (auth.flatten(), store.flatten()) {
                (Some(error), _) => mvcc::Error::from(*error).into(),
                (None, Some(error)) => (*error).into(),
                (None, None) => return Err(unknown()),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_read_as_written() {
        let store = STORE_ERRORS.map(Error::from);
        let auth = AUTH_ERRORS.map(|error| Error::from(mvcc::Error::from(error)));
        let others = [
            Error::TooManyRequests,
            Error::NoSpace,
            Error::TooLarge,
            Error::Stopped,
            Error::NoLeader,
            Error::NoConnection,
            Error::LeaderChanged,
            Error::LeaderFailed,
            Error::TimedOut,
            Error::ConnectionLost,
            Error::Cancelled,
            Error::CannotGrow("a".into()),
            Error::LogFailed("b".into()),
            mvcc::Error::TooManyComparedKeys { max_keys: 8 }.into(),
        ];
        for error in store.into_iter().chain(auth).chain(others) {
            let mut buf = Vec::new();
            encode_error(&error, &mut buf);
            let decoded = decode_error(buf.into()).unwrap();
            assert_eq!(format!("{decoded:?}"), format!("{error:?}"));
        }
        assert!(decode_error(vec![63].into()).is_err());
        assert!(decode_error(vec![255].into()).is_err());
    }
}
