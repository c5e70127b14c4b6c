//! A client of kube-apiserver over HTTP/2.
//!
//! A [`Link`] is one connection at a time to one server, with one identity. Its owner puts requests
//! into it, each with a tag, and the link passes the outcome of each request to a [`Receiver`] with
//! the same tag. It dials when there is something to send, and again after a failure with a
//! growing delay.
//!
//! # Invariants
//! - Every request has exactly one outcome: an answer, or a [`Failure`]. A watch has any number of
//!   parts and exactly one end.
//! - A heartbeat that is not answered within 10 s fails. The time includes waiting for a connection
//!   and for a free stream, as in client-go. Other requests have 60 s from when they were sent.
//! - A link sends no request twice. Repeating is up to the owner.
//! - A connection that the server ends with GOAWAY gets no new requests; the open ones finish.
//!
//! # Reading order
//! `request`, `answer`, `endpoint`, `exchange` (the requests of one connection), then `session` (one
//! connection) and `link`.

mod answer;
mod endpoint;
mod exchange;
mod link;
mod request;
mod session;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub use answer::Answer;
pub use answer::{Failure, Outcome, Part, Receiver, WatchEnd};
pub use endpoint::{ClientCertificate, Endpoint, client_config};

pub use exchange::Limit;
pub use link::{Link, Observer};
pub use request::{Body, Method, Request};
