//! The two sides of a forwarded connection.

/// A side of a forwarded connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The client.
    Client,
    /// The etcd endpoint to which the connection is forwarded.
    Server,
}
