//! Records: the immutable, shared state of a key at one revision.
//!
//! A record is one allocation behind a thin pointer. The index, the history and all
//! responses share it. In a cluster with a million nodes, millions of records use most of
//! the store's memory, so a field must be worth its size: numbers take as many bytes as
//! their value needs.
//!
//! # Layout
//! | bytes | contents |
//! |---|---|
//! | 8 | reference count |
//! | 8 | mod revision |
//! | 8 | length of the rest |
//! | 2 | the sizes in bytes of the next four numbers, 4 bits each |
//! | 1 to 4 | length of the key |
//! | 0 to 8 | mod revision minus create revision |
//! | 0 to 8 | version |
//! | 0 to 8 | lease |
//! | | key, value |

use std::cell::RefCell;

use triomphe::ThinArc;

/// The state of a key from one revision on: a value, or a *tombstone* if the key was
/// deleted.
#[derive(Clone)]
pub struct Record(ThinArc<i64, u8>);

/// Number of bytes of the sizes at the start of the packed part of a record.
const SIZES_BYTES: usize = 2;

/// The sizes of the packed numbers of a record in bytes.
#[derive(Clone, Copy)]
struct Sizes(u16);

impl Sizes {
    fn key_len(self) -> usize {
        usize::from(self.0 & 0xf)
    }

    fn age(self) -> usize {
        usize::from(self.0 >> 4 & 0xf)
    }

    fn version(self) -> usize {
        usize::from(self.0 >> 8 & 0xf)
    }

    fn lease(self) -> usize {
        usize::from(self.0 >> 12)
    }
}

