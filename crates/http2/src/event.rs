//! Events: what received frames mean for the caller.

use std::fmt;

use bytes::Bytes;

use crate::fields::Fields;
use crate::frame::ErrorCode;

/// What has happened on a stream.
///
/// A request or a response is complete after the event whose `end_stream` is true, or after
/// [`Event::Trailers`].
#[derive(Debug)]
pub enum Event<R> {
    /// The client opened a stream with a request.
    Request {
        /// The stream's ID.
        stream: u32,
        /// The request that the [`RequestBuilder`](crate::RequestBuilder) built.
        request: R,
        /// Whether the header fields exceeded the limit, so that the builder did not get
        /// all of them. The server should respond with status 431 or its equivalent.
        fields_too_large: bool,
        /// Whether the request has no body.
        end_stream: bool,
    },
    /// The server answered the request of a stream.
    Response {
        /// The stream's ID.
        stream: u32,
        /// The status and the header fields, as the [`RequestBuilder`](crate::RequestBuilder)
        /// built them.
        response: R,
        /// Whether the response has no body.
        end_stream: bool,
    },
    /// A part of a body. The caller passes the length of `bytes` to
    /// [`Connection::release`](crate::Connection::release) to let the peer send as many
    /// more bytes.
    Data {
        /// The stream's ID.
        stream: u32,
        /// The bytes, without padding. Empty only if `end_stream` is set.
        bytes: Bytes,
        /// Whether the body is complete.
        end_stream: bool,
    },
    /// The body ended with trailers.
    Trailers {
        /// The stream's ID.
        stream: u32,
        /// The trailers of a response. Those of a request were validated and discarded: a block
        /// of a few bytes can stand for 64 KiB of fields, and no server that uses this crate
        /// needs them.
        fields: Fields,
    },
    /// The peer reset the stream, or the connection did so because of a protocol
    /// violation. Later calls for the stream have no effect.
    Reset {
        /// The stream's ID.
        stream: u32,
        /// The error code of the RST_STREAM frame.
        code: u32,
    },
    /// The server has said with GOAWAY that it did not process the request of a stream and
    /// will not. It may be sent again over another connection.
    Unprocessed {
        /// The stream's ID.
        stream: u32,
    },
}

/// A protocol violation that closes the connection. The output contains a GOAWAY frame
/// with the same code and message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConnectionError {
    /// The error code of the GOAWAY frame.
    pub code: ErrorCode,
    /// Description of the violation, which the GOAWAY frame contains too.
    pub message: &'static str,
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.message, self.code)
    }
}
