//! The primitives of the format in which entries and messages are stored and sent: varints
//! (LEB128), and byte strings preceded by their length.
//!
//! Reading never copies a payload: it returns a part of the buffer.

use bytes::{Buf, BufMut, Bytes};

use crate::id::{MemberId, Position};

/// The error of bytes that are not an entry or a message of this version.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum DecodeError {
    /// The bytes end too early.
    #[error("truncated")]
    Truncated,
    /// Bytes follow the end.
    #[error("{0} unexpected bytes at the end")]
    Trailing(usize),
    /// A field has a value that is not allowed.
    #[error("invalid {0}")]
    Invalid(&'static str),
}

/// Reads fields from a buffer.
pub(crate) struct Reader(Bytes);

impl Reader {
    pub(crate) fn new(bytes: Bytes) -> Reader {
        Reader(bytes)
    }

    /// Checks that everything has been read.
    pub(crate) fn finish(self) -> Result<(), DecodeError> {
        match self.0.len() {
            0 => Ok(()),
            rest => Err(DecodeError::Trailing(rest)),
        }
    }

    /// Whether everything has been read.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> Result<u8, DecodeError> {
        self.0.try_get_u8().map_err(|_| DecodeError::Truncated)
    }

    pub(crate) fn flag(&mut self) -> Result<bool, DecodeError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Invalid("flag")),
        }
    }

    /// Reads a number of 8 bytes, little-endian.
    pub(crate) fn fixed(&mut self) -> Result<u64, DecodeError> {
        self.0.try_get_u64_le().map_err(|_| DecodeError::Truncated)
    }

    pub(crate) fn number(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError::Invalid("varint"))
    }

    /// Reads the number of elements of a list. Each element takes at least one byte, so a forged
    /// number cannot exceed the rest of the buffer.
    pub(crate) fn count(&mut self) -> Result<usize, DecodeError> {
        let count = self.number()?;
        usize::try_from(count)
            .ok()
            .filter(|count| *count <= self.0.len())
            .ok_or(DecodeError::Truncated)
    }

    pub(crate) fn bytes(&mut self) -> Result<Bytes, DecodeError> {
        let length = self.count()?;
        Ok(self.0.split_to(length))
    }

    pub(crate) fn string(&mut self) -> Result<String, DecodeError> {
        let bytes = self.bytes()?;
        String::from_utf8(bytes.into()).map_err(|_| DecodeError::Invalid("UTF-8"))
    }

    pub(crate) fn member(&mut self) -> Result<MemberId, DecodeError> {
        MemberId::new(self.number()?).ok_or(DecodeError::Invalid("member ID"))
    }

    pub(crate) fn position(&mut self) -> Result<Position, DecodeError> {
        Ok(Position { term: self.number()?, index: self.number()? })
    }

    /// Reads a list.
    pub(crate) fn list<T, C: FromIterator<T>>(
        &mut self,
        mut element: impl FnMut(&mut Reader) -> Result<T, DecodeError>,
    ) -> Result<C, DecodeError> {
        let count = self.count()?;
        (0..count).map(|_| element(self)).collect()
    }
}

pub(crate) fn put_number(mut value: u64, buf: &mut Vec<u8>) {
    while value >= 0x80 {
        buf.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    buf.put_u8(value as u8);
}

pub(crate) fn put_bytes(bytes: &[u8], buf: &mut Vec<u8>) {
    put_number(bytes.len() as u64, buf);
    buf.put_slice(bytes);
}

pub(crate) fn put_position(position: Position, buf: &mut Vec<u8>) {
    put_number(position.term, buf);
    put_number(position.index, buf);
}

/// Writes a list. The counterpart of [`Reader::list`].
pub(crate) fn put_list<T>(
    elements: impl ExactSizeIterator<Item = T>,
    buf: &mut Vec<u8>,
    mut element: impl FnMut(T, &mut Vec<u8>),
) {
    put_number(elements.len() as u64, buf);
    elements.for_each(|value| element(value, buf));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_written() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut buf = Vec::new();
            put_number(value, &mut buf);
            let mut reader = Reader::new(buf.into());
            assert_eq!(reader.number(), Ok(value));
            assert_eq!(reader.finish(), Ok(()));
        }
    }

    #[test]
    fn too_large_numbers_and_lengths_are_errors() {
        let ten = |last| Reader::new([&[0xff; 9][..], &[last]].concat().into()).number();
        assert_eq!(ten(1), Ok(u64::MAX));
        assert_eq!(ten(2), Err(DecodeError::Invalid("varint")));
        assert_eq!(Reader::new(vec![5, 1, 2].into()).bytes(), Err(DecodeError::Truncated));
        assert_eq!(Reader::new(vec![0x80].into()).number(), Err(DecodeError::Truncated));
    }
}
