//! Bytes of frames.

use http2::FrameHeader;

/// Returns a frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let header = FrameHeader { len: payload.len(), kind, flags, stream };
    [&header.encode()[..], payload].concat()
}

/// Returns a block of fields, each a literal of at most 127 bytes that enters no table.
#[allow(dead_code, reason = "not every test sends fields")]
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.extend([0, name.len() as u8]);
        block.extend(name.bytes().chain([value.len() as u8]).chain(value.bytes()));
    }
    block
}
