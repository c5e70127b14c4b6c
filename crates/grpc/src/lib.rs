//! A gRPC server on the [`http2`] crate.
//!
//! The store needs a few microseconds for a write, so its transport must not cost ten.
//! This crate implements what the server needs of gRPC, and runs each connection in one
//! task: bytes are parsed where they were read, handlers are polled in place, and all
//! responses are framed into one buffer and written together. ADR 5 has the
//! measurements.
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
//! again. So a handler that yields once, like the store's `propose`, is batched with the
//! others of that read, and the batch needs no wake-up of the task.
//!
//! # Invariants
//! - The memory that a client can occupy is bounded: by stream windows, by the number of
//!   streams, by [`Budget`] for incomplete and unread messages, and because no calls are
//!   started while too many bytes of responses wait for the client.
//! - A stream whose messages are not read does not block other streams.
//!
//! # Not implemented
//! Compression, clients, metadata (no handler needs any), and deadlines: a client that
//! no longer waits resets its stream.
//!
//! # Reading order
//! `status`, `assembler` and `payload`, `request`, `connection`, `inbox`, `routes`,
//! `calls`, then `serve`.

#![warn(missing_docs)]

mod assembler;
mod budget;
mod calls;
mod config;
mod connection;
#[cfg(test)]
mod fuzz;
mod inbox;
mod payload;
mod request;
mod routes;
mod serve;
mod status;

pub use budget::Budget;
pub use config::ServerConfig;
pub use http2::Keepalive;
pub use payload::{Encoded, Payload, Reply};
pub use routes::{Requests, Routes, Service};
pub use serve::serve;
pub use status::{Code, Status};
