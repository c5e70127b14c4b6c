//! Listening sockets of a server: listen URLs, accepting, TLS, and detection of the HTTP
//! version.
//!
//! [`bind`] turns a [`Listen`] URL into [`Listener`]s. [`Listener::serve`] accepts
//! connections, does the TLS handshake, and calls the server for each connection.
//! [`open`] reads the first bytes of a connection, to find out whether the client speaks
//! HTTP/2 or HTTP/1.1.
//!
//! # Invariants
//! - The number of open connections is bounded by the limit on file descriptors
//!   ([`connection_permits`]); further clients wait in the kernel's queue.
//! - A client that does not complete the TLS handshake or the first bytes within 10 s is
//!   disconnected.
//! - Certificate files are read again when they change; open connections are not affected.

#![warn(missing_docs)]

mod accept;
mod io;
mod listen;
mod opening;
mod tls;

pub use accept::{Listener, bind, connection_permits, unpaced};
pub use io::Io;
pub use listen::Listen;
pub use opening::{Opened, Replayed, open};
pub use tls::{Acceptor, TlsFiles, TlsVersion, acceptor, certificates, roots};
