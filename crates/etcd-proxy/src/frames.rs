//! A scanner for HTTP/2 frames (RFC 9113, section 4.1) in a byte stream that arrives in
//! arbitrary pieces.

/// Size of a frame header in bytes.
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

/// A GOAWAY frame with the highest stream ID. The client must not start new streams, and all
/// its existing streams continue.
pub const GOAWAY: [u8; 17] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0];

/// A frame header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Size of the payload in bytes.
    pub len: usize,
    /// The frame type; see [`kind`].
    pub kind: u8,
    /// The frame flags; see [`flag`].
    pub flags: u8,
    /// The HTTP/2 stream ID.
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

/// A piece of a frame's payload: the part of the payload that is in the scanned bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The header of the frame.
    pub head: Head,
    pub bytes: &'a [u8],
    /// Whether the piece is at the start of the payload.
    pub is_first: bool,
    /// Whether the piece is at the end of the payload.
    pub is_last: bool,
}

/// Finds frames without buffering their payloads.
#[derive(Default)]
pub struct Scanner {
    /// The received part of the current frame header.
    head_buffer: [u8; HEAD_BYTES],
    /// Received bytes of the current frame header.
    head_len: usize,
    /// The current frame header, once it is complete.
    head: Head,
    /// Bytes of the current payload that have not been scanned.
    payload_remaining: usize,
}

impl Scanner {
    /// Calls `sink` for every piece of payload in `bytes`, and once with an empty piece for a
    /// frame with an empty payload.
    pub fn scan(&mut self, mut bytes: &[u8], mut sink: impl FnMut(Piece)) {
        while !bytes.is_empty() {
            let mut is_first = false;
            if self.payload_remaining == 0 {
                let (part, rest) = bytes.split_at(bytes.len().min(HEAD_BYTES - self.head_len));
                self.head_buffer[self.head_len..self.head_len + part.len()].copy_from_slice(part);
                self.head_len += part.len();
                bytes = rest;
                if self.head_len < HEAD_BYTES {
                    return;
                }
                self.head = Head::parse(&self.head_buffer);
                self.payload_remaining = self.head.len;
                is_first = true;
                if self.payload_remaining > 0 && bytes.is_empty() {
                    // The payload starts in the bytes of the next call.
                    return;
                }
            } else if self.head_len == HEAD_BYTES && self.payload_remaining == self.head.len {
                is_first = true;
            }
            let (part, rest) = bytes.split_at(bytes.len().min(self.payload_remaining));
            self.payload_remaining -= part.len();
            bytes = rest;
            let is_last = self.payload_remaining == 0;
            if is_last {
                self.head_len = 0;
            }
            sink(Piece { head: self.head, bytes: part, is_first, is_last });
        }
    }

    /// Whether the bytes scanned so far end at a frame boundary.
    pub fn is_between_frames(&self) -> bool {
        self.head_len == 0 && self.payload_remaining == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Scans the pieces and returns the header and the complete payload of each frame.
    fn scan_all(pieces: &[&[u8]]) -> Vec<(Head, Vec<u8>)> {
        let (mut scanner, mut found) = (Scanner::default(), Vec::new());
        for piece in pieces {
            scanner.scan(piece, |piece| {
                if piece.is_first {
                    found.push((piece.head, Vec::new()));
                }
                found
                    .last_mut()
                    .expect("the first piece has added an entry")
                    .1
                    .extend_from_slice(piece.bytes);
                assert_eq!(piece.is_last, found.last().unwrap().1.len() == piece.head.len);
            });
        }
        assert!(scanner.is_between_frames());
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
        /// The scanner finds the same frames for any division of the bytes into pieces.
        #[test]
        fn frames_do_not_depend_on_the_pieces(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..10),
            lens in prop::collection::vec(1..30usize, 1..200),
        ) {
            let bytes: Vec<u8> = payloads.iter().enumerate().flat_map(|(n, p)| frame(0, n as u32, p)).collect();
            let (mut rest, mut pieces, mut lens) = (&bytes[..], Vec::new(), lens.iter().cycle());
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(rest.len().min(*lens.next().unwrap()));
                pieces.push(piece);
                rest = after;
            }
            let found = scan_all(&pieces);
            prop_assert_eq!(found.len(), payloads.len());
            for ((head, found), (number, payload)) in found.iter().zip(payloads.iter().enumerate()) {
                prop_assert_eq!(found, payload);
                prop_assert_eq!(head.stream as usize, number);
            }
        }
    }

    #[test]
    fn goaway_is_a_valid_frame() {
        let found = scan_all(&[&GOAWAY]);
        assert_eq!((found[0].0.kind, found[0].0.stream, found[0].1.len()), (7, 0, 8));
    }
}
