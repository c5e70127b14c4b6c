//! UIDs of objects, which are UUIDs.

use std::fmt;
use std::str::FromStr;

/// The UID of an object in 16 bytes; the default is that of no object.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Uid(u128);

impl FromStr for Uid {
    type Err = ();

    /// Reads a UUID. Anything else is no UID of kube-apiserver's.
    fn from_str(text: &str) -> Result<Uid, ()> {
        let is_dash = |at: usize| matches!(at, 8 | 13 | 18 | 23);
        if text.len() != 36 || text.bytes().enumerate().any(|(at, b)| is_dash(at) != (b == b'-')) {
            return Err(());
        }
        let digits = text.bytes().filter(|byte| *byte != b'-');
        let mut value = 0;
        for digit in digits {
            value = value << 4 | u128::from((digit as char).to_digit(16).ok_or(())?);
        }
        Ok(Uid(value))
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Uid(value) = self;
        let part = |shift: u32, bits: u32| (value >> shift) & ((1 << bits) - 1);
        write!(f, "{:08x}-{:04x}-", part(96, 32), part(80, 16))?;
        write!(f, "{:04x}-{:04x}-{:012x}", part(64, 16), part(48, 16), part(0, 48))
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_is_written_as_it_was_read() {
        let text = "0e9a12bc-34de-4f56-8a90-00112233aabb";
        assert_eq!(text.parse::<Uid>().unwrap().to_string(), text);
        for text in
            ["", "x", "0e9a12bc-34de-4f56-8a90-00112233aab", "0e9a12bcx34de-4f56-8a90-00112233aabb"]
        {
            assert!(text.parse::<Uid>().is_err(), "{text}");
        }
    }
}
