//! Snapshot files with arbitrary content. Loading one never panics, allocates no more
//! memory than the size of the file, and fails. `FUZZ_CASES` sets the number of cases.

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use snapshot::Snapshots;

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
        let snapshots = Snapshots::open(dir.path().to_owned()).unwrap();
        snapshots.create(7).unwrap().finish().unwrap();
        let path = snapshots.newest().unwrap().unwrap();
        if valid_header && content.len() >= 48 {
            content[..24].copy_from_slice(&std::fs::read(&path).unwrap()[..24]);
            // Set a payload length that may exceed the memory of the machine.
            content[28..32].copy_from_slice(&len.to_le_bytes());
        }
        std::fs::write(&path, &content).unwrap();
        let loaded = snapshots.load(|_| Ok(()));
        prop_assert!(loaded.is_err());
    }
}
