//! The result of a call: a code and a message.

use std::borrow::Cow;

/// Status codes of gRPC.
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
    /// All codes in the order of their numbers.
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

    /// The name of the code in grpc-go and its metrics.
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

/// The error of a failed call: a code and a message for the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", code.name())]
pub struct Status {
    code: Code,
    message: Cow<'static, str>,
}

impl Status {
    /// A status with the given code.
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Status { code, message: message.into() }
    }

    /// The code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The request is invalid in any state of the server.
    pub fn invalid_argument(message: impl Into<Cow<'static, str>>) -> Self {
        Status::new(Code::InvalidArgument, message)
    }

    /// The state of the server does not allow the request.
    pub fn failed_precondition(message: impl Into<Cow<'static, str>>) -> Self {
        Status::new(Code::FailedPrecondition, message)
    }

    /// The requested object does not exist.
    pub fn not_found(message: impl Into<Cow<'static, str>>) -> Self {
        Status::new(Code::NotFound, message)
    }

    /// The method does not exist or is not supported.
    pub fn unimplemented(message: impl Into<Cow<'static, str>>) -> Self {
        Status::new(Code::Unimplemented, message)
    }

    /// The server failed, or the client's message cannot be decoded.
    pub fn internal(message: impl Into<Cow<'static, str>>) -> Self {
        Status::new(Code::Internal, message)
    }

    /// An error without a more specific code.
    pub fn unknown(message: impl Into<Cow<'static, str>>) -> Self {
        Status::new(Code::Unknown, message)
    }

    /// The server cannot serve the request now; the client may retry.
    pub fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        Status::new(Code::Unavailable, message)
    }

    /// A limit was exceeded.
    pub fn resource_exhausted(message: impl Into<Cow<'static, str>>) -> Self {
        Status::new(Code::ResourceExhausted, message)
    }

    /// The value of `grpc-message`: the message, in which `%` and all bytes that are not
    /// printable ASCII are percent-encoded.
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
    fn codes_are_listed_by_number() {
        assert!(Code::ALL.iter().enumerate().all(|(number, code)| *code as usize == number));
    }

    #[test]
    fn non_ascii_messages_are_percent_encoded() {
        let status = Status::internal("50% \"schön\"\n");
        assert_eq!(status.encoded_message(), "50%25 \"sch%C3%B6n\"%0A");
    }
}
