//! Results of received frames.

use std::fmt;

use bytes::Bytes;

use crate::fields::Fields;
use crate::frame::ErrorCode;

/// A step in the life of a request, in the order of arrival.
///
/// The body of a request ends with the event whose `end_stream` is true, or with
/// [`Event::Trailers`].
#[derive(Debug)]
pub enum Event<R> {
    /// A client opened a stream with a request.
    Request {
        /// The stream's ID.
        stream: u32,
        /// The request that the [`RequestBuilder`](crate::RequestBuilder) built.
        request: R,
        /// Whether the header fields exceeded the limit; the builder saw only the first
        /// ones. The server should respond with 431 or its equivalent.
        fields_too_large: bool,
        /// Whether the request has no body.
        end_stream: bool,
    },
    /// A part of a request's body. Passing the number of its bytes to
    /// [`Connection::release`](crate::Connection::release) allows the client to send as
    /// many more.
    Data {
        /// The stream's ID.
        stream: u32,
        /// The bytes, without padding. They are empty only if `end_stream` is set.
        bytes: Bytes,
        /// Whether the body is complete.
        end_stream: bool,
    },
    /// Fields after the body, which is complete.
    Trailers {
        /// The stream's ID.
        stream: u32,
        /// The fields; none of them is a pseudo-header field.
        fields: Fields,
    },
    /// A stream was reset, by the client or because of a protocol violation. Responses
    /// to it are discarded.
    Reset {
        /// The stream's ID.
        stream: u32,
        /// The error code of the RST_STREAM frame.
        code: u32,
    },
}

/// A protocol violation that closes the connection. The client is informed by a GOAWAY
/// frame, which is in the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConnectionError {
    /// The error code of the GOAWAY frame.
    pub code: ErrorCode,
    /// The violation, as the GOAWAY frame describes it.
    pub message: &'static str,
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.message, self.code)
    }
}