thread_local! {
    /// The packed part of the record that is being created. A record is allocated with its
    /// final size, from one slice.
    static PACKED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A thread keeps a buffer of at most this size in bytes.
const MAX_KEPT_BUFFER: usize = 64 << 10;

impl Record {
    /// Creates the record of a put at `mod_revision`. `version` is the number of puts
    /// since the key was created, including the one that created it. `lease` is 0 for
    /// none.
    pub fn put(
        key: &[u8],
        value: &[u8],
        create_revision: i64,
        mod_revision: i64,
        version: i64,
        lease: i64,
    ) -> Self {
        debug_assert!(version >= 1 && create_revision <= mod_revision);
        let age = mod_revision.wrapping_sub(create_revision);
        Record::pack(mod_revision, [key.len() as i64, age, version, lease], key, value)
    }

    /// Creates the tombstone of a deletion of `key` at `mod_revision`.
    pub fn tombstone(key: &[u8], mod_revision: i64) -> Self {
        Record::pack(mod_revision, [key.len() as i64, 0, 0, 0], key, &[])
    }

    fn pack(mod_revision: i64, numbers: [i64; 4], key: &[u8], value: &[u8]) -> Self {
        PACKED.with_borrow_mut(|packed| {
            packed.clear();
            packed.extend_from_slice(&[0; SIZES_BYTES]);
            let mut sizes = 0;
            for (position, number) in numbers.into_iter().enumerate() {
                let size = bytes_of(number);
                sizes |= (size as u16) << (4 * position);
                packed.extend_from_slice(&number.to_le_bytes()[..size]);
            }
            packed[..SIZES_BYTES].copy_from_slice(&sizes.to_le_bytes());
            packed.extend_from_slice(key);
            packed.extend_from_slice(value);
            let record = Record(ThinArc::from_header_and_slice(mod_revision, packed));
            if packed.capacity() > MAX_KEPT_BUFFER {
                *packed = Vec::new();
            }
            record
        })
    }

    /// The key's bytes.
    pub fn key(&self) -> &[u8] {
        let (start, len) = self.key_position();
        &self.packed()[start..start + len]
    }

    /// The value's bytes; empty for a tombstone.
    pub fn value(&self) -> &[u8] {
        let (start, len) = self.key_position();
        &self.packed()[start + len..]
    }

    /// Revision at which the key was last created; 0 for a tombstone.
    pub fn create_revision(&self) -> i64 {
        if self.is_tombstone() {
            return 0;
        }
        let sizes = self.sizes();
        let age = self.number(SIZES_BYTES + sizes.key_len(), sizes.age());
        self.mod_revision().wrapping_sub(age)
    }

    /// Revision of this change.
    pub fn mod_revision(&self) -> i64 {
        self.0.header.header
    }

    /// Number of puts since the key was last created, including that put; 0 for a
    /// tombstone.
    pub fn version(&self) -> i64 {
        let sizes = self.sizes();
        self.number(SIZES_BYTES + sizes.key_len() + sizes.age(), sizes.version())
    }

    /// ID of the lease to which the key is attached; 0 for none.
    pub fn lease(&self) -> i64 {
        let sizes = self.sizes();
        let start = SIZES_BYTES + sizes.key_len() + sizes.age() + sizes.version();
        self.number(start, sizes.lease())
    }

    /// Whether the key is deleted.
    pub fn is_tombstone(&self) -> bool {
        self.sizes().version() == 0
    }

    /// Whether this change created the key.
    pub fn is_create(&self) -> bool {
        self.create_revision() == self.mod_revision()
    }

    fn packed(&self) -> &[u8] {
        &self.0.slice
    }

    fn sizes(&self) -> Sizes {
        let packed = self.packed();
        Sizes(u16::from_le_bytes([packed[0], packed[1]]))
    }

    /// Returns the position of the key in the packed part, and its length.
    fn key_position(&self) -> (usize, usize) {
        let sizes = self.sizes();
        let numbers = sizes.key_len() + sizes.age() + sizes.version() + sizes.lease();
        let len = match sizes.key_len() {
            1 => usize::from(self.packed()[SIZES_BYTES]),
            size => self.number(SIZES_BYTES, size) as usize,
        };
        (SIZES_BYTES + numbers, len)
    }

    /// Returns the number with this position and size in the packed part.
    fn number(&self, start: usize, size: usize) -> i64 {
        let mut bytes = [0; 8];
        bytes[..size].copy_from_slice(&self.packed()[start..start + size]);
        i64::from_le_bytes(bytes)
    }
}

/// Returns how many bytes `number` needs; 0 for 0. A negative number needs 8.
fn bytes_of(number: i64) -> usize {
    8 - number.leading_zeros() as usize / 8
}

impl std::fmt::Debug for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Record")
            .field("key", &self.key().escape_ascii().to_string())
            .field("value", &self.value().escape_ascii().to_string())
            .field("create", &self.create_revision())
            .field("mod", &self.mod_revision())
            .field("version", &self.version())
            .field("lease", &self.lease())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers at the borders between sizes.
    fn numbers() -> impl Iterator<Item = i64> + Clone {
        let borders = (0..63).map(|bits| 1i64 << bits);
        borders.flat_map(|border| [border - 1, border]).chain([i64::MAX])
    }

    #[test]
    fn fields_of_every_size_are_kept() {
        for number in numbers().filter(|number| *number > 0) {
            for (create, version, lease) in [(number, 1, 0), (1, number, -number), (1, 1, number)] {
                let record = Record::put(b"key", b"value", create, number, version, lease);
                assert_eq!((record.key(), record.value()), (&b"key"[..], &b"value"[..]));
                let revisions = (record.create_revision(), record.mod_revision());
                assert_eq!(revisions, (create, number));
                assert_eq!((record.version(), record.lease()), (version, lease));
                assert_eq!(record.is_create(), create == number);
                assert!(!record.is_tombstone());
            }
            let gone = Record::tombstone(b"key", number);
            assert_eq!((gone.key(), gone.value()), (&b"key"[..], &b""[..]));
            assert_eq!((gone.create_revision(), gone.mod_revision()), (0, number));
            assert_eq!((gone.version(), gone.lease()), (0, 0));
            assert!(gone.is_tombstone() && !gone.is_create());
        }
    }

    #[test]
    fn keys_and_values_of_every_size_are_kept() {
        for len in [0, 1, 255, 256, 65_535, 65_536, 1 << 24] {
            let bytes = vec![b'x'; len];
            let record = Record::put(&bytes, b"value", 1, 1, 1, 7);
            assert_eq!((record.key(), record.value()), (&bytes[..], &b"value"[..]));
            assert_eq!(record.lease(), 7);
            let record = Record::put(b"key", &bytes, 1, 1, 1, 7);
            assert_eq!((record.key(), record.value()), (&b"key"[..], &bytes[..]));
        }
    }

    /// The memory of a store depends on it: docs/mem_etcd.md has the bytes per key.
    #[test]
    fn a_record_needs_few_bytes_beside_key_and_value() {
        let packed = |record: Record| record.packed().len();
        assert_eq!(packed(Record::put(b"k", b"v", 1 << 40, 1 << 40, 1, 0)), 2 + 4);
        assert_eq!(packed(Record::put(b"k", b"v", 1, 1 << 20, 200, 0)), 2 + 7);
        assert_eq!(packed(Record::tombstone(b"k", 1 << 40)), 1 + 3);
    }
}
