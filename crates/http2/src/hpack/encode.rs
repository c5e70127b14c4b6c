//! Encodes header fields.

use crate::fields::Fields;
use crate::response::{CommonField, Headers};

use super::table::STATIC_ENTRIES;

/// Index of `:status: 200` in the static table. The indices of 204, 206, 304, 400, 404
/// and 500 follow.
const STATUS_200: u8 = 8;
/// Indices of fields of requests in the static table.
const METHOD_GET: u8 = 2;
const METHOD_POST: u8 = 3;
const SCHEME_HTTP: u8 = 6;
const SCHEME_HTTPS: u8 = 7;
const STATIC_STATUSES: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];
/// Maximum number of common fields in the dynamic table. With so few, every index fits in
/// one byte.
const MAX_COMMON_FIELDS: usize = 32;

/// Encodes the blocks of a connection, which must be sent in order.
///
/// A [`CommonField`], or a field of a repeated request, is added to the dynamic table when it is first used, if it fits.
/// After that its encoding takes one byte. Nothing else is added to the table, so no entry is
/// ever evicted.
pub(crate) struct Encoder {
    /// The fields in the dynamic table, oldest first.
    common: Vec<Entry>,
    /// Total size of these fields in bytes, as HPACK counts it.
    common_bytes: usize,
    table: TableState,
}

/// A field in the dynamic table.
enum Entry {
    Common(&'static CommonField),
    Repeated { name: Box<[u8]>, value: Box<[u8]> },
}

/// Whether the encoder uses the dynamic table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TableState {
    Used,
    /// The client has lowered the limit. The next block sets the size of the table to
    /// zero.
    ToBeEmptied,
    Unused,
}

impl Encoder {
    pub(crate) fn new() -> Self {
        Encoder { common: Vec::new(), common_bytes: 0, table: TableState::Used }
    }

    /// Limits the size of the dynamic table. If the limit is below the default size, the
    /// encoder stops using the table.
    pub(crate) fn set_table_bytes(&mut self, bytes: u32) {
        if (bytes as usize) < super::DEFAULT_TABLE_BYTES && self.table == TableState::Used {
            self.table = TableState::ToBeEmptied;
        }
    }

    /// Starts a block. It must be called once for each block, before any field.
    pub(crate) fn start_block(&mut self, block: &mut Vec<u8>) {
        if self.table == TableState::ToBeEmptied {
            block.push(0x20);
            self.table = TableState::Unused;
        }
    }

    /// Encodes the fields of a request, pseudo-header fields first.
    pub(crate) fn encode_request(&mut self, fields: &Fields, block: &mut Vec<u8>) {
        for (name, value) in fields.iter() {
            match (name, value) {
                (b":method", b"GET") => block.push(0x80 | METHOD_GET),
                (b":method", b"POST") => block.push(0x80 | METHOD_POST),
                (b":scheme", b"https") => block.push(0x80 | SCHEME_HTTPS),
                _ => encode_literal(block, name, value),
            }
        }
    }

    /// Encodes the fields of a request that is sent often, pseudo-header fields first.
    pub(crate) fn encode_repeated(&mut self, fields: &Fields, block: &mut Vec<u8>) {
        for (name, value) in fields.iter() {
            match (name, value) {
                (b":method", b"POST") => block.push(0x80 | METHOD_POST),
                (b":scheme", b"http") => block.push(0x80 | SCHEME_HTTP),
                (b":scheme", b"https") => block.push(0x80 | SCHEME_HTTPS),
                _ => self.encode_indexed(
                    name,
                    value,
                    |entry| matches!(entry, Entry::Repeated { name: n, value: v } if **n == *name && **v == *value),
                    || Entry::Repeated { name: name.into(), value: value.into() },
                    block,
                ),
            }
        }
    }

    /// Encodes `:status`.
    pub(crate) fn encode_status(&mut self, status: u16, block: &mut Vec<u8>) {
        match STATIC_STATUSES.iter().position(|known| *known == status) {
            Some(at) => block.push(0x80 | (STATUS_200 + at as u8)),
            None => encode_literal(block, b":status", status.to_string().as_bytes()),
        }
    }

    /// Encodes fields in order.
    pub(crate) fn encode_fields(&mut self, headers: &Headers, block: &mut Vec<u8>) {
        match headers {
            Headers::Common(fields) => {
                fields.iter().for_each(|field| self.encode_common(field, block))
            }
            Headers::Fields(fields) => {
                fields.iter().for_each(|(name, value)| encode_literal(block, name, value));
            }
        }
    }

    fn encode_common(&mut self, field: &'static CommonField, block: &mut Vec<u8>) {
        let is_same =
            |entry: &Entry| matches!(entry, Entry::Common(it) if std::ptr::eq(*it, field));
        let (name, value) = (field.name.as_bytes(), field.value.as_bytes());
        self.encode_indexed(name, value, is_same, || Entry::Common(field), block);
    }

    /// Encodes a field by its index in the dynamic table. Adds it there if it fits; otherwise it is a literal.
    fn encode_indexed(
        &mut self,
        name: &[u8],
        value: &[u8],
        is_same: impl Fn(&Entry) -> bool,
        entry: impl FnOnce() -> Entry,
        block: &mut Vec<u8>,
    ) {
        if self.table == TableState::Used {
            if let Some(at) = self.common.iter().position(is_same) {
                // Indices count from the newest entry.
                let age = self.common.len() - at;
                return block.push(0x80 | (STATIC_ENTRIES + age) as u8);
            }
            let bytes = name.len() + value.len() + super::ENTRY_OVERHEAD_BYTES;
            let fits = self.common_bytes + bytes <= super::DEFAULT_TABLE_BYTES;
            if fits && self.common.len() < MAX_COMMON_FIELDS {
                self.common.push(entry());
                self.common_bytes += bytes;
                block.push(0x40);
                encode_string(block, name);
                return encode_string(block, value);
            }
        }
        encode_literal(block, name, value);
    }
}

