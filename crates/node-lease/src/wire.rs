//! Protobuf as Kubernetes writes it.

/// Reads fields in the order in which they were written. Every method returns `None` if the bytes
/// are not what it expects.
pub struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes that were not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    /// The tag of the next field, if it has one byte.
    pub fn peek(&self) -> Option<u8> {
        self.bytes.first().copied()
    }

    /// Reads exactly these bytes.
    pub fn expect(&mut self, expected: &[u8]) -> Option<()> {
        self.bytes = self.bytes.strip_prefix(expected)?;
        Some(())
    }

    /// Reads a number in its shortest form.
    pub fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for (index, byte) in self.bytes.iter().take(10).enumerate() {
            let bits = u64::from(byte & 0x7f);
            value |= bits
                .checked_shl(7 * index as u32)
                .filter(|shifted| shifted >> (7 * index) == bits)?;
            if byte & 0x80 == 0 {
                let is_shortest = index == 0 || *byte != 0;
                self.bytes = &self.bytes[index + 1..];
                return is_shortest.then_some(value);
            }
        }
        None
    }

    /// Reads a field with this tag whose value is a length and bytes.
    pub fn bytes(&mut self, tag: &[u8]) -> Option<&'a [u8]> {
        self.expect(tag)?;
        let length = usize::try_from(self.varint()?).ok()?;
        self.take(length)
    }

    /// Reads so many bytes.
    pub fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (value, rest) = self.bytes.split_at_checked(length)?;
        self.bytes = rest;
        Some(value)
    }

    /// Reads a field with this tag whose value is a number.
    pub fn number(&mut self, tag: u8) -> Option<u64> {
        self.expect(&[tag])?;
        self.varint()
    }

    /// Reads all fields with one of these tags of one byte, and returns them with their tags. The
    /// values have lengths, except those of `numbers`.
    pub fn skip(&mut self, tags: &[u8], numbers: &[u8]) -> Option<&'a [u8]> {
        let start = self.bytes;
        while let Some(tag) = self.peek() {
            if numbers.contains(&tag) {
                self.number(tag)?;
            } else if tags.contains(&tag) {
                self.bytes(&[tag])?;
            } else {
                break;
            }
        }
        Some(&start[..start.len() - self.bytes.len()])
    }
}

/// The number of bytes of a number.
pub fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Appends a number.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The number of bytes of a field with a tag of `tag_len` bytes and a value of `len` bytes.
pub fn field_len(tag_len: usize, len: usize) -> usize {
    tag_len + varint_len(len as u64) + len
}

/// Appends the start of a field: its tag and the length of its value.
pub fn put_header(out: &mut Vec<u8>, tag: &[u8], len: usize) {
    out.extend_from_slice(tag);
    put_varint(out, len as u64);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_number_is_read_as_it_was_written(value: u64) {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            prop_assert_eq!(bytes.len(), varint_len(value));
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(reader.varint(), Some(value));
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn hostile_bytes_do_not_panic(bytes: Vec<u8>) {
            let mut reader = Reader::new(&bytes);
            while reader.skip(&[0x0a, 0x12], &[0x08]).is_some() && reader.varint().is_some() {}
        }
    }

    #[test]
    fn a_number_in_a_longer_form_or_too_large_is_rejected() {
        for bytes in [&[0x80, 0x00][..], &[0x81, 0x80, 0x00], &[0xff; 10], &[0x80], &[]] {
            assert_eq!(Reader::new(bytes).varint(), None, "{bytes:x?}");
        }
        let largest = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(Reader::new(&largest).varint(), Some(u64::MAX));
    }
}
