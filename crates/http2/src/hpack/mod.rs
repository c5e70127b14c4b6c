//! Compression of header fields: HPACK (RFC 7541).

mod decode;
mod encode;
mod huffman;
mod table;

pub use decode::{Decoder, Malformed};
pub(crate) use encode::Encoder;

/// Size of the dynamic table in bytes before either side changes it.
pub(crate) const DEFAULT_TABLE_BYTES: usize = 4096;
/// The size of a table entry is that of its name and value plus this many bytes (RFC
/// 7541, section 4.1).
const ENTRY_OVERHEAD_BYTES: usize = 32;
