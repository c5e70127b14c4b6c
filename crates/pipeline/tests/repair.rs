//! Data directories with arbitrary damage. Opening one either fails or loses nothing.
//! After a repair, the store opens at a revision above every revision that it ever
//! published.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use data_dir::Identity;
use etcdpb::rpc::{PutRequest, RangeRequest};
use files::Error;
use futures_executor::block_on;
use mvcc::Command;
use pipeline::{ClientId, OpenError, Pipeline, PipelineOptions, Repair, WalMode};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

const IDENTITY: Identity = Identity { cluster_id: 1, member_id: 2 };
const BOOT: &[u8] = b"boot";

fn open(dir: &Path) -> Result<Pipeline, OpenError> {
    let options = PipelineOptions {
        data_dir: dir.to_owned(),
        wal_mode: WalMode::Fsync,
        // Also makes the segments small.
        snapshot_log_bytes: 3 << 20,
        boot_id: BOOT.to_vec(),
        ..PipelineOptions::default()
    };
    Pipeline::open(&options, IDENTITY)
}

fn put(pipeline: &Pipeline, key: &str, value: Vec<u8>) {
    let key = key.as_bytes().to_vec().into();
    let put = PutRequest { key, value: value.into(), ..Default::default() };
    block_on(pipeline.propose(ClientId(0), Command::Put(put), 0)).unwrap();
}

/// Returns each key with the number that its value starts with.
fn content(pipeline: &Pipeline) -> BTreeMap<String, u32> {
    let (key, range_end) = (vec![0].into(), vec![0].into());
    let all = RangeRequest { key, range_end, ..Default::default() };
    let number = |value: &[u8]| u32::from_le_bytes(value[..4].try_into().unwrap());
    let kvs = pipeline.range(&all).unwrap().finish().kvs;
    kvs.iter()
        .map(|kv| (String::from_utf8(kv.key().to_vec()).unwrap(), number(kv.value())))
        .collect()
}

/// Creates a data directory with two snapshots and several segments. The log is trimmed.
/// Also returns its content and its revision.
fn create_directory() -> (tempfile::TempDir, BTreeMap<String, u32>, i64) {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = open(dir.path()).unwrap();
    let snapshots = dir.path().join("snap");
    let mut taken = BTreeSet::new();
    let mut has_snapshots = || {
        let entries = fs::read_dir(&snapshots).into_iter().flatten();
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        taken.extend(paths.filter(|path| ends_with(path, "snap")));
        taken.len() >= 3
    };
    let mut number = 0u32;
    let write = |number: &mut u32| {
        *number += 1;
        let value = number.to_le_bytes().into_iter().cycle().take(40_000).collect();
        put(&pipeline, &format!("key{}", *number % 23), value);
    };
    while !has_snapshots() {
        write(&mut number);
    }
    for _ in 0..60 {
        write(&mut number);
    }
    let (written, revision) = (content(&pipeline), pipeline.revision());
    pipeline.shutdown();
    (dir, written, revision)
}

/// Whether opening failed because of damage.
fn is_damage<T>(result: Result<T, OpenError>) -> bool {
    matches!(result, Err(OpenError::Files(Error::Corrupt { .. } | Error::ShortLog { .. })))
}

