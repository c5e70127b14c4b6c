//! The primitives of the format of forwarded commands: byte strings preceded by their length, and the
//! error of bytes that are no such command.

use bytes::{Buf, BufMut, Bytes, TryGetError};

/// Why bytes cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub(super) enum WireError {
    #[error("truncated")]
    Truncated,
    #[error("unknown {0} {1}")]
    Unknown(&'static str, u8),
    #[error("{0} unexpected bytes at the end")]
    Trailing(usize),
    #[error("not UTF-8")]
    Utf8,
    #[error("a malformed member: {0}")]
    Member(#[from] consensus::DecodeError),
    #[error(transparent)]
    Protobuf(#[from] prost::DecodeError),
}

impl From<TryGetError> for WireError {
    fn from(_: TryGetError) -> Self {
        WireError::Truncated
    }
}

pub(super) fn put_bytes(bytes: &[u8], buf: &mut Vec<u8>) {
    buf.put_u64_le(bytes.len() as u64);
    buf.put_slice(bytes);
}

pub(super) fn get_bytes(bytes: &mut Bytes) -> Result<Bytes, WireError> {
    let length = bytes.try_get_u64_le()?;
    match usize::try_from(length) {
        Ok(length) if length <= bytes.len() => Ok(bytes.split_to(length)),
        _ => Err(WireError::Truncated),
    }
}

/// Writes strings, preceded by their number.
pub(super) fn put_strings<S: AsRef<str>>(strings: &[S], buf: &mut Vec<u8>) {
    buf.put_u64_le(strings.len() as u64);
    strings.iter().for_each(|string| put_bytes(string.as_ref().as_bytes(), buf));
}

pub(super) fn get_strings(bytes: &mut Bytes) -> Result<Vec<String>, WireError> {
    let count = bytes.try_get_u64_le()?;
    // A forged number ends with the buffer.
    (0..count).map(|_| get_string(bytes)).collect()
}

pub(super) fn get_string(bytes: &mut Bytes) -> Result<String, WireError> {
    String::from_utf8(get_bytes(bytes)?.into()).map_err(|_| WireError::Utf8)
}
