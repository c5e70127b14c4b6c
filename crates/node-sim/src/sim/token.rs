//! A token of a service account in a volume of a pod.

use crate::time::Ticks;

use super::references::TokenSource;

/// A token of a pod.
pub struct Token {
    /// What it is for.
    pub source: TokenSource,
    /// When it is requested; [`NEVER`](super::node::NEVER) while a request is in flight.
    pub due: Ticks,
    /// Whether the pod has it.
    pub is_held: bool,
    /// Requests that failed in a row.
    pub failures: u8,
}

impl Token {
    /// A token that was not requested yet.
    pub fn new(source: TokenSource) -> Token {
        Token { source, due: 0, is_held: false, failures: 0 }
    }
}
