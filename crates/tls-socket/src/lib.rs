//! TLS over a TCP socket that holds no buffer while it is idle.
//!
//! A program with very many connections, most of them idle, pays for TLS mainly with buffers: one
//! for received records, one for decrypted bytes, and one for records to be sent. Here the
//! connections of a thread share these buffers ([`scratch`]). A connection keeps bytes of its own
//! only while a record is incomplete, or while the peer reads too slowly.
//!
//! ```text
//!  socket ──▶ shared buffer ──▶ rustls ──▶ sink            poll_receive
//!  socket ◀── sealed records ◀── rustls ◀── plaintext      seal, poll_flush
//! ```
//!
//! [`TlsSocket::poll_receive`] passes plaintext to a closure and [`TlsSocket::seal`] takes it from
//! slices, so that a state machine without I/O of its own, such as the crate `http2`, copies
//! nothing in between. The socket also implements tokio's [`AsyncRead`](tokio::io::AsyncRead) and
//! [`AsyncWrite`](tokio::io::AsyncWrite) for other users.
//!
//! Reading order: `scratch`, `side`, `socket`, `handshake`, `stream`.

#![warn(missing_docs)]

mod handshake;
mod scratch;
mod side;
mod socket;
mod stream;

pub use side::{ClientSide, ServerSide, Side};
pub use socket::{Received, TlsSocket};
