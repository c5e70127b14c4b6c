//! The keys and values of the fill workload.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use etcdpb::rpc::PutRequest;

use crate::key_group::KeyGroup;

/// The keys that the fill workload still has to write. Clones share the position of the next
/// key.
#[derive(Clone)]
pub struct FillKeys {
    groups: Rc<[KeyGroup]>,
    /// A value of the maximum size. All values are prefixes of it.
    value: Bytes,
    /// The index of the group and the number of the next key.
    next: Rc<Cell<(usize, u64)>>,
    returned_bytes: Rc<Cell<u64>>,
}

impl FillKeys {
    /// Creates the keys of `groups`, with random values.
    pub fn new(groups: &[KeyGroup]) -> Self {
        let longest = groups.iter().map(|group| group.value_bytes.1).max().unwrap_or_default();
        FillKeys {
            groups: groups.into(),
            value: (0..longest).map(|_| rand::random::<u8>()).collect(),
            next: Rc::default(),
            returned_bytes: Rc::default(),
        }
    }

    /// Number of keys in all groups.
    pub fn count(&self) -> u64 {
        self.groups.iter().map(|group| group.count).sum()
    }

    /// Bytes of the keys and values in the puts that [`FillKeys::next_put`] has returned.
    pub fn returned_bytes(&self) -> u64 {
        self.returned_bytes.get()
    }

    /// Returns the put of the next key. Keys have at least `key_size` bytes: the number
    /// in the key is padded with zeros, always to at least 7 digits.
    ///
    /// # Panics
    /// Panics if there are no more keys.
    pub fn next_put(&self, key_size: usize) -> PutRequest {
        let (index, number) = self.next.get();
        let group = &self.groups[index];
        let last = number + 1 == group.count;
        self.next.set(if last { (index + 1, 0) } else { (index, number + 1) });

        let key = group.key(number, key_size);
        let value = self.value.slice(..group.value_size(number));
        self.returned_bytes.set(self.returned_bytes.get() + (key.len() + value.len()) as u64);
        PutRequest { key: key.into(), value, ..Default::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_returned_once() {
        let groups = ["/a/=2x3".parse().unwrap(), "/b/=1x5".parse().unwrap()];
        let fill_keys = FillKeys::new(&groups);
        let puts: Vec<PutRequest> = (0..fill_keys.count()).map(|_| fill_keys.next_put(8)).collect();
        let keys: Vec<&[u8]> = puts.iter().map(|put| &put.key[..]).collect();
        assert_eq!(keys, [b"/a/0000000", b"/a/0000001", b"/b/0000000"]);
        assert_eq!(fill_keys.returned_bytes(), 3 * 10 + 3 + 3 + 5);
    }
}
