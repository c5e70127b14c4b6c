//! Directories with anything in them: reading never panics, never goes on for ever,
//! takes no more memory than the files have bytes, and either hands back a prefix of
//! what was written or refuses. `FUZZ_CASES` sets how many are tried.

mod disk;

use disk::{Disk, File};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use wal::{Error, Log, Options, Snapshots, inspect, remnants};

fn cases() -> u32 {
    std::env::var("FUZZ_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(400)
}

fn config(seeds: &'static str) -> ProptestConfig {
    ProptestConfig {
        cases: cases(),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(seeds))),
        ..ProptestConfig::default()
    }
}

type Index = prop::sample::Index;

#[derive(Clone, Debug)]
enum Mutation {
    Set(Index, u8),
    Flip(Index, u8),
    Overwrite(Index, Vec<u8>),
    Copy(Index, Index, usize),
    /// From one file into another.
    Splice(Index, Index, usize),
    Truncate(Index),
    Extend(Vec<u8>),
    Remove,
    Swap(Index),
    Rename(u64),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let at = any::<Index>;
    let bytes = || prop::collection::vec(any::<u8>(), 0..200);
    prop_oneof![
        4 => (at(), any::<u8>()).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        4 => (at(), 0u8..8).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
        2 => (at(), bytes()).prop_map(|(at, bytes)| Mutation::Overwrite(at, bytes)),
        2 => (at(), at(), 1usize..600).prop_map(|(a, b, len)| Mutation::Copy(a, b, len)),
        2 => (at(), at(), 1usize..600).prop_map(|(a, b, len)| Mutation::Splice(a, b, len)),
        1 => at().prop_map(Mutation::Truncate),
        1 => bytes().prop_map(Mutation::Extend),
        1 => Just(Mutation::Remove),
        1 => at().prop_map(Mutation::Swap),
        1 => prop_oneof![any::<u64>(), 0u64..40].prop_map(Mutation::Rename),
    ]
}

/// A log of several segments, as a process leaves it.
fn written(lens: &[usize]) -> (Disk, Vec<Vec<u8>>) {
    let disk = Disk::default();
    let mut payloads = Vec::new();
    let (mut log, _) = open(&disk, &mut payloads).unwrap();
    for (number, len) in lens.iter().enumerate() {
        let payload = (number as u32 + 1).to_le_bytes().into_iter().cycle().take(4 + len);
        let payload: Vec<u8> = payload.collect();
        log.append(&payload).unwrap();
        if number % 3 == 0 {
            log.sync().unwrap();
        }
        payloads.push(payload);
    }
    (disk, payloads)
}

fn open(disk: &Disk, payloads: &mut Vec<Vec<u8>>) -> Result<(Log, wal::Recovered), Error> {
    Log::open(disk.clone(), Options { segment_bytes: 512 }, 0, |payload| {
        payloads.push(payload.to_vec());
        Ok(())
    })
}

fn mutate(disk: &Disk, file: &Index, mutation: &Mutation) {
    let mut state = disk.0.lock().unwrap();
    let names: Vec<String> = state.files.keys().cloned().collect();
    let Some(name) = (!names.is_empty()).then(|| &names[file.index(names.len())]) else { return };
    let mut content = state.files[name].current.clone();
    let len = content.len();
    let within = |at: &Index| at.index(len.max(1));
    match mutation {
        _ if len == 0 => {}
        Mutation::Set(at, byte) => content[within(at)] = *byte,
        Mutation::Flip(at, bit) => content[within(at)] ^= 1 << bit,
        Mutation::Overwrite(at, bytes) => {
            content.splice(within(at).., bytes.iter().copied());
        }
        Mutation::Copy(from, to, count) => {
            let (from, to) = (within(from), within(to));
            content.copy_within(from..from + (*count).min(len - from.max(to)), to);
        }
        Mutation::Splice(other, at, count) => {
            let other = state.files[&names[other.index(names.len())]].current.clone();
            let start = at.index(len.max(1));
            let bytes: Vec<u8> = other.into_iter().skip(start).take(*count).collect();
            let end = len.min(start + bytes.len());
            content[start..end].copy_from_slice(&bytes[..end - start]);
        }
        Mutation::Truncate(at) => content.truncate(within(at)),
        Mutation::Extend(bytes) => content.extend(bytes),
        Mutation::Remove => drop(state.files.remove(name)),
        Mutation::Swap(other) => {
            let other = &names[other.index(names.len())];
            let theirs = state.files[other].clone();
            let ours = state.files.insert(name.clone(), theirs).unwrap();
            state.files.insert(other.clone(), ours);
        }
        Mutation::Rename(first) => {
            let file = state.files.remove(name).unwrap();
            state.files.insert(format!("{first:020}.wal"), file);
        }
    }
    if let Some(file) = state.files.get_mut(name)
        && !matches!(mutation, Mutation::Swap(_))
    {
        *file = File { durable: content.clone(), current: content };
    }
}

