//! Maliciously modified etcd snapshots. Unlike accidental damage, the modification
//! corrects the checksums of the meta pages, so the reader accepts their content. Reading
//! must terminate without a panic and return no more data than the file contains.

use std::fs::File;
use std::io::Write;

use proptest::prelude::*;
use proptest::sample::Index;

const SNAPSHOT: &[u8] = include_bytes!("../../../crates/bolt/tests/etcd-3.7.3.snapshot");
const PAGE_BYTES: usize = 4096;
const META: std::ops::Range<usize> = 16..72;

/// Values for numeric fields: small numbers, numbers close to the size of the file, and
/// numbers that overflow.
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
    /// Overwrites a field of a meta page, selected by its number.
    Meta(bool, usize, u64),
    /// Overwrites a field of a page header or of one of the first elements.
    Page(Index, usize, u64),
    Byte(Index, u8),
    /// Replaces a page with a copy of another, which keeps its number or gets the number
    /// of the replaced page.
    Copy(Index, Index, bool),
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

fn write(content: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = content.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

fn tamper(content: &mut Vec<u8>, how: &Tampering) {
    let pages = content.len() / PAGE_BYTES;
    if pages == 0 {
        return;
    }
    match how {
        Tampering::Meta(second, field, value) => {
            let at = usize::from(*second) * PAGE_BYTES + META.start + 8 * field;
            write(content, at, &value.to_le_bytes());
        }
        Tampering::Page(page, field, value) => {
            let at = page.index(pages) * PAGE_BYTES + 4 * field;
            write(content, at, &(*value as u32).to_le_bytes());
        }
        Tampering::Byte(at, value) => {
            let at = at.index(content.len());
            content[at] = *value;
        }
        Tampering::Copy(from, to, renumbered) => {
            let (from, to) = (from.index(pages) * PAGE_BYTES, to.index(pages));
            content.copy_within(from..from + PAGE_BYTES, to * PAGE_BYTES);
            if *renumbered {
                write(content, to * PAGE_BYTES, &(to as u64).to_le_bytes());
            }
        }
        Tampering::Truncate(at) => {
            let bytes = at.index(content.len());
            content.truncate(bytes);
        }
    }
}

/// Corrects the checksums of the meta pages.
fn correct_checksums(content: &mut [u8]) {
    for page in 0..2 {
        let at = page * PAGE_BYTES;
        if let Some(meta) = content.get(at + META.start..at + META.end) {
            let step =
                |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
            let sum = meta.iter().fold(0xcbf2_9ce4_8422_2325, step);
            write(content, at + META.end, &sum.to_le_bytes());
        }
    }
}

fn read(content: &[u8], bucket: &str) -> Result<usize, bolt::Error> {
    let mut file: File = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    let mut shown = 0;
    bolt::Db::open(file, content.len() as u64)?.for_each(bucket.as_bytes(), |key, value| {
        assert!(key.len() + value.len() <= content.len());
        shown += 1;
        Ok(())
    })?;
    Ok(shown)
}

#[test]
fn corrected_checksums_are_accepted() {
    let mut content = SNAPSHOT.to_vec();
    write(&mut content, META.end, &[0; 8]);
    write(&mut content, PAGE_BYTES + META.end, &[0; 8]);
    assert!(read(&content, "key").is_err());
    correct_checksums(&mut content);
    assert_eq!(read(&content, "key").unwrap(), 3);
}

proptest! {
    #[test]
    fn tampering_does_not_panic(how in prop::collection::vec(tampering(), 1..6)) {
        let mut content = SNAPSHOT.to_vec();
        how.iter().for_each(|one| tamper(&mut content, one));
        correct_checksums(&mut content);
        for bucket in ["key", "meta", "lease"] {
            // A page has at most 2^16 elements, and no page is visited twice.
            let most = content.len() / 1024 * (1 << 16);
            prop_assert!(read(&content, bucket).is_ok_and(|shown| shown <= most) || read(&content, bucket).is_err());
        }
    }
}
