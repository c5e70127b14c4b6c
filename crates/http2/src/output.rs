//! Bytes to be written to the socket.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

/// Pieces up to this size in bytes are copied into one buffer. Larger ones are not
/// copied.
const MAX_COPIED_BYTES: usize = 4096;
/// An empty buffer is freed if its capacity in bytes exceeds this size.
const MAX_KEPT_CAPACITY: usize = 16 << 10;

/// The framed bytes in order. They are in few pieces, for vectored writes.
#[derive(Default)]
pub struct Output {
    pieces: VecDeque<Bytes>,
    /// Copied bytes after the last of `pieces`.
    tail: BytesMut,
    /// Number of bytes in `pieces` and `tail`.
    len: usize,
}

impl Output {
    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a copy of `bytes`.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.len += bytes.len();
        self.tail.extend_from_slice(bytes);
    }

    /// Appends `bytes`, without a copy if they are large.
    pub(crate) fn put_shared(&mut self, bytes: Bytes) {
        if bytes.len() <= MAX_COPIED_BYTES {
            return self.put(&bytes);
        }
        self.len += bytes.len();
        if !self.tail.is_empty() {
            self.pieces.push_back(self.tail.split().freeze());
        }
        self.pieces.push_back(bytes);
    }

    /// Frees the buffer if it is empty.
    pub(crate) fn release_memory(&mut self) {
        if self.len == 0 {
            (self.tail, self.pieces) = Default::default();
        }
    }

    /// Sets `slices` to the first pieces. Returns the number of slices that were set.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let tail = (!self.tail.is_empty()).then_some(&self.tail[..]);
        let pieces = self.pieces.iter().map(|piece| &piece[..]).chain(tail);
        slices.iter_mut().zip(pieces).map(|(slice, piece)| *slice = IoSlice::new(piece)).count()
    }

    /// Removes the first `count` bytes, which have been written to the socket.
    pub fn advance(&mut self, mut count: usize) {
        self.len -= count;
        while let Some(first) = self.pieces.front_mut() {
            if count < first.len() {
                return first.advance(count);
            }
            count -= first.len();
            self.pieces.pop_front();
        }
        self.tail.advance(count);
        if self.tail.is_empty() {
            match self.tail.capacity() > MAX_KEPT_CAPACITY {
                true => self.tail = BytesMut::new(),
                false => self.tail.clear(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_keep_their_order() {
        let mut output = Output::default();
        let mut expected = Vec::new();
        for (at, size) in [3, 5000, 10, 20, 9000, 4096, 4097, 1].into_iter().enumerate() {
            let bytes = vec![at as u8; size];
            expected.extend_from_slice(&bytes);
            match at % 3 {
                0 => output.put(&bytes),
                _ => output.put_shared(bytes.into()),
            }
        }
        assert_eq!(output.len(), expected.len());
        let mut sent = Vec::new();
        while !output.is_empty() {
            let mut slices = [IoSlice::new(&[]); 3];
            let count = output.slices(&mut slices);
            let bytes: Vec<u8> = slices[..count].iter().flat_map(|s| s.iter().copied()).collect();
            // A socket may accept only a part.
            let taken = bytes.len().min(1234);
            sent.extend_from_slice(&bytes[..taken]);
            output.advance(taken);
        }
        assert_eq!(sent, expected);
    }
}
