//! Why a call failed.

use std::fmt;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError {
    /// Too many calls are in progress. It was not sent.
    Busy,
    /// The connection had ended before. It was not sent.
    Closed,
    /// The server answered with a status other than OK: `code CODE: MESSAGE`.
    Status(String),
    /// There is no answer. The server may have executed the call.
    Broken(String),
}

impl std::error::Error for CallError {}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Busy => f.write_str("too many calls in progress"),
            CallError::Closed => f.write_str("the connection has ended"),
            CallError::Status(text) | CallError::Broken(text) => f.write_str(text),
        }
    }
}
