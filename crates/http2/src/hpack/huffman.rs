//! The Huffman code of RFC 7541, appendix B.

use std::sync::LazyLock;

/// The length of each byte's code in bits. The codes are canonical: codes of the same
/// length are consecutive numbers in the order of their bytes, and follow the shorter
/// codes. Therefore the lengths determine the codes.
#[rustfmt::skip]
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];
/// Length of the shortest and of the longest code.
const MIN_CODE_BITS: u32 = 5;
const MAX_CODE_BITS: u32 = 30;

/// The codes, ordered for decoding.
struct Code {
    /// Bytes in the order of their codes.
    bytes: [u8; 256],
    lengths: [Length; MAX_CODE_BITS as usize + 1],
    /// The byte and the code length of each code of at most [`TABLE_BITS`] bits, at all
    /// indexes that start with the code. Other entries have length 0.
    table: [(u8, u8); 1 << TABLE_BITS],
}

/// Codes of this length or less, which all letters, digits and common symbols have, are
/// decoded by one look into a table.
const TABLE_BITS: u32 = 8;

/// The codes of one length.
#[derive(Clone, Copy, Default)]
struct Length {
    /// The last code of this length plus one, shifted to the highest bits of 32 bits.
    end: u64,
    /// The position of a code in [`Code::bytes`] minus the code.
    offset: i64,
}

static CODE: LazyLock<Code> = LazyLock::new(|| {
    let mut bytes = [0; 256];
    let mut lengths = [Length::default(); MAX_CODE_BITS as usize + 1];
    let mut table = [(0, 0); 1 << TABLE_BITS];
    let (mut next, mut assigned) = (0_u64, 0);
    for length in MIN_CODE_BITS..=MAX_CODE_BITS {
        next <<= 1;
        let offset = assigned as i64 - next as i64;
        for byte in (0..=255_u8).filter(|byte| u32::from(LENGTHS[usize::from(*byte)]) == length) {
            bytes[assigned] = byte;
            if let Some(free_bits) = TABLE_BITS.checked_sub(length) {
                let first = (next as usize) << free_bits;
                table[first..first + (1 << free_bits)].fill((byte, length as u8));
            }
            (assigned, next) = (assigned + 1, next + 1);
        }
        lengths[length as usize] = Length { end: next << (32 - length), offset };
    }
    Code { bytes, lengths, table }
});

impl Code {
    /// The byte whose code starts `window`, and the length of the code in bits. Codes of any
    /// length are found.
    fn first(&self, window: u32) -> Option<(u8, u32)> {
        let ends = |length: &u32| u64::from(window) < self.lengths[*length as usize].end;
        let length = (MIN_CODE_BITS..=MAX_CODE_BITS).find(ends)?;
        let at = i64::from(window >> (32 - length)) + self.lengths[length as usize].offset;
        Some((self.bytes[at as usize], length))
    }
}

/// Decodes `input` and appends the result to `output`. Returns `None` if `input` is
/// invalid.
pub(super) fn decode(input: &[u8], output: &mut Vec<u8>) -> Option<()> {
    let code = &*CODE;
    // The next bits are the low `count` bits of `bits`.
    let (mut bits, mut count) = (0_u64, 0_u32);
    output.reserve(input.len() * 8 / MIN_CODE_BITS as usize);
    let mut input = input.iter();
    loop {
        while count <= 56
            && let Some(byte) = input.next()
        {
            bits = bits << 8 | u64::from(*byte);
            count += 8;
        }
        // Almost every code is short. This is the only path that is optimized.
        if count >= TABLE_BITS {
            let (byte, length) = code.table[usize::from((bits >> (count - TABLE_BITS)) as u8)];
            if length > 0 {
                output.push(byte);
                count -= u32::from(length);
                continue;
            }
        }
        if count < MIN_CODE_BITS {
            return check_padding(bits, count);
        }
        // The next 32 bits, padded with ones. No code of a byte consists of ones only.
        let window = match count {
            32.. => bits >> (count - 32) & 0xffff_ffff,
            _ => (bits << (32 - count) | ((1 << (32 - count)) - 1)) & 0xffff_ffff,
        };
        match code.first(window as u32) {
            Some((byte, length)) if length <= count => {
                output.push(byte);
                count -= length;
            }
            _ => return check_padding(bits, count),
        }
    }
}

/// Checks the padding at the end, which must be fewer than eight bits, all ones.
fn check_padding(bits: u64, count: u32) -> Option<()> {
    (count < 8 && bits & ((1 << count) - 1) == (1 << count) - 1).then_some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decoded(input: &[u8]) -> Option<String> {
        let mut output = Vec::new();
        decode(input, &mut output)?;
        Some(String::from_utf8(output).unwrap())
    }

    #[test]
    fn rfc_examples_are_decoded() {
        let example = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        assert_eq!(decoded(&example).unwrap(), "www.example.com");
        let custom = [0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xb8, 0xe8, 0xb4, 0xbf];
        assert_eq!(decoded(&custom).unwrap(), "custom-value");
        assert_eq!(decoded(&[0x64, 0x02]).unwrap(), "302");
        assert_eq!(decoded(&[]).unwrap(), "");
    }

    /// The code of each byte, by the definition of a canonical code.
    fn codes() -> Vec<u64> {
        let mut codes = vec![0; 256];
        let mut code = 0;
        for length in MIN_CODE_BITS..=MAX_CODE_BITS {
            code <<= 1;
            for byte in (0..256).filter(|byte| u32::from(LENGTHS[*byte]) == length) {
                codes[byte] = code;
                code += 1;
            }
        }
        assert_eq!(code, (1 << 30) - 1, "exactly one code is unused: the end-of-string code");
        codes
    }

    fn encoded(text: &[u8]) -> Vec<u8> {
        let codes = codes();
        let mut bits = Vec::new();
        for byte in text {
            let length = u32::from(LENGTHS[usize::from(*byte)]);
            bits.extend((0..length).rev().map(|bit| codes[usize::from(*byte)] >> bit & 1));
        }
        bits.resize(bits.len().next_multiple_of(8), 1);
        bits.chunks(8).map(|byte| byte.iter().fold(0, |all, bit| all << 1 | *bit as u8)).collect()
    }

    #[test]
    fn every_byte_is_decoded() {
        for byte in 0..=255 {
            let mut output = Vec::new();
            decode(&encoded(&[byte]), &mut output).unwrap();
            assert_eq!(output, [byte]);
        }
    }

    proptest! {
        #[test]
        fn every_string_is_decoded(
            text in prop::collection::vec(prop_oneof![any::<u8>(), b' '..=b'~'], 0..100)
        ) {
            let mut output = Vec::new();
            decode(&encoded(&text), &mut output).unwrap();
            prop_assert_eq!(output, text);
        }
    }

    #[test]
    fn invalid_codes_are_rejected() {
        // Padding with zeros, padding of a whole byte, the end-of-string code.
        assert_eq!(decoded(&[0b0000_0000]), None);
        assert_eq!(decoded(&[0x64, 0x02, 0xff]), None);
        assert_eq!(decoded(&[0xff, 0xff, 0xff, 0xff]), None);
    }
}
