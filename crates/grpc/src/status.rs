//! How a call ended.

use std::borrow::Cow;

/// The codes of gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
#[repr(u8)]
pub enum Code {
    Ok = 0,
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl Code {
    /// All codes, in the order of their numbers.
    pub const ALL: [Code; 17] = [
        Code::Ok,
        Code::Cancelled,
        Code::Unknown,
        Code::InvalidArgument,
        Code::DeadlineExceeded,
        Code::NotFound,
        Code::AlreadyExists,
        Code::PermissionDenied,
        Code::ResourceExhausted,
        Code::FailedPrecondition,
        Code::Aborted,
        Code::OutOfRange,
        Code::Unimplemented,
        Code::Internal,
        Code::Unavailable,
        Code::DataLoss,
        Code::Unauthenticated,
    ];

    /// The name that gRPC for Go gives it, in metrics for example.
    pub fn name(self) -> &'static str {
        match self {
            Code::Ok => "OK",
            Code::Cancelled => "Canceled",
            Code::Unknown => "Unknown",
            Code::InvalidArgument => "InvalidArgument",
            Code::DeadlineExceeded => "DeadlineExceeded",
            Code::NotFound => "NotFound",
            Code::AlreadyExists => "AlreadyExists",
            Code::PermissionDenied => "PermissionDenied",
            Code::ResourceExhausted => "ResourceExhausted",
            Code::FailedPrecondition => "FailedPrecondition",
            Code::Aborted => "Aborted",
            Code::OutOfRange => "OutOfRange",
            Code::Unimplemented => "Unimplemented",
            Code::Internal => "Internal",
            Code::Unavailable => "Unavailable",
            Code::DataLoss => "DataLoss",
            Code::Unauthenticated => "Unauthenticated",
        }
    }
}

/// Why a call failed: a code and a text for the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", code.name())]
pub struct Status {
    code: Code,
    message: Cow<'static, str>,
}

impl Status {
    /// A status of any code.
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Status { code, message: message.into() }
    }

    /// The code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The text.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The request makes no sense, whatever the state.
    pub fn invalid_argument(message: impl Into<Cow<'static, str>>) -> Self {
        Status::new(Code::InvalidArgument, message)
    }

    /// The state does not allow it.
    pub fn failed_precondition(message: impl Into<Cow<'static, str>>) -> Self {
        Status::new(Code::FailedPrecondition, message)
    }

    /// There is no such thing.
    pub fn not_found(message: impl Into<Cow<'static, str>>) -> Self {
        Status::new(Code::NotFound, message)
    }

    /// There is no such call, or not in this form.
    pub fn unimplemented(message: impl Into<Cow<'static, str>>) -> Self {
        Status::new(Code::Unimplemented, message)
    }

    /// Something that must not happen did, here or in how the client talks.
    pub fn internal(message: impl Into<Cow<'static, str>>) -> Self {
        Status::new(Code::Internal, message)
    }

    /// An error of no known kind.
    pub fn unknown(message: impl Into<Cow<'static, str>>) -> Self {
        Status::new(Code::Unknown, message)
    }

    /// Not now.
    pub fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        Status::new(Code::Unavailable, message)
    }

    /// Too much of something.
    pub fn resource_exhausted(message: impl Into<Cow<'static, str>>) -> Self {
        Status::new(Code::ResourceExhausted, message)
    }

    /// The text as it travels: what is not printable ASCII is percent-encoded.
    pub(crate) fn encoded_message(&self) -> String {
        let mut encoded = String::with_capacity(self.message.len());
        for byte in self.message.bytes() {
            match byte {
                b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
                _ => encoded.push_str(&format!("%{byte:02X}")),
            }
        }
        encoded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_their_numbers() {
        assert!(Code::ALL.iter().enumerate().all(|(number, code)| *code as usize == number));
    }

    #[test]
    fn what_is_not_ascii_is_encoded() {
        let status = Status::internal("50% \"schön\"\n");
        assert_eq!(status.encoded_message(), "50%25 \"sch%C3%B6n\"%0A");
    }
}
