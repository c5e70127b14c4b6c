//! Keys to fill a store with: so many below a prefix, of such a size.

use std::str::FromStr;

/// Digits of a key's number, at least.
const DIGITS: usize = 7;
/// Spreads numbers over the sizes of a group, the same in every run.
const SCATTER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Keys of one kind, numbered from zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub prefix: String,
    pub count: u64,
    /// The smallest and the largest value, in bytes.
    pub value_bytes: (usize, usize),
}

impl FromStr for Group {
    type Err = String;

    /// `PREFIX=COUNTxBYTES` or `PREFIX=COUNTxMIN-MAX`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "not PREFIX=COUNTxBYTES or PREFIX=COUNTxMIN-MAX".to_owned();
        let (prefix, what) = text.rsplit_once('=').ok_or_else(wrong)?;
        let (count, sizes) = what.split_once('x').ok_or_else(wrong)?;
        let (min, max) = sizes.split_once('-').unwrap_or((sizes, sizes));
        let size = |text: &str| text.parse::<usize>().map_err(|_| wrong());
        let count = count.parse().map_err(|_| wrong())?;
        let value_bytes = (size(min)?, size(max)?);
        if prefix.is_empty() || count == 0 || value_bytes.0 > value_bytes.1 {
            return Err(wrong());
        }
        Ok(Group { prefix: prefix.into(), count, value_bytes })
    }
}

impl Group {
    /// Key number `n`, filled up with zeros to `size` bytes.
    pub fn key(&self, n: u64, size: usize) -> Vec<u8> {
        let digits = size.saturating_sub(self.prefix.len()).max(DIGITS);
        format!("{}{n:0digits$}", self.prefix).into_bytes()
    }

    /// Bytes of value number `n`.
    pub fn value_size(&self, n: u64) -> usize {
        let (min, max) = self.value_bytes;
        min + (n.wrapping_mul(SCATTER) >> 32) as usize % (max - min + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_parsed() {
        let group: Group = "/registry/minions/node-=1000x1229".parse().unwrap();
        assert_eq!(group.count, 1000);
        assert_eq!(group.key(12, 8), b"/registry/minions/node-0000012");
        assert_eq!(group.value_size(3), 1229);

        let group: Group = "/a=b/=10x100-1000".parse().unwrap();
        assert_eq!(group.prefix, "/a=b/");
        assert_eq!(group.key(3, 16), b"/a=b/00000000003");
        for wrong in ["", "/a", "/a=", "/a=5", "/a=x5", "=1x1", "/a=0x1", "/a=1x5-1", "/a=1x1-"] {
            assert!(wrong.parse::<Group>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_spread_evenly() {
        let group = Group { prefix: "/".into(), count: 10_000, value_bytes: (100, 1000) };
        let sizes: Vec<usize> = (0..group.count).map(|n| group.value_size(n)).collect();
        assert!(sizes.iter().all(|size| (100..=1000).contains(size)));
        let mean = sizes.iter().sum::<usize>() as f64 / sizes.len() as f64;
        assert!((540.0..560.0).contains(&mean), "{mean}");
    }
}
