//! Listening sockets of a server: listen URLs, accepting, TLS, and detection of the HTTP
//! version.
//!
//! [`bind`] turns a [`SocketUrl`] into [`Listener`]s. [`Listener::serve`] accepts
//! connections, does the TLS handshake, and calls a function of the server for each
//! connection. [`detect_http_version`] reads the first bytes of a connection to find out
//! whether the client uses HTTP/2 or HTTP/1.1.
//!
//! # Invariants
//! - The number of open connections is bounded by the limit on file descriptors
//!   ([`connection_permits`]); further clients wait in the kernel's queue.
//! - A client is disconnected if it does not complete the TLS handshake within 10 s, or
//!   does not send the first bytes within 10 s after it.
//! - Changed certificate files are read again before the next handshake. Open connections
//!   are not affected. Sessions with client certificates are not resumed.

#![warn(missing_docs)]

mod accept;
mod http_version;
mod io;
mod reload;
mod socket_url;
mod tls;

pub use accept::{Client, Listener, bind, connection_permits, disable_pacing};
pub use http_version::{
    Detected, HTTP1_HEAD_BYTES, HTTP1_HEAD_TIMEOUT, Replayed, detect_http_version,
};
pub use io::Io;
pub use reload::{FileStamp, Reloaded};
pub use socket_url::SocketUrl;
pub use tls::{
    Acceptor, KeyPair, TlsFiles, TlsVersion, read_ca_certificates, read_certificates,
    read_key_pair, read_revocations, tls_acceptor,
};
