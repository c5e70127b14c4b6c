//! Short numbers in the order of the keys of a node. A search reads them instead of most keys: each key
//! is in memory of its own, which a large store seldom has in the cache.

use super::growth::{insert, shrink};

/// A number for each key: the four bytes after the part that all keys have in common. Keys with
/// different numbers have the order of their numbers.
#[derive(Default)]
pub(super) struct Hints {
    /// All keys begin with the same bytes, at least this number of them.
    common: usize,
    hints: Vec<u32>,
}

impl Hints {
    /// Returns the hints of `len` keys. `key_at` returns the key at a position.
    pub(super) fn of<'a>(len: usize, key_at: impl Fn(usize) -> &'a [u8]) -> Hints {
        if len == 0 {
            return Hints::default();
        }
        // The keys are sorted, so all others have in common what the first and the last one have.
        let common = common(key_at(0), key_at(len - 1));
        Hints { common, hints: (0..len).map(|at| hint(key_at(at), common)).collect() }
    }

    /// Returns the position of `key`, or the position where it has to be inserted. `key_at` returns
    /// the key at a position.
    pub(super) fn find<'a>(
        &self,
        key: &[u8],
        key_at: impl Fn(usize) -> &'a [u8],
    ) -> Result<usize, usize> {
        let wanted = hint(key, self.common);
        let mut start = self.hints.partition_point(|hint| *hint < wanted);
        let mut end = start;
        while self.hints.get(end) == Some(&wanted) {
            end += 1;
        }
        while start < end {
            let middle = usize::midpoint(start, end);
            match key_at(middle).cmp(key) {
                std::cmp::Ordering::Less => start = middle + 1,
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Greater => end = middle,
            }
        }
        if self.hints.is_empty() {
            return Err(0);
        }
        // The number of a key that begins with other bytes says nothing.
        let begin = &key[..key.len().min(self.common)];
        match begin.cmp(&key_at(0)[..self.common]) {
            std::cmp::Ordering::Less => Err(0),
            std::cmp::Ordering::Equal => Err(start),
            std::cmp::Ordering::Greater => Err(self.hints.len()),
        }
    }

    /// Notes the insertion of `key` at this position. Returns `false` if the other keys begin with
    /// other bytes: then all numbers are new ([`Hints::of`]). `first` is one of the other keys.
    pub(super) fn insert(&mut self, at: usize, key: &[u8], first: Option<&[u8]>) -> bool {
        let is_same = first.is_some_and(|first| common(key, first) >= self.common);
        if is_same {
            insert(&mut self.hints, at, hint(key, self.common));
        }
        is_same
    }

    /// Notes the removal of the key at this position.
    pub(super) fn remove(&mut self, at: usize) {
        self.hints.remove(at);
        shrink(&mut self.hints);
    }
}

/// Returns how many bytes two keys have in common at the beginning.
pub(super) fn common(left: &[u8], right: &[u8]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}

/// Returns the four bytes at this position. Missing bytes are zeros, so a longer key may have the same
/// number, but no smaller one.
fn hint(key: &[u8], at: usize) -> u32 {
    match key.get(at..) {
        Some([a, b, c, d, ..]) => u32::from_be_bytes([*a, *b, *c, *d]),
        Some(rest) => {
            let mut bytes = [0; 4];
            bytes[..rest.len()].copy_from_slice(rest);
            u32::from_be_bytes(bytes)
        }
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(keys: &[&[u8]]) {
        let hints = Hints::of(keys.len(), |at| keys[at]);
        check_finds(&hints, keys);
    }

    /// Compares with a search in the keys, for the keys themselves and for others.
    fn check_finds(hints: &Hints, keys: &[&[u8]]) {
        let mut wanted: Vec<Vec<u8>> = vec![vec![], vec![0], vec![255; 9]];
        for key in keys {
            wanted.extend((0..=key.len()).map(|len| key[..len].to_vec()));
            wanted.extend([0, 1, 255].map(|byte| [key, &[byte][..]].concat()));
            for at in 0..key.len() {
                for add in [1, 255] {
                    let mut other = key.to_vec();
                    other[at] = other[at].wrapping_add(add);
                    wanted.push(other);
                }
            }
        }
        for key in wanted {
            let expected = keys.binary_search(&&key[..]);
            assert_eq!(hints.find(&key, |at| keys[at]), expected, "{key:?} in {keys:?}");
        }
    }

    #[test]
    fn keys_are_found() {
        check(&[]);
        check(&[b"a"]);
        check(&[b""]);
        check(&[b"", b"\0", b"\0\0", b"\0\0\0\0\0", b"\x01"]);
        check(&[b"/pods/a", b"/pods/a\0", b"/pods/a\0\0\0\0\0", b"/pods/b", b"/pods/longer"]);
        check(&[b"/pods/web-1", b"/pods/web-10", b"/pods/web-2", b"/services/web", b"z"]);
        check(&[b"same-beginning-1", b"same-beginning-2", b"same-beginning-300", b"same-x"]);
    }

    #[test]
    fn insertions_and_removals_are_noted() {
        let (mut keys, mut hints): (Vec<&[u8]>, _) = (Vec::new(), Hints::default());
        let inserted: [&[u8]; 7] = [b"ab/5", b"ab/1", b"ab/9", b"ab/55", b"aa", b"ab/", b"b"];
        for key in inserted {
            let at = hints.find(key, |at| keys[at]).unwrap_err();
            let is_noted = hints.insert(at, key, keys.first().copied());
            keys.insert(at, key);
            if !is_noted {
                hints = Hints::of(keys.len(), |at| keys[at]);
            }
            check_finds(&hints, &keys);
        }
        while !keys.is_empty() {
            let at = keys.len() / 3;
            keys.remove(at);
            hints.remove(at);
            check_finds(&hints, &keys);
        }
    }
}
