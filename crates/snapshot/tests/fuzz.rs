//! Snapshot files with arbitrary content. Loading one never panics, allocates no more
//! memory than the size of the file, and fails. `FUZZ_CASES` sets the number of cases.

use files::Identity;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use snapshot::Snapshots;

/// Size of the header of a snapshot in bytes.
const HEADER_BYTES: usize = 44;

fn config() -> ProptestConfig {
    let cases = std::env::var("FUZZ_CASES").ok().and_then(|text| text.parse().ok());
    ProptestConfig {
        cases: cases.unwrap_or(400),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/fuzz.seeds"))),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn an_arbitrary_snapshot_is_refused(
        mut content in prop::collection::vec(any::<u8>(), 0..300),
        len in any::<u32>(),
        valid_header in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let identity = Identity { cluster_id: 1, member_id: 2 };
        let manifest = dir.path().join("MANIFEST");
        let snapshots = Snapshots::open(dir.path().join("snap"), manifest, identity).unwrap();
        snapshots.create(7).unwrap().finish().unwrap();
        let newest = snapshots.newest().unwrap().unwrap();
        if valid_header && content.len() >= HEADER_BYTES + 24 {
            let header = &std::fs::read(&newest.path).unwrap()[..HEADER_BYTES];
            content[..HEADER_BYTES].copy_from_slice(header);
            // Set a payload length that may exceed the memory of the machine.
            content[HEADER_BYTES + 4..HEADER_BYTES + 8].copy_from_slice(&len.to_le_bytes());
        }
        std::fs::write(&newest.path, &content).unwrap();
        let loaded = snapshots.load(&newest, |_| Ok(()));
        prop_assert!(loaded.is_err());
    }
}
