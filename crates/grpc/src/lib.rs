//! A server for gRPC, on an HTTP/2 of its own.
//!
//! A store that takes a few microseconds for a write cannot spend ten on the way
//! to it. This crate does what gRPC needs of HTTP/2 and no more, and does it in
//! one task a connection: bytes are parsed where they were read, handlers are
//! polled in place, answers are framed into one buffer and written together.
//! ADR 5 has the measurements.
//!
//! ```text
//! socket ─▶ Connection ─▶ events ─▶ Calls: handlers
//!            (no I/O)                 │ answers
//! socket ◀── output ◀── Connection ◀──┘
//! ```
//!
//! # Invariants
//! - What a client can make us keep is bounded: by windows, by the number of
//!   streams, by [`Budget`] for unfinished messages, and by not starting calls
//!   while too many bytes of answers wait to be read.
//! - A stream that is not read holds up no other; small answers overtake large
//!   ones, up to what has been framed.
//! - Whatever breaks the rules of HTTP/2 costs the sender its stream or its
//!   connection, with the reason that RFC 9113 names, and nobody else anything.
//!
//! # Missing
//! Compression, clients, push, priorities, metadata (no handler needs any) and
//! deadlines: a client that no longer waits resets its stream.

mod calls;
mod connection;
mod frame;
#[cfg(test)]
mod fuzz;
mod hpack;
mod inbox;
mod liveness;
mod message;
mod outgoing;
mod output;
mod request;
mod routes;
mod serve;
mod status;
mod stream;

pub use frame::PREFACE;
pub use hpack::{Decoder, Malformed};
pub use liveness::Keepalive;
pub use message::{Budget, Encoded, Payload, Pieces, Reply};
pub use routes::{Requests, Routes, Service};
pub use serve::{Io, Options, serve};
pub use status::{Code, Status};