/// Opens the log, and if that works again and once more, with something behind it.
fn opens_or_refuses(disk: &Disk) -> Result<Option<Vec<Vec<u8>>>, TestCaseError> {
    let looked = inspect(disk, 0, |_| Ok(()));
    remnants(disk, |_| {}).unwrap();
    let mut found = Vec::new();
    let log = open(disk, &mut found);
    prop_assert_eq!(looked.is_ok(), log.is_ok(), "looking sees what opening does");
    let Ok((mut log, _)) = log else { return Ok(None) };
    log.append(b"behind").unwrap();
    drop(log);
    let mut again = Vec::new();
    open(disk, &mut again).unwrap();
    prop_assert_eq!(again.pop().unwrap(), b"behind");
    prop_assert_eq!(&again, &found);
    Ok(Some(found))
}

proptest! {
    #![proptest_config(config("tests/fuzz.seeds"))]

    #[test]
    fn a_mutated_log_is_a_prefix_or_refused(
        lens in prop::collection::vec(0usize..200, 1..25),
        mutations in prop::collection::vec((any::<Index>(), mutation()), 1..6),
    ) {
        let (disk, written) = written(&lens);
        mutations.iter().for_each(|(file, mutation)| mutate(&disk, file, mutation));
        if let Some(found) = opens_or_refuses(&disk)? {
            let found: Vec<_> = found.into_iter().filter(|payload| !payload.is_empty()).collect();
            prop_assert!(written.starts_with(&found), "{} is no prefix", found.len());
        }
    }

    #[test]
    fn arbitrary_files_are_opened_or_refused(
        files in prop::collection::vec((0u64..30, prop::collection::vec(any::<u8>(), 0..700)), 0..4),
        head in prop::option::of(prop::collection::vec(any::<u8>(), 0..40)),
        headers in any::<bool>(),
    ) {
        let disk = Disk::default();
        for (first, mut content) in files {
            // Behind a good header the reader gets further.
            if headers && content.len() > 24 {
                let header = written(&[0]).0.0.lock().unwrap().files["00000000000000000001.wal"].current[..24].to_vec();
                content[..24].copy_from_slice(&header);
            }
            let file = File { durable: content.clone(), current: content };
            disk.0.lock().unwrap().files.insert(format!("{first:020}.wal"), file);
        }
        if let Some(head) = head {
            let file = File { durable: head.clone(), current: head };
            disk.0.lock().unwrap().files.insert("HEAD".into(), file);
        }
        opens_or_refuses(&disk)?;
    }

    #[test]
    fn an_arbitrary_snapshot_is_refused(
        mut content in prop::collection::vec(any::<u8>(), 0..300),
        len in any::<u32>(),
        good_header in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::open(dir.path().to_owned()).unwrap();
        snapshots.create(7).unwrap().finish().unwrap();
        let path = snapshots.newest().unwrap().unwrap();
        if good_header && content.len() >= 48 {
            content[..24].copy_from_slice(&std::fs::read(&path).unwrap()[..24]);
            // A length that no memory holds.
            content[28..32].copy_from_slice(&len.to_le_bytes());
        }
        std::fs::write(&path, &content).unwrap();
        let loaded = snapshots.load(|_| Ok(()));
        prop_assert!(loaded.is_err());
    }
}
