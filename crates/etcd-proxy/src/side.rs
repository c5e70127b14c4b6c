//! The two sides of a forwarded connection.

/// The sender of bytes on a forwarded connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The client.
    Client,
    /// The endpoint.
    Server,
}
