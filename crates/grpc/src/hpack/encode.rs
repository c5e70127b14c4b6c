//! From the few header fields that an answer has to a block.

/// Index of `:status: 200`, and of the name of `:status`.
const STATUS_200: u8 = 8;
/// Index of the name of `content-type`.
const CONTENT_TYPE: u8 = 31;
const STATIC_ENTRIES: u8 = 61;

/// Encodes the blocks of a connection, in order.
///
/// The two fields that every answer to a call has are put into the dynamic table
/// when they are first used, and are a byte each from then on. Nothing else is
/// put there, so they stay.
pub(crate) struct Encoder {
    /// The place in the order of insertion, from 1, of the fields in the table.
    content_type: Option<u8>,
    ok: Option<u8>,
    inserted: u8,
    /// Whether the peer has a table for us, and how often it is told that we use
    /// none of it.
    table: Table,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Table {
    Used,
    /// The next block says that the table is empty.
    Given,
    Unused,
}

impl Encoder {
    pub(crate) fn new() -> Self {
        Encoder { content_type: None, ok: None, inserted: 0, table: Table::Used }
    }

    /// The peer wants its table to be no larger than that.
    pub(crate) fn set_table_bytes(&mut self, bytes: u32) {
        if (bytes as usize) < super::DEFAULT_TABLE_BYTES && self.table == Table::Used {
            self.table = Table::Given;
        }
    }

    /// Headers of an answer in gRPC.
    pub(crate) fn grpc_head(&mut self, block: &mut Vec<u8>) {
        self.begin(block);
        block.push(0x80 | STATUS_200);
        match (self.content_type, self.table) {
            (Some(place), Table::Used) => block.push(self.indexed(place)),
            (_, table) => {
                if table == Table::Used {
                    self.content_type = Some(self.insert());
                    block.push(0x40 | CONTENT_TYPE);
                } else {
                    integer(block, 0, 4, usize::from(CONTENT_TYPE));
                }
                string(block, b"application/grpc");
            }
        }
    }

    /// Trailers of a call that went well.
    pub(crate) fn ok(&mut self, block: &mut Vec<u8>) {
        self.begin(block);
        match (self.ok, self.table) {
            (Some(place), Table::Used) => block.push(self.indexed(place)),
            (None, Table::Used) => {
                self.ok = Some(self.insert());
                block.push(0x40);
                string(block, b"grpc-status");
                string(block, b"0");
            }
            _ => literal(block, b"grpc-status", b"0"),
        }
    }

    /// Fields that are not worth remembering.
    pub(crate) fn plain(&mut self, fields: &[(&[u8], &[u8])], block: &mut Vec<u8>) {
        self.begin(block);
        fields.iter().for_each(|(name, value)| literal(block, name, value));
    }

    fn begin(&mut self, block: &mut Vec<u8>) {
        if self.table == Table::Given {
            block.push(0x20);
            self.table = Table::Unused;
        }
    }

    fn insert(&mut self) -> u8 {
        self.inserted += 1;
        self.inserted
    }

    fn indexed(&self, place: u8) -> u8 {
        0x80 | (STATIC_ENTRIES + 1 + self.inserted - place)
    }
}

/// A field that is not to be indexed, its name spelled out.
fn literal(block: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    block.push(0);
    string(block, name);
    string(block, value);
}

fn string(block: &mut Vec<u8>, bytes: &[u8]) {
    integer(block, 0, 7, bytes.len());
    block.extend_from_slice(bytes);
}

fn integer(block: &mut Vec<u8>, first: u8, prefix_bits: u32, mut value: usize) {
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

    fn answers(encoder: &mut Encoder) -> Vec<Vec<u8>> {
        let mut blocks = Vec::new();
        for _ in 0..3 {
            let (mut head, mut trailers) = (Vec::new(), Vec::new());
            encoder.grpc_head(&mut head);
            encoder.ok(&mut trailers);
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
    fn an_answer_takes_three_bytes_from_the_second_on() {
        let blocks = answers(&mut Encoder::new());
        check(&blocks);
        assert_eq!(blocks[2..4], [vec![0x88, 0xbf], vec![0xbe]]);
    }

    #[test]
    fn a_peer_without_a_table_is_served() {
        let mut encoder = Encoder::new();
        let mut blocks = answers(&mut encoder);
        encoder.set_table_bytes(0);
        blocks.extend(answers(&mut encoder));
        check(&blocks);
    }

    #[test]
    fn long_values_have_long_lengths() {
        let mut block = Vec::new();
        Encoder::new().plain(&[(b"grpc-message", &[b'x'; 300])], &mut block);
        let mut found = 0;
        Decoder::new().decode(&block, |_, value| found = value.len()).unwrap();
        assert_eq!(found, 300);
    }
}
