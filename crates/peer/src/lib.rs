//! The transport between the members of a cluster: carries the messages of `consensus`, and the
//! content of snapshots.
//!
//! # Streams
//!
//! ```text
//! member 1                                              member 2
//! send ─▶ queue ─▶ stream "control" ──────────────────▶ inbox ─▶ events
//! send ─▶ queue ─▶ stream "log" ──────────────────────▶ inbox ─▶ events
//! forward ─▶ queue ─▶ stream "forward" ───────────────▶ inbox ─▶ events
//! send_snapshot ─▶ stream "snapshot", one each ───────▶ content, as bytes
//! ```
//!
//! Each [`Class`] of messages has a stream of its own from each member to each other one, so a
//! heartbeat never waits behind entries, and entries not behind a snapshot. A stream is a TCP
//! connection on which the member that connects sends messages, and the other one only
//! acknowledgements. With TLS, both sides present certificates of the same CA. Without TLS, only
//! loopback addresses are used.
//!
//! # Guarantees
//!
//! - **Identity.** A stream begins only if both sides name the same cluster, sender and receiver.
//!   Each message is checked against its stream. A member that has another identity after a
//!   restart is reported ([`Event::Found`]), and gets no message for the old one. A process without state
//!   learns from the handshake which identity it has got ([`Transport::called`]).
//! - **Order** within a class, also over a reconnection. Messages may be lost, and the transport
//!   never repeats one.
//! - **Bounded memory.** Queues, incoming messages (`window`) and handshakes have limits. A
//!   length is checked before anything is allocated for it.
//! - **Nobody waits.** Sending never blocks; if a receiver is slow, its messages are dropped, and
//!   the member is told ([`Event::Unreachable`]). A peer that is silent, stops reading or sends
//!   what no member sends loses its connection, and nothing else happens.
//!
//! # Modules, in reading order
//!
//! | Module | Subject |
//! |---|---|
//! | `class`, `config`, `url` | classes of messages, settings, addresses |
//! | `frame`, `hello` | the format on the wire, and the handshake |
//! | `window`, `backoff`, `pace` | flow control, reconnecting, rate of snapshots; without I/O |
//! | `tls`, `connection` | connecting and accepting |
//! | `incoming_snapshot`, `inbox` | what the member gets |
//! | `queue`, `peer`, `status`, `shared` | the state of a peer, and of the transport |
//! | `outgoing`, `snapshot_send` | streams on which this member sends |
//! | `acknowledge`, `snapshot_receive`, `peers`, `incoming` | streams on which others send |
//! | `listener`, `transport` | everything together |
//!
//! # Not implemented
//!
//! Unix sockets.

#![warn(missing_docs)]

mod acknowledge;
mod backoff;
mod class;
mod config;
mod connection;
mod frame;
mod hello;
mod inbox;
mod incoming;
mod incoming_snapshot;
mod listener;
mod outgoing;
mod pace;
mod peer;
mod peers;
mod queue;
mod shared;
mod snapshot_receive;
mod snapshot_send;
mod status;
mod tls;
mod transport;
mod url;
mod window;

pub use class::Class;
pub use config::{Config, Timeouts};
pub use connection::Dialer;
pub use hello::{Answer, Identity};
pub use inbox::Event;
pub use incoming_snapshot::IncomingSnapshot;
pub use listener::Listeners;
pub use status::{PeerStatus, StreamStatus, TransportStatus};
pub use tls::{PeerTls, PeerTlsFiles};
pub use transport::Transport;
pub use url::PeerUrl;
