//! Searches a file for records of which the offsets are not known, because of damage before
//! them.
//!
//! A record may start at any offset, and a client can write values in which every few bytes
//! look like a record with a payload of many megabytes. Computing each of these checksums from
//! the bytes would take hours. But a CRC is linear: that of any part of a file follows from the
//! CRCs of two prefixes. So each offset takes constant time.

use crc32c::crc32c_append;

use crate::framing::{self, RECORD_HEADER_BYTES, Record};

/// Distance of the prefixes whose CRCs are stored, in bytes.
const STEP_BYTES: usize = 64;
/// The polynomial of CRC-32C. As in all numbers here, the highest bit is the coefficient of
/// x⁰.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// The polynomials 1 and x⁸.
const ONE: u32 = 1 << 31;
const BYTE: u32 = 1 << 23;

/// The content of a file that is searched for records.
pub struct RecordSearch<'a> {
    content: &'a [u8],
    salt: u32,
    /// The remainders of all prefixes whose length is a multiple of [`STEP_BYTES`].
    prefixes: Vec<u32>,
    powers: Powers,
}

impl<'a> RecordSearch<'a> {
    /// Prepares the search, which takes as long as one checksum of `content`. `salt` is that
    /// of the file.
    pub fn new(content: &'a [u8], salt: u32) -> Self {
        let mut prefixes = vec![0];
        for block in content.chunks_exact(STEP_BYTES) {
            prefixes.push(remainder(prefixes[prefixes.len() - 1], block));
        }
        RecordSearch { content, salt, prefixes, powers: Powers::new() }
    }

    /// Returns the first intact record at or after offset `from` that `is_plausible` accepts,
    /// with its offset. `is_plausible` gets the offset, the sequence and the durable sequence
    /// of what may be a record.
    pub fn find(
        &self,
        from: usize,
        is_plausible: impl Fn(usize, u64, u64) -> bool,
    ) -> Option<(usize, Record<'a>)> {
        (from..self.content.len()).find_map(|offset| {
            let (sequence, durable) = framing::peek_sequences(&self.content[offset..])?;
            let plausible = is_plausible(offset, sequence, durable);
            let record = plausible.then(|| self.record_at(offset)).flatten()?;
            Some((offset, record))
        })
    }

    /// Returns the intact record at `offset`.
    fn record_at(&self, offset: usize) -> Option<Record<'a>> {
        let bytes = &self.content[offset..];
        let end = framing::peek_payload_len(bytes) + RECORD_HEADER_BYTES;
        if end > bytes.len() || self.checksum(offset + 4, offset + end) != checksum_of(bytes) {
            return None;
        }
        framing::decode_record(self.salt, bytes)
    }

    /// Returns the salted CRC of the content from `start` to `end`.
    fn checksum(&self, start: usize, end: usize) -> u32 {
        let at_start = !self.salt ^ self.prefix(start);
        !(self.powers.shift(at_start, end - start) ^ self.prefix(end))
    }

    /// Returns the remainder of the content up to `end`.
    fn prefix(&self, end: usize) -> u32 {
        let index = end / STEP_BYTES;
        remainder(self.prefixes[index], &self.content[index * STEP_BYTES..end])
    }
}

/// Returns the stored checksum of a record.
fn checksum_of(record: &[u8]) -> u32 {
    u32::from_le_bytes(record[..4].try_into().expect("four bytes"))
}

/// Continues the remainder of some bytes with the bytes that follow. The remainder is the CRC
/// without its inversions, so that the remainder of no bytes is 0.
fn remainder(before: u32, bytes: &[u8]) -> u32 {
    !crc32c_append(!before, bytes)
}

/// Powers of x modulo the polynomial.
struct Powers(Vec<[u32; 256]>);

impl Powers {
    /// Number of bytes of a length.
    const DIGITS: usize = size_of::<usize>();

    fn new() -> Self {
        let mut base = BYTE;
        let digits = (0..Self::DIGITS).map(|_| {
            let mut powers = [ONE; 256];
            for n in 1..256 {
                powers[n] = multiply(powers[n - 1], base);
            }
            base = multiply(powers[255], base);
            powers
        });
        Powers(digits.collect())
    }

    /// Returns the remainder of some bytes followed by `len` zeros. `remainder` is that of the
    /// bytes.
    fn shift(&self, mut remainder: u32, len: usize) -> u32 {
        for (powers, digit) in self.0.iter().zip(len.to_le_bytes()) {
            if digit > 0 {
                remainder = multiply(powers[usize::from(digit)], remainder);
            }
        }
        remainder
    }
}

/// Multiplies two polynomials modulo [`POLYNOMIAL`].
fn multiply(mut a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    while a != 0 {
        if a & ONE != 0 {
            product ^= b;
        }
        a <<= 1;
        b = (b >> 1) ^ if b & 1 == 1 { POLYNOMIAL } else { 0 };
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: u32 = 0x5a17_0001;

    /// Returns records with payloads of many lengths, with bytes in between that are no record.
    fn content() -> Vec<u8> {
        let mut content = vec![1; 7];
        for sequence in 1..40 {
            let payload: Vec<u8> = (0..sequence * 37 % 500).map(|n| (n * 31) as u8).collect();
            framing::encode_record(SALT, sequence, sequence - 1, &payload, &mut content);
            content.extend(vec![sequence as u8; (sequence % 11) as usize]);
        }
        content
    }

    #[test]
    fn it_finds_what_decoding_at_each_offset_finds() {
        let content = content();
        let search = RecordSearch::new(&content, SALT);
        for offset in 0..content.len() - RECORD_HEADER_BYTES {
            let expected = framing::decode_record(SALT, &content[offset..]);
            assert_eq!(search.record_at(offset), expected, "{offset}");
        }
        let mut found = Vec::new();
        let mut from = 0;
        while let Some((offset, record)) = search.find(from, |_, _, _| true) {
            found.push(record.sequence);
            from = offset + record.encoded_len();
        }
        assert_eq!(found, (1..40).collect::<Vec<_>>());
    }

    #[test]
    fn damaged_records_and_those_of_other_files_are_not_found() {
        let mut content = content();
        assert!(RecordSearch::new(&content, SALT + 1).find(0, |_, _, _| true).is_none());
        let (offset, record) =
            RecordSearch::new(&content, SALT).find(0, |_, sequence, _| sequence == 20).unwrap();
        let len = record.encoded_len();
        for bit in 0..len * 8 {
            content[offset + bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RecordSearch::new(&content, SALT).record_at(offset), None, "bit {bit}");
            content[offset + bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn long_ranges_have_their_checksum() {
        let content: Vec<u8> = (0..20_000_000u32).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect();
        let search = RecordSearch::new(&content, SALT);
        for (start, end) in [(0, 0), (5, 300), (63, 65_600), (1, 17_000_000), (0, 20_000_000)] {
            let expected = crc32c_append(SALT, &content[start..end]);
            assert_eq!(search.checksum(start, end), expected, "{start}..{end}");
        }
    }
}
