//! Parts of an encoded message that are found without decoding or copying it.

use prost::DecodeError;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// The bytes, the string or the message in the field with this number; empty if there is none.
///
/// # Errors
/// If the bytes are no message.
pub fn nested(message: &[u8], number: u32) -> Result<&[u8], DecodeError> {
    let (mut rest, mut found) = (message, &[][..]);
    while !rest.is_empty() {
        let (tag, kind) = decode_key(&mut rest)?;
        if (tag, kind) != (number, WireType::LengthDelimited) {
            skip_field(kind, tag, &mut rest, DecodeContext::default())?;
            continue;
        }
        let start = rest;
        skip_field(kind, tag, &mut rest, DecodeContext::default())?;
        found = &start[..start.len() - rest.len()];
        // The length.
        decode_varint(&mut found)?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_among_others() {
        let message = b"\x08\x96\x01\x12\x03one\x1a\x00\x12\x05other\x25abcd";
        assert_eq!(nested(message, 2).unwrap(), b"other", "the last one counts");
        assert_eq!(nested(message, 3).unwrap(), b"");
        assert_eq!(nested(message, 9).unwrap(), b"");
        assert_eq!(nested(message, 1).unwrap(), b"", "a number has no bytes");
        assert_eq!(nested(b"", 1).unwrap(), b"");
    }

    #[test]
    fn other_bytes_are_no_message() {
        for bytes in [
            &b"\x12\x05x"[..],
            b"\x12",
            b"\x00",
            b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            b"\x0fa",
        ] {
            assert!(nested(bytes, 2).is_err(), "{bytes:?}");
        }
    }
}
