//! Decodes blocks of header fields.

use super::table::Table;
use super::{DEFAULT_TABLE_BYTES, huffman};

/// A block of fields that cannot be decoded. The connection must be closed, because the
/// dynamic tables of both sides no longer agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the block of header fields cannot be decoded")]
pub struct Malformed;

/// Decodes the blocks of one direction of a connection, which must be passed in order.
pub struct Decoder {
    table: Table,
    /// The largest dynamic table that the encoder may choose, in bytes.
    max_table_bytes: usize,
    /// Reused memory for the literal field that is being decoded.
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Decoder {
    pub(crate) fn new() -> Self {
        Decoder::with_limit(DEFAULT_TABLE_BYTES)
    }

    /// Creates a decoder that allows the encoder to choose a dynamic table of up to
    /// `max_table_bytes` bytes. An observer of a connection needs it, because it does not
    /// see the limit that the two sides agree on.
    pub fn with_limit(max_table_bytes: usize) -> Self {
        let table = Table::new(DEFAULT_TABLE_BYTES);
        Decoder { table, max_table_bytes, name: Vec::new(), value: Vec::new() }
    }

    /// Frees reused memory.
    pub(crate) fn release_memory(&mut self) {
        (self.name, self.value) = Default::default();
    }

    /// Decodes `block` and passes the name and value of each field to `field`.
    pub fn decode(
        &mut self,
        block: &[u8],
        mut field: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Malformed> {
        let every = |name: &[u8], value: &[u8]| {
            field(name, value);
            true
        };
        self.decode_while(block, every).map(|_| ())
    }

    /// Like [`Decoder::decode`], but stops when `field` returns false. Returns whether the
    /// whole block has been decoded. Otherwise the decoder can no longer be used.
    pub fn decode_while(
        &mut self,
        mut block: &[u8],
        mut field: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<bool, Malformed> {
        let mut fields = 0;
        while let Some(first) = block.first().copied() {
            if first & 0xe0 == 0x20 {
                // A change of the table size must precede all fields.
                let size = decode_integer(&mut block, 5)?;
                if fields > 0 || size > self.max_table_bytes {
                    return Err(Malformed);
                }
                self.table.set_max_size(size);
                continue;
            }
            fields += 1;
            if first & 0x80 != 0 {
                let (name, value) =
                    self.table.get(decode_integer(&mut block, 7)?).ok_or(Malformed)?;
                if !field(name, value) {
                    return Ok(false);
                }
                continue;
            }
            let add_to_table = first & 0x40 != 0;
            self.decode_literal(&mut block, if add_to_table { 6 } else { 4 })?;
            if !field(&self.name, &self.value) {
                return Ok(false);
            }
            if add_to_table {
                self.table.insert(&self.name, &self.value);
            }
        }
        Ok(true)
    }

    /// Decodes a field whose value is a literal into `self.name` and `self.value`. Its
    /// name is a literal or an index.
    fn decode_literal(&mut self, block: &mut &[u8], prefix_bits: u32) -> Result<(), Malformed> {
        self.name.clear();
        match decode_integer(block, prefix_bits)? {
            0 => decode_string(block, &mut self.name)?,
            index => self.name.extend_from_slice(self.table.get(index).ok_or(Malformed)?.0),
        }
        self.value.clear();
        decode_string(block, &mut self.value)
    }
}

/// Decodes an integer that starts in the lowest `prefix_bits` bits of the first byte.
fn decode_integer(block: &mut &[u8], prefix_bits: u32) -> Result<usize, Malformed> {
    let mask = (1 << prefix_bits) - 1;
    let mut value = usize::from(take_byte(block)?) & mask;
    if value < mask {
        return Ok(value);
    }
    for shift in [0, 7, 14, 21] {
        let byte = take_byte(block)?;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Malformed)
}

fn decode_string(block: &mut &[u8], output: &mut Vec<u8>) -> Result<(), Malformed> {
    let huffman = block.first().is_some_and(|first| first & 0x80 != 0);
    let len = decode_integer(block, 7)?;
    let (bytes, rest) = block.split_at_checked(len).ok_or(Malformed)?;
    *block = rest;
    match huffman {
        true => huffman::decode(bytes, output).ok_or(Malformed),
        false => {
            output.extend_from_slice(bytes);
            Ok(())
        }
    }
}

fn take_byte(block: &mut &[u8]) -> Result<u8, Malformed> {
    let (first, rest) = block.split_first().ok_or(Malformed)?;
    *block = rest;
    Ok(*first)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fields(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<(String, String)>, Malformed> {
        let mut fields = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        decoder.decode(block, |name, value| fields.push((text(name), text(value))))?;
        Ok(fields)
    }

    /// RFC 7541, C.4: three requests on one connection, Huffman-coded.
    #[test]
    fn rfc_example_requests_are_decoded() {
        let mut decoder = Decoder::new();
        let first = b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff";
        let common = [(":method", "GET"), (":scheme", "http"), (":path", "/")];
        let own = |list: &[(&str, &str)]| -> Vec<(String, String)> {
            list.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect()
        };
        let mut expected = own(&common);
        expected.extend(own(&[(":authority", "www.example.com")]));
        assert_eq!(fields(&mut decoder, first).unwrap(), expected);
        let second = b"\x82\x86\x84\xbe\x58\x86\xa8\xeb\x10\x64\x9c\xbf";
        expected.extend(own(&[("cache-control", "no-cache")]));
        assert_eq!(fields(&mut decoder, second).unwrap(), expected);
        let third =
            b"\x82\x87\x85\xbf\x40\x88\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f\x89\x25\xa8\x49\xe9\x5b\xb8\xe8\xb4\xbf";
        let found = fields(&mut decoder, third).unwrap();
        assert_eq!(
            found[3..],
            own(&[(":authority", "www.example.com"), ("custom-key", "custom-value")])
        );
    }

    #[test]
    fn table_evicts_entries_and_size_changes_come_first() {
        let mut decoder = Decoder::new();
        let long = [&[0x40, 1, b'a', 0x7f, 0xf2, 0x1e][..], &[b'x'; 4081]].concat();
        assert_eq!(fields(&mut decoder, &long).unwrap().len(), 1);
        assert_eq!(
            fields(&mut decoder, &[0xbe]),
            Err(Malformed),
            "the entry does not fit in the table"
        );
        assert_eq!(fields(&mut decoder, &[0x20, 0x82]).unwrap().len(), 1);
        assert_eq!(fields(&mut decoder, &[0x82, 0x20]), Err(Malformed));
        assert_eq!(
            fields(&mut decoder, &[0x3f, 0xe2, 0x1f]),
            Err(Malformed),
            "a table of 4097 bytes is too large"
        );
        assert_eq!(fields(&mut decoder, &[0x80]), Err(Malformed), "index 0 does not exist");
    }

    proptest! {
        #[test]
        fn arbitrary_blocks_do_not_panic(blocks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 1..8)) {
            let mut decoder = Decoder::new();
            for block in blocks {
                if fields(&mut decoder, &block).is_err() {
                    break;
                }
            }
        }
    }
}