fn ends_with(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found == extension)
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_all(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

/// Returns the paths of the segments, of `HEAD` and of the snapshots.
fn files(dir: &Path) -> Vec<PathBuf> {
    let list = |name| fs::read_dir(dir.join(name)).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = list("wal").chain(list("snap")).collect();
    files.sort();
    files
}

/// A damage of one file.
#[derive(Clone, Debug)]
enum Damage {
    Remove,
    /// Truncates the file to this length.
    Truncate(prop::sample::Index),
    /// Flips one bit of the byte at this offset.
    Flip(prop::sample::Index, u8),
    /// Overwrites a number of bytes from this offset on with zeros.
    Zero(prop::sample::Index, usize),
    /// Copies a number of bytes from the first offset to the second one.
    Duplicate(prop::sample::Index, prop::sample::Index, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        1 => Just(Damage::Remove),
        1 => at().prop_map(Damage::Truncate),
        4 => (at(), 0u8..8).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        2 => (at(), 1usize..10_000).prop_map(|(at, len)| Damage::Zero(at, len)),
        2 => (at(), at(), 1usize..100_000).prop_map(|(a, b, len)| Damage::Duplicate(a, b, len)),
    ]
}

fn apply(damage: &Damage, path: &Path) {
    let mut content = fs::read(path).unwrap();
    let total = content.len();
    match damage {
        Damage::Remove => return fs::remove_file(path).unwrap(),
        Damage::Truncate(at) => content.truncate(at.index(total)),
        Damage::Flip(at, bit) => content[at.index(total)] ^= 1 << bit,
        Damage::Zero(at, len) => {
            let at = at.index(total);
            content[at..(at + len).min(total)].fill(0);
        }
        Damage::Duplicate(from, to, len) => {
            let (from, to) = (from.index(total), to.index(total));
            let len = (*len).min(total - from.max(to));
            content.copy_within(from..from + len, to);
        }
    }
    fs::write(path, content).unwrap();
}

fn cases() -> u32 {
    std::env::var("FUZZ_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(24)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(),
        max_shrink_iters: 200,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/repair.seeds"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn damage_is_detected_and_can_be_repaired(
        damages in prop::collection::vec((any::<prop::sample::Index>(), damage()), 1..4),
    ) {
        static PRISTINE: LazyLock<(tempfile::TempDir, BTreeMap<String, u32>, i64)> =
            LazyLock::new(create_directory);
        let (pristine, written, revision) = &*PRISTINE;
        let dir = tempfile::tempdir().unwrap();
        copy_all(pristine.path(), dir.path());
        let mut files = files(dir.path());
        files.push(dir.path().join("MANIFEST"));
        for (which, damage) in &damages {
            let path = &files[which.index(files.len())];
            // HEAD is not removed: without it, the loss of the newest segment cannot be
            // detected.
            let removes_head = path.ends_with("HEAD") && matches!(damage, Damage::Remove);
            if !removes_head && path.exists() && path.metadata().unwrap().len() > 0 {
                apply(damage, path);
            }
        }
        let checked = pipeline::check(dir.path(), None, BOOT);
        let repair = Repair::plan(dir.path(), None, BOOT);
        match repair {
            // The damage changed no data that recovery needs: opening loses nothing.
            Ok(None) => {
                prop_assert!(checked.is_ok());
                opens_without_loss(dir.path(), written, *revision)?;
            }
            Ok(Some(plan)) => {
                drop(plan);
                match checked {
                    // The snapshot before replaces the damaged one.
                    Ok(report) => {
                        prop_assert!(report.damaged_newest.is_some());
                        let copy = tempfile::tempdir().unwrap();
                        copy_all(dir.path(), copy.path());
                        opens_without_loss(copy.path(), written, *revision)?;
                    }
                    damaged => {
                        prop_assert!(is_damage(damaged));
                        prop_assert!(is_damage(open(dir.path())));
                    }
                }
                // A failed open does not change the files.
                let plan = Repair::plan(dir.path(), None, BOOT).unwrap().unwrap();
                let keys = plan.keys;
                plan.carry_out().unwrap();
                prop_assert!(Repair::plan(dir.path(), None, BOOT).unwrap().is_none());
                let pipeline = open(dir.path()).unwrap();
                let left = content(&pipeline);
                prop_assert_eq!(left.len() as i64, keys);
                // A key may be missing or have an older value, but no other value.
                for (key, number) in &left {
                    prop_assert!(*number <= written[key] && (written[key] - number).is_multiple_of(23));
                }
                let status = pipeline.status();
                prop_assert!(status.revision > *revision && status.compacted == status.revision);
                put(&pipeline, "after", vec![1, 2, 3, 4]);
                drop(pipeline);
                prop_assert_eq!(content(&open(dir.path()).unwrap()).len() as i64, keys + 1);
            }
            // The snapshot is missing, or the damage changed the format number.
            Err(OpenError::Files(
                Error::Gap { .. } | Error::MissingSnapshot { .. } | Error::NewerFormat { .. },
            )) => {
                prop_assert!(open(dir.path()).is_err());
            }
            Err(other) => prop_assert!(false, "unexpected error: {other}"),
        }
    }
}

/// Opens a directory and compares its content with what was written.
fn opens_without_loss(
    dir: &Path,
    written: &BTreeMap<String, u32>,
    revision: i64,
) -> Result<(), TestCaseError> {
    let pipeline = open(dir).unwrap();
    prop_assert_eq!(&content(&pipeline), written);
    prop_assert!(pipeline.revision() >= revision);
    Ok(())
}

/// Damage to `HEAD` alone loses nothing.
#[test]
fn a_repair_of_a_damaged_head_keeps_all_keys() {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = open(dir.path()).unwrap();
    (0..50).for_each(|n| put(&pipeline, &format!("key{n}"), vec![1; 100]));
    drop(pipeline);
    let head = dir.path().join("wal/HEAD");
    let bytes = fs::read(&head).unwrap();
    fs::write(&head, &bytes[..bytes.len() - 1]).unwrap();
    assert!(is_damage(open(dir.path())));
    let plan = Repair::plan(dir.path(), None, BOOT).unwrap().unwrap();
    assert_eq!(plan.keys, 50, "{:?}", plan.damage);
    plan.carry_out().unwrap();
    assert_eq!(content(&open(dir.path()).unwrap()).len(), 50);
}

/// A repair keeps all intact records if the newest segment is missing, or was cut off after
/// its last record.
#[test]
fn a_repair_without_the_end_of_the_log_keeps_the_rest() {
    for cut_off in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let pipeline = open(dir.path()).unwrap();
        (0..20).for_each(|n| put(&pipeline, &format!("key{n:02}"), vec![1; 100_000]));
        drop(pipeline);
        let files = files(dir.path());
        let is_segment = |path: &&PathBuf| ends_with(path, "wal");
        let newest = files.iter().filter(is_segment).max().unwrap();
        if cut_off {
            let bytes = fs::read(newest).unwrap();
            let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
            fs::write(newest, &bytes[..end]).unwrap();
        } else {
            fs::remove_file(newest).unwrap();
        }
        assert!(is_damage(open(dir.path())));
        let plan = Repair::plan(dir.path(), None, BOOT).unwrap().unwrap();
        let kept = if cut_off { 20..21 } else { 9..20 };
        assert!(
            kept.contains(&plan.keys),
            "cut off: {cut_off}: {} keys, {:?}",
            plan.keys,
            plan.damage
        );
    }
}

