//! HTTP/2 (RFC 9113) as a state machine without I/O, for servers and for clients.
//!
//! The crate parses frames, decodes header fields (HPACK, RFC 7541), applies flow control
//! and limits, and schedules responses. It opens no socket and reads no clock, so the
//! caller decides how bytes are read and written, and a test passes in the bytes and the
//! time. The crates `grpc` and `kube-gateway` build on it. Apart from the rules for pings, which are
//! those of grpc-go, nothing in it is specific to gRPC.
//!
//! ```text
//!  bytes read ──▶ Connection::receive ──▶ next_event ──▶ Request, Data, Trailers, Reset
//!                     │ SETTINGS, PING, WINDOW_UPDATE are handled inside the crate
//!                     ▼
//!  bytes to write ◀── output ◀── fill_output ◀── send_head, send_data, finish, respond
//! ```
//!
//! # How to drive a connection
//! 1. Pass bytes from the socket to [`Connection::receive`]. After an error, write the
//!    bytes of [`Connection::output`], which end with a GOAWAY frame, and close the
//!    socket.
//! 2. Handle every event that [`Connection::next_event`] returns.
//! 3. Call [`Connection::release`] when a part of a request body is no longer in memory,
//!    so that the client may send more on that stream.
//! 4. Call [`Connection::fill_output`], then write [`Connection::output`] to the socket.
//! 5. Call [`Connection::on_alarm`] at the time that [`Connection::alarm`] returns. If it
//!    returns false, close the socket.
//!
//! A client also calls [`Connection::open`] for each request, and gets
//! [`Event::Response`] instead of [`Event::Request`].
//!
//! The trait [`RequestBuilder`] turns header fields into a request. Its implementation
//! [`Fields`] keeps all fields, including pseudo-header fields. A server that needs only
//! a few fields implements the trait itself and allocates nothing for the others.
//!
//! # Invariants
//! - The memory for data received from one client is bounded by the stream windows, by
//!   [`Config::max_streams`], and by the limit on header fields. The crate does not limit
//!   the memory for responses: the caller checks [`Connection::send_capacity`] and
//!   [`Connection::queued_bytes`].
//! - With [`Refill::OnArrival`], a stream whose body is not released does not block other
//!   streams: the connection's window is refilled when data arrives, and `release` refills only
//!   the stream's window.
//! - Small responses overtake large ones, except for the frames that are already in the
//!   output.
//! - A protocol violation resets the stream or closes the connection with the error code
//!   that RFC 9113 requires. It does not affect other connections.
//!
//! # Not implemented
//! Server push and priorities. Informational (1xx) responses are not sent, and are discarded
//! when they are received.
//!
//! # Reading order
//! `frame`, `hpack`, `fields` and `request`, `stream`, `sender`, then `connection`.

#![warn(missing_docs)]

mod config;
mod connection;
mod event;
mod fields;
mod frame;
mod hpack;
mod liveness;
mod output;
mod request;
mod response;
mod sender;
mod stream;

pub use config::{Config, ConnectMethod, Limits, Refill};
pub use connection::Connection;
pub use event::{ConnectionError, Event};
pub use fields::Fields;
pub use frame::{ErrorCode, PREFACE, flag, kind, setting};
pub use frame::{FrameHeader, HEADER_BYTES, MAX_PAYLOAD_BYTES, read_u32};
pub use hpack::{Decoder, Malformed};
pub use liveness::Keepalive;
pub use output::Output;
pub use request::RequestBuilder;
pub use response::{CommonField, Data, Headers, ResponseHead};
pub use stream::StreamMap;
