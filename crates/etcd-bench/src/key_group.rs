//! Groups of keys that the fill workload writes.

use std::str::FromStr;

/// Minimum number of digits of the number in a key.
const MIN_DIGITS: usize = 7;
/// Multiplier of the hash function that determines the size of a value from the number of its
/// key. A key has the same value size in every run.
const SIZE_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Keys with a common prefix, numbered from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyGroup {
    /// The prefix of the keys.
    pub prefix: String,
    /// Number of keys.
    pub count: u64,
    /// The minimum and the maximum size of the values in bytes.
    pub value_bytes: (usize, usize),
}

impl FromStr for KeyGroup {
    type Err = String;

    /// Parses `PREFIX=COUNTxBYTES` or `PREFIX=COUNTxMIN-MAX`.
    fn from_str(text: &str) -> Result<Self, String> {
        let error = || {
            "must be PREFIX=COUNTxBYTES or PREFIX=COUNTxMIN-MAX, with a nonempty PREFIX, COUNT above 0 and MIN not above MAX".to_owned()
        };
        let (prefix, amount) = text.rsplit_once('=').ok_or_else(error)?;
        let (count, sizes) = amount.split_once('x').ok_or_else(error)?;
        let (min, max) = sizes.split_once('-').unwrap_or((sizes, sizes));
        let size = |text: &str| text.parse::<usize>().map_err(|_| error());
        let count = count.parse().map_err(|_| error())?;
        let value_bytes = (size(min)?, size(max)?);
        if prefix.is_empty() || count == 0 || value_bytes.0 > value_bytes.1 {
            return Err(error());
        }
        Ok(KeyGroup { prefix: prefix.into(), count, value_bytes })
    }
}

impl KeyGroup {
    /// The key with number `n`. The number is padded with zeros so that the key has at least
    /// `size` bytes.
    pub fn key(&self, n: u64, size: usize) -> Vec<u8> {
        let digits = size.saturating_sub(self.prefix.len()).max(MIN_DIGITS);
        format!("{}{n:0digits$}", self.prefix).into_bytes()
    }

    /// The size of the value of key `n` in bytes.
    pub fn value_size(&self, n: u64) -> usize {
        let (min, max) = self.value_bytes;
        min + (n.wrapping_mul(SIZE_MULTIPLIER) >> 32) as usize % (max - min + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_parsed() {
        let group: KeyGroup = "/registry/minions/node-=1000x1229".parse().unwrap();
        assert_eq!(group.count, 1000);
        assert_eq!(group.key(12, 8), b"/registry/minions/node-0000012");
        assert_eq!(group.value_size(3), 1229);

        let group: KeyGroup = "/a=b/=10x100-1000".parse().unwrap();
        assert_eq!(group.prefix, "/a=b/");
        assert_eq!(group.key(3, 16), b"/a=b/00000000003");
        for wrong in ["", "/a", "/a=", "/a=5", "/a=x5", "=1x1", "/a=0x1", "/a=1x5-1", "/a=1x1-"] {
            assert!(wrong.parse::<KeyGroup>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_evenly_distributed() {
        let group = KeyGroup { prefix: "/".into(), count: 10_000, value_bytes: (100, 1000) };
        let sizes: Vec<usize> = (0..group.count).map(|n| group.value_size(n)).collect();
        assert!(sizes.iter().all(|size| (100..=1000).contains(size)));
        let mean = sizes.iter().sum::<usize>() as f64 / sizes.len() as f64;
        assert!((540.0..560.0).contains(&mean), "{mean}");
    }
}
