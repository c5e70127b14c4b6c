//! The byte stream of a connection.

use tokio::io::{AsyncRead, AsyncWrite};

/// A connection as a stream of bytes in both directions: TCP, a Unix socket, or TLS over
/// either.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}
