//! A gRPC server on the [`http2`] crate.
//!
//! A write costs the store about 3 µs of CPU; with a general gRPC library, the transport
//! would cost three times as much (ADR 5). Therefore this crate implements only what the
//! server needs of gRPC, and runs each connection in one task. The task parses the bytes
//! that it has read, polls the handlers itself, frames all responses into one buffer and
//! writes them together.
//!
//! ```text
//! socket ─▶ http2::Connection ─▶ GrpcConnection ─▶ Calls: handlers
//!           frames, fields       messages          │ payloads, statuses
//! socket ◀── output ◀── http2::Connection ◀────────┘
//! ```
//!
//! # How to serve
//! Implement [`Service`], register handlers in [`Routes`], and call [`serve`] for each
//! connection that starts with [`http2::PREFACE`].
//!
//! # Order of polls
//! The handlers of all requests in one read are polled once before any of them is polled
//! again. Handlers that yield once, like those that call the store's `propose`, therefore
//! submit their commands as one batch, and the batch needs no wake-up of the task.
//!
//! # Invariants
//! - The memory that a client can occupy is bounded by the stream windows, the number of
//!   streams, [`Budget`] for incomplete and unread messages, and [`Capacity`] for responses
//!   and slow reads. Calls with one request message do not start, and streaming calls produce
//!   no messages, while too many bytes of responses wait for the client.
//! - A call that the client resets is dropped at once, also if it waits or runs. Only a
//!   submitted command and a slow read that is running go on.
//! - A stream whose messages the handler does not read does not block other streams.
//!
//! # Not implemented
//! - Compression, and gRPC clients.
//! - Metadata, except what authenticates a client.
//!
//! # Reading order
//! `status`, `budget`, `assembler` and `payload`, `metadata`, `request`, `connection`, `inbox`,
//! `routes`, `admission`, `unary` and `streaming`, `calls`, then `serve`.

#![warn(missing_docs)]

mod admission;
mod assembler;
mod budget;
mod calls;
mod config;
mod connection;
mod deadlines;
mod deferred;
#[cfg(test)]
mod fuzz;
mod inbox;
mod metadata;
mod open_streams;
mod payload;
mod request;
mod routes;
mod serve;
mod slow_reads;
mod stall;
mod status;
mod streaming;
mod turn;
mod unary;

pub use admission::{Admission, Capacity, ExpectedReply, Reservation};
pub use budget::Budget;
pub use config::ServerConfig;
pub use http2::Keepalive;
pub use payload::{Encoded, Payload, Reply};
pub use routes::{Requests, Routes, Service};
pub use serve::serve;
pub use slow_reads::SlowRead;
pub use status::{Code, Status};
