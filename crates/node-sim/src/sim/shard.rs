//! Nodes that several processes divide among themselves.

use std::str::FromStr;

/// The part of the nodes that one of several processes simulates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    index: u32,
    count: u32,
}

impl Default for Shard {
    /// All nodes.
    fn default() -> Shard {
        Shard { index: 0, count: 1 }
    }
}

impl Shard {
    /// Whether a node is in this part. A name that was not made from a number counts by its hash, which is
    /// the same in all processes.
    pub fn contains(self, number: Option<u32>, name: &str) -> bool {
        number.unwrap_or_else(|| hash(name)) % self.count == self.index
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Shard, String> {
        let error = || format!("{text:?} is not a part of N, such as 0/4 to 3/4");
        let (index, count) = text.split_once('/').ok_or_else(error)?;
        let shard = Shard {
            index: index.parse().map_err(|_| error())?,
            count: count.parse().map_err(|_| error())?,
        };
        if shard.index < shard.count { Ok(shard) } else { Err(error()) }
    }
}

/// FNV-1a.
fn hash(name: &str) -> u32 {
    let next = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    name.bytes().fold(0x811c_9dc5, next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_is_in_one_shard() {
        let shards: Vec<Shard> = (0..4).map(|i| format!("{i}/4").parse().unwrap()).collect();
        let owners =
            |number, name: &str| shards.iter().filter(|shard| shard.contains(number, name)).count();
        let mut own = [0; 4];
        for number in 0..1000 {
            let name = format!("other-{number}");
            assert_eq!((owners(Some(number), "x"), owners(None, &name)), (1, 1));
            let owner = shards.iter().position(|shard| shard.contains(None, &name)).unwrap();
            own[owner] += 1;
        }
        assert!(own.iter().all(|count| (150..350).contains(count)), "{own:?}");
        assert!(Shard::default().contains(Some(7), "x") && Shard::default().contains(None, "x"));
    }

    #[test]
    fn other_texts_are_no_shards() {
        for text in ["", "1", "1/1", "4/4", "0/0", "-1/2", "a/b", "1/2/3"] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
    }
}