/// If the snapshot covers a damaged record, a repair keeps the log after it.
#[test]
fn a_repair_keeps_the_log_after_damage_that_the_snapshot_covers() {
    let (dir, written, segment) = loop {
        let (dir, written, _) = create_directory();
        let number = |path: &PathBuf| path.file_stem()?.to_str()?.parse::<u64>().ok();
        let of = |extension| {
            let mut paths = files(dir.path());
            paths.retain(|path| ends_with(path, extension));
            paths
        };
        let covered = of("snap").iter().filter_map(number).max().unwrap();
        let mut segments = of("wal");
        // Otherwise no segment contains both covered records and later ones.
        if segments.iter().all(|path| number(path) != Some(covered + 1)) {
            segments.retain(|path| number(path) <= Some(covered));
            break (dir, written, segments.pop().unwrap());
        }
    };
    // In the first record of the segment.
    let mut bytes = fs::read(&segment).unwrap();
    bytes[100] ^= 1;
    fs::write(&segment, bytes).unwrap();
    assert!(is_damage(open(dir.path())));
    let plan = Repair::plan(dir.path(), None, BOOT).unwrap().unwrap();
    let [damage] = &plan.damage[..] else { panic!("{:?}", plan.damage) };
    assert!(damage.ends_with("the snapshot covers it, and the log after it is kept"), "{damage}");
    plan.carry_out().unwrap();
    assert_eq!(content(&open(dir.path()).unwrap()), written);
}

/// A repair renames the damaged files, and does not change their content.
#[test]
fn a_repair_keeps_the_damaged_files() {
    let (dir, _, _) = create_directory();
    assert!(Repair::plan(dir.path(), None, BOOT).unwrap().is_none());
    let segment = files(dir.path()).into_iter().rfind(|path| ends_with(path, "wal")).unwrap();
    apply(&Damage::Remove, &segment);
    let before: BTreeSet<_> =
        files(dir.path()).iter().map(|path| fs::read(path).unwrap()).collect();
    let plan = Repair::plan(dir.path(), None, BOOT).unwrap().unwrap();
    assert!(plan.damage[0].contains("is missing, but HEAD names"), "{:?}", plan.damage);
    let renamed = plan.carry_out().unwrap();
    assert_eq!(renamed, [dir.path().join("wal.damaged")]);
    let list = |name| fs::read_dir(dir.path().join(name)).unwrap().map(|e| e.unwrap().path());
    let after: BTreeSet<_> =
        list("wal.damaged").chain(list("snap")).map(|path| fs::read(path).unwrap()).collect();
    assert!(before.is_subset(&after));
}

/// A directory without its log is repaired from its snapshot.
#[test]
fn a_lost_log_is_repaired_from_the_snapshot() {
    let (dir, written, revision) = create_directory();
    fs::remove_dir_all(dir.path().join("wal")).unwrap();
    let plan = Repair::plan(dir.path(), None, BOOT).unwrap().unwrap();
    plan.carry_out().unwrap();
    let pipeline = open(dir.path()).unwrap();
    assert_eq!(content(&pipeline).len(), written.len());
    assert!(pipeline.revision() > revision);
}
