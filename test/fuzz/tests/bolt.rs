//! Fuzz test of the bbolt reader with tampered etcd snapshots. After the tampering the test
//! corrects the checksums of the meta pages, so that the reader does not reject the file as
//! damaged. Reading must not panic, must end, and must return a bounded number of pairs.

use std::fs::File;
use std::io::Write;

use proptest::prelude::*;
use proptest::sample::Index;

const SNAPSHOT: &[u8] = include_bytes!("../../../crates/bolt/tests/etcd-3.7.3.snapshot");
const PAGE_BYTES: usize = 4096;
/// The offsets within a meta page that its checksum covers. The checksum follows.
const META: std::ops::Range<usize> = 16..72;

/// Values for numeric fields: small numbers, the size of the file, and numbers that overflow.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..12_u64,
        Just(SNAPSHOT.len() as u64),
        Just(u64::from(u32::MAX)),
        Just(u64::MAX),
        Just(1 << 63),
        any::<u64>(),
    ]
}

#[derive(Clone, Debug)]
enum Tampering {
    /// Overwrites a field of a meta page: whether it is the second meta page, the index of the
    /// 8-byte field, and the new value.
    Meta(bool, usize, u64),
    /// Overwrites a field of a page header or of one of the page's first elements: the page,
    /// the index of the 4-byte field, and the new value.
    Page(Index, usize, u64),
    /// Overwrites a byte: its offset and the new value.
    Byte(Index, u8),
    /// Replaces a page with a copy of another: the copied page, the replaced page, and whether
    /// the copy gets the page number of the replaced page.
    Copy(Index, Index, bool),
    /// Truncates the file to this length.
    Truncate(Index),
}

fn tampering() -> impl Strategy<Value = Tampering> {
    prop_oneof![
        2 => (any::<bool>(), 0..6_usize, number()).prop_map(|(a, b, c)| Tampering::Meta(a, b, c)),
        6 => (any::<Index>(), 0..24_usize, number()).prop_map(|(a, b, c)| Tampering::Page(a, b, c)),
        3 => (any::<Index>(), any::<u8>()).prop_map(|(a, b)| Tampering::Byte(a, b)),
        2 => (any::<Index>(), any::<Index>(), any::<bool>())
            .prop_map(|(a, b, c)| Tampering::Copy(a, b, c)),
        1 => any::<Index>().prop_map(Tampering::Truncate),
    ]
}

/// Overwrites bytes from offset `at`, unless they would exceed the content.
fn overwrite(content: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(target) = content.get_mut(at..at + bytes.len()) {
        target.copy_from_slice(bytes);
    }
}

fn tamper(content: &mut Vec<u8>, tampering: &Tampering) {
    let pages = content.len() / PAGE_BYTES;
    if pages == 0 {
        return;
    }
    match tampering {
        Tampering::Meta(second, field, value) => {
            let at = usize::from(*second) * PAGE_BYTES + META.start + 8 * field;
            overwrite(content, at, &value.to_le_bytes());
        }
        Tampering::Page(page, field, value) => {
            let at = page.index(pages) * PAGE_BYTES + 4 * field;
            overwrite(content, at, &(*value as u32).to_le_bytes());
        }
        Tampering::Byte(at, value) => {
            let at = at.index(content.len());
            content[at] = *value;
        }
        Tampering::Copy(from, to, renumbered) => {
            let (from, to) = (from.index(pages) * PAGE_BYTES, to.index(pages));
            content.copy_within(from..from + PAGE_BYTES, to * PAGE_BYTES);
            if *renumbered {
                overwrite(content, to * PAGE_BYTES, &(to as u64).to_le_bytes());
            }
        }
        Tampering::Truncate(len) => {
            let len = len.index(content.len());
            content.truncate(len);
        }
    }
}

/// Sets the checksums (FNV-1a, 64 bits) of the meta pages to the values that match their
/// content.
fn correct_checksums(content: &mut [u8]) {
    for page in 0..2 {
        let at = page * PAGE_BYTES;
        if let Some(meta) = content.get(at + META.start..at + META.end) {
            let step =
                |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
            let checksum = meta.iter().fold(0xcbf2_9ce4_8422_2325, step);
            overwrite(content, at + META.end, &checksum.to_le_bytes());
        }
    }
}

/// Reads all pairs of a bucket and returns their number.
fn count_pairs(content: &[u8], bucket: &str) -> Result<usize, bolt::Error> {
    let mut file: File = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    let mut pairs = 0;
    bolt::Db::open(file, content.len() as u64)?.for_each(bucket.as_bytes(), |key, value| {
        assert!(key.len() + value.len() <= content.len());
        pairs += 1;
        Ok(())
    })?;
    Ok(pairs)
}

#[test]
fn corrected_checksums_are_accepted() {
    let mut content = SNAPSHOT.to_vec();
    overwrite(&mut content, META.end, &[0; 8]);
    overwrite(&mut content, PAGE_BYTES + META.end, &[0; 8]);
    assert!(count_pairs(&content, "key").is_err());
    correct_checksums(&mut content);
    assert_eq!(count_pairs(&content, "key").unwrap(), 3);
}

proptest! {
    #[test]
    fn reading_a_tampered_snapshot_does_not_panic(
        tampering in prop::collection::vec(tampering(), 1..6),
    ) {
        let mut content = SNAPSHOT.to_vec();
        tampering.iter().for_each(|one| tamper(&mut content, one));
        correct_checksums(&mut content);
        for bucket in ["key", "meta", "lease"] {
            // A page has at most 2^16 elements, and the reader visits no page twice. Tampering
            // can reduce the page size to 1,024 bytes.
            let max = content.len() / 1024 * (1 << 16);
            prop_assert!(
                count_pairs(&content, bucket).is_ok_and(|pairs| pairs <= max)
                    || count_pairs(&content, bucket).is_err()
            );
        }
    }
}
