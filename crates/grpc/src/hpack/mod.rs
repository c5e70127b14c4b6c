//! HPACK (RFC 7541): header fields in few bytes.

mod decode;
mod encode;
mod huffman;
mod table;

pub use decode::{Decoder, Malformed};
pub(crate) use encode::Encoder;

/// The size of the dynamic table unless something else is agreed.
pub(crate) const DEFAULT_TABLE_BYTES: usize = 4096;
