//! The header fields that traces contain, and the removal of padding and priority from HEADERS
//! frames.

use crate::frames::{Head, flag};

/// Removes padding and priority from `block`, the payload of a HEADERS frame with the header
/// `head`. Returns `None` if the frame is malformed.
pub fn strip_padding_and_priority(block: &mut Vec<u8>, head: Head) -> Option<()> {
    let (mut start, mut end) = (0, block.len());
    if head.has(flag::PADDED) {
        start = 1;
        end = end.checked_sub(usize::from(*block.first()?))?;
    }
    if head.has(flag::PRIORITY) {
        start += 5;
    }
    if start > end {
        return None;
    }
    block.truncate(end);
    block.drain(..start);
    Some(())
}

/// Maximum size of a stored path or message in bytes. The rest is cut off: an observer keeps one
/// of each per stream in progress, and the peers choose them.
const MAX_TEXT_BYTES: usize = 1024;

/// The header fields that traces contain.
#[derive(Default)]
pub struct Fields {
    /// The value of `:path`: the gRPC method. At most [`MAX_TEXT_BYTES`] bytes.
    pub path: Vec<u8>,
    /// The value of `grpc-status`.
    pub code: Option<u32>,
    /// The decoded value of `grpc-message`. At most [`MAX_TEXT_BYTES`] encoded bytes.
    pub message: String,
}

impl Fields {
    /// Stores a header field if traces contain it.
    pub fn add(&mut self, name: &[u8], value: &[u8]) {
        match name {
            b":path" => self.path = cut(value).to_vec(),
            b"grpc-status" => {
                self.code = std::str::from_utf8(value).ok().and_then(|code| code.parse().ok());
            }
            b"grpc-message" => self.message = percent_decoded(cut(value)),
            _ => {}
        }
    }
}

fn cut(value: &[u8]) -> &[u8] {
    &value[..value.len().min(MAX_TEXT_BYTES)]
}

/// Decodes `grpc-message`, which encodes a percent sign and all bytes other than printable
/// ASCII as %XX.
fn percent_decoded(text: &[u8]) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text);
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..2).filter(|_| *first == b'%');
        let code = code.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