/// Encodes a field as a literal that does not enter the dynamic table.
fn encode_literal(block: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    block.push(0);
    encode_string(block, name);
    encode_string(block, value);
}

fn encode_string(block: &mut Vec<u8>, bytes: &[u8]) {
    encode_integer(block, 0, 7, bytes.len());
    block.extend_from_slice(bytes);
}

/// Encodes an integer that starts in the lowest `prefix_bits` bits of the first byte. The
/// other bits of that byte are those of `first`.
fn encode_integer(block: &mut Vec<u8>, first: u8, prefix_bits: u32, mut value: usize) {
    let mask = (1 << prefix_bits) - 1;
    if value < mask {
        block.push(first | value as u8);
        return;
    }
    block.push(first | mask as u8);
    value -= mask;
    while value >= 0x80 {
        block.push(value as u8 | 0x80);
        value >>= 7;
    }
    block.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::super::Decoder;
    use super::*;

    static HEAD: &[CommonField] =
        &[CommonField { name: "content-type", value: "application/grpc" }];
    static TRAILERS: &[CommonField] = &[CommonField { name: "grpc-status", value: "0" }];

    fn responses(encoder: &mut Encoder) -> Vec<Vec<u8>> {
        let mut blocks = Vec::new();
        for _ in 0..3 {
            let (mut head, mut trailers) = (Vec::new(), Vec::new());
            encoder.start_block(&mut head);
            encoder.encode_status(200, &mut head);
            encoder.encode_fields(&Headers::Common(HEAD), &mut head);
            encoder.start_block(&mut trailers);
            encoder.encode_fields(&Headers::Common(TRAILERS), &mut trailers);
            blocks.extend([head, trailers]);
        }
        blocks
    }

    fn check(blocks: &[Vec<u8>]) {
        let mut decoder = Decoder::new();
        for (at, block) in blocks.iter().enumerate() {
            let mut fields = Vec::new();
            decoder.decode(block, |n, v| fields.push((n.to_vec(), v.to_vec()))).unwrap();
            let expected: &[(&[u8], &[u8])] = match at % 2 {
                0 => &[(b":status", b"200"), (b"content-type", b"application/grpc")],
                _ => &[(b"grpc-status", b"0")],
            };
            assert!(fields.iter().map(|(n, v)| (&n[..], &v[..])).eq(expected.iter().copied()));
        }
    }

    #[test]
    fn fields_of_a_repeated_response_take_three_bytes() {
        let blocks = responses(&mut Encoder::new());
        check(&blocks);
        assert_eq!(blocks[2..4], [vec![0x88, 0xbf], vec![0xbe]]);
    }

    #[test]
    fn decoder_without_dynamic_table_gets_literals() {
        let mut encoder = Encoder::new();
        let mut blocks = responses(&mut encoder);
        encoder.set_table_bytes(0);
        blocks.extend(responses(&mut encoder));
        check(&blocks);
    }

    #[test]
    fn long_values_have_long_lengths() {
        let mut block = Vec::new();
        let fields = Fields::from_iter([(&b"grpc-message"[..], &[b'x'; 300][..])]);
        Encoder::new().encode_fields(&Headers::Fields(fields), &mut block);
        let mut found = 0;
        Decoder::new().decode(&block, |_, value| found = value.len()).unwrap();
        assert_eq!(found, 300);
    }

    #[test]
    fn fields_of_requests_keep_their_order() {
        let fields: &[(&[u8], &[u8])] = &[
            (b":method", b"GET"),
            (b":scheme", b"https"),
            (b":path", b"/api/v1/nodes"),
            (b"accept", b"*/*"),
        ];
        let mut block = Vec::new();
        Encoder::new().encode_request(&Fields::from_iter(fields.iter().copied()), &mut block);
        assert_eq!(block[..2], [0x82, 0x87]);
        let mut found = Vec::new();
        Decoder::new().decode(&block, |n, v| found.push((n.to_vec(), v.to_vec()))).unwrap();
        assert!(found.iter().map(|(n, v)| (&n[..], &v[..])).eq(fields.iter().copied()));
    }

    #[test]
    fn a_repeated_request_takes_a_byte_for_each_field() {
        let request = |path: &'static [u8]| {
            let fields: [(&[u8], &[u8]); 5] = [
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":path", path),
                (b":authority", b"etcd:2379"),
                (b"te", b"trailers"),
            ];
            Fields::from_iter(fields)
        };
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
        let mut lengths = Vec::new();
        // The second path gets an index of its own, and changes those before it.
        for path in [b"/a", b"/b", b"/a", b"/b"] {
            let (mut block, mut found) = (Vec::new(), Fields::default());
            encoder.start_block(&mut block);
            encoder.encode_repeated(&request(path), &mut block);
            decoder.decode(&block, |name, value| found.push(name, value)).unwrap();
            assert_eq!(found, request(path));
            lengths.push(block.len());
        }
        assert!(lengths[0] > 30 && lengths[1..] == [14, 5, 5], "{lengths:?}");
    }

    #[test]
    fn statuses_outside_the_static_table_are_literals() {
        for status in [200, 404, 500, 302, 431] {
            let mut block = Vec::new();
            Encoder::new().encode_status(status, &mut block);
            let mut found = String::new();
            let field = |_: &[u8], value: &[u8]| found = String::from_utf8(value.to_vec()).unwrap();
            Decoder::new().decode(&block, field).unwrap();
            assert_eq!(found, status.to_string());
        }
    }
}
