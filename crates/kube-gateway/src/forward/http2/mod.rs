//! HTTP/2. One task serves a client and its connections to API servers.
//!
//! ```text
//!            ┌───────────────────── Session ─────────────────────┐
//!  client ══ Channel (server side) ── Stream ── Channel (client side) ══ API server
//!            └ requests: begin, body   (state)   answers: head, body, end ┘
//! ```
//!
//! A task for each side, and one for each request, would wake each other several times for a small
//! request, and each would keep buffers. Here a request passes from one socket to the other within
//! one poll, and an idle connection keeps only its state.
//!
//! # Flow control
//! - Bytes of an answer are released to the API server when they have been framed for the client, so
//!   a slow client stops its own streams. What all clients hold together is bounded by
//!   [`Held`](crate::protect::Held): beyond it, the session does not read from API servers.
//! - Bytes of a request are released to the client when they have been framed for the API server.
//!   The window of the connection bounds them over all streams.
//!
//! # Reading order
//! `head`, `channel`, `young`, `stream`, `open_watch`, `renewal_turns`, `upstreams`, then `session`, `requests`,
//! `renewals`, `watches`, `answers` and `failures`.

mod answers;
mod channel;
mod failures;
mod head;
mod open_watch;
mod renewal_turns;
mod renewals;
mod requests;
mod session;
mod stream;
mod upstreams;
mod watches;
mod young;

pub use session::serve;
