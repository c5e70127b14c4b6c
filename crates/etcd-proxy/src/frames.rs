//! A scanner for HTTP/2 frames in a byte stream that arrives in arbitrary pieces
//! (RFC 9113, section 4.1).

/// Size of a frame header.
const HEAD_BYTES: usize = 9;

/// Frame types.
pub mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const RST_STREAM: u8 = 3;
    pub const CONTINUATION: u8 = 9;
}

/// Frame flags.
pub mod flag {
    pub const END_STREAM: u8 = 0x1;
    pub const END_HEADERS: u8 = 0x4;
    pub const PADDED: u8 = 0x8;
    pub const PRIORITY: u8 = 0x20;
}

/// A GOAWAY frame with the highest stream ID: the client must start no new streams, and
/// all its streams continue.
pub const GOAWAY: [u8; 17] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0];

/// A frame header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    pub len: usize,
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
}

impl Head {
    fn parse(bytes: &[u8; HEAD_BYTES]) -> Head {
        let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = *bytes;
        Head {
            len: u32::from_be_bytes([0, l0, l1, l2]) as usize,
            kind,
            flags,
            stream: u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]),
        }
    }

    /// Whether `flag` is set.
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// A piece of a frame's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    pub head: Head,
    pub bytes: &'a [u8],
    pub is_first: bool,
    pub is_last: bool,
}

/// Finds frames without buffering their payloads.
#[derive(Default)]
pub struct Scanner {
    bytes: [u8; HEAD_BYTES],
    /// Received bytes of the frame header.
    have: usize,
    head: Head,
    /// Remaining bytes of the payload.
    left: usize,
}

impl Scanner {
    /// Calls `sink` for every piece of payload in `bytes`. An empty payload is one empty
    /// piece.
    pub fn scan(&mut self, mut bytes: &[u8], mut sink: impl FnMut(Piece)) {
        while !bytes.is_empty() {
            let mut is_first = false;
            if self.left == 0 {
                let (part, rest) = bytes.split_at(bytes.len().min(HEAD_BYTES - self.have));
                self.bytes[self.have..self.have + part.len()].copy_from_slice(part);
                self.have += part.len();
                bytes = rest;
                if self.have < HEAD_BYTES {
                    return;
                }
                self.head = Head::parse(&self.bytes);
                self.left = self.head.len;
                is_first = true;
                if self.left > 0 && bytes.is_empty() {
                    // The payload starts with the next bytes.
                    return;
                }
            } else if self.have == HEAD_BYTES && self.left == self.head.len {
                is_first = true;
            }
            let (part, rest) = bytes.split_at(bytes.len().min(self.left));
            self.left -= part.len();
            bytes = rest;
            let is_last = self.left == 0;
            if is_last {
                self.have = 0;
            }
            sink(Piece { head: self.head, bytes: part, is_first, is_last });
        }
    }

    /// Whether the last byte ended a frame.
    pub fn is_between(&self) -> bool {
        self.have == 0 && self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Frames as headers and complete payloads.
    fn frames(pieces: &[&[u8]]) -> Vec<(Head, Vec<u8>)> {
        let (mut scanner, mut found) = (Scanner::default(), Vec::new());
        for piece in pieces {
            scanner.scan(piece, |piece| {
                if piece.is_first {
                    found.push((piece.head, Vec::new()));
                }
                found.last_mut().expect("a first piece").1.extend_from_slice(piece.bytes);
                assert_eq!(piece.is_last, found.last().unwrap().1.len() == piece.head.len);
            });
        }
        assert!(scanner.is_between());
        found
    }

    fn frame(kind: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, 0]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    proptest! {
        /// The same frames are found however the bytes are split.
        #[test]
        fn splits_do_not_matter(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..10),
            cuts in prop::collection::vec(1..30usize, 1..200),
        ) {
            let bytes: Vec<u8> = payloads.iter().enumerate().flat_map(|(n, p)| frame(0, n as u32, p)).collect();
            let (mut rest, mut pieces, mut cuts) = (&bytes[..], Vec::new(), cuts.iter().cycle());
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
                pieces.push(piece);
                rest = after;
            }
            let found = frames(&pieces);
            prop_assert_eq!(found.len(), payloads.len());
            for ((head, found), (number, payload)) in found.iter().zip(payloads.iter().enumerate()) {
                prop_assert_eq!(found, payload);
                prop_assert_eq!(head.stream as usize, number);
            }
        }
    }

    #[test]
    fn goaway_is_a_valid_frame() {
        let found = frames(&[&GOAWAY]);
        assert_eq!((found[0].0.kind, found[0].0.stream, found[0].1.len()), (7, 0, 8));
    }
}
