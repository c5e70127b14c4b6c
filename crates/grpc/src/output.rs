//! Bytes on their way to the socket.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

/// Pieces up to this size are copied together; larger ones are sent from where
/// they are.
const COPIED_BYTES: usize = 4096;
/// An empty buffer larger than that is given back.
const KEPT_BYTES: usize = 16 << 10;

/// Bytes in order, in few pieces.
#[derive(Default)]
pub(crate) struct Output {
    pieces: VecDeque<Bytes>,
    /// Behind all pieces.
    tail: BytesMut,
    len: usize,
}

impl Output {
    /// Bytes that wait.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.len += bytes.len();
        self.tail.extend_from_slice(bytes);
    }

    pub(crate) fn put_shared(&mut self, bytes: Bytes) {
        if bytes.len() <= COPIED_BYTES {
            return self.put(&bytes);
        }
        self.len += bytes.len();
        if !self.tail.is_empty() {
            self.pieces.push_back(self.tail.split().freeze());
        }
        self.pieces.push_back(bytes);
    }

    /// Fills `slices` with what comes first; how many there are.
    pub(crate) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let tail = (!self.tail.is_empty()).then_some(&self.tail[..]);
        let pieces = self.pieces.iter().map(|piece| &piece[..]).chain(tail);
        slices.iter_mut().zip(pieces).map(|(slice, piece)| *slice = IoSlice::new(piece)).count()
    }

    /// Forgets the first `count` bytes, which were sent.
    pub(crate) fn advance(&mut self, mut count: usize) {
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
            match self.tail.capacity() > KEPT_BYTES {
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
    fn what_goes_in_comes_out_in_order() {
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
            // As a socket that takes some of it.
            let taken = bytes.len().min(1234);
            sent.extend_from_slice(&bytes[..taken]);
            output.advance(taken);
        }
        assert_eq!(sent, expected);
    }
}
