//! Logs with arbitrary damage. Reading one never panics, always ends, allocates no more
//! memory than the size of the files, and either returns a prefix of the written payloads
//! or fails. `FUZZ_CASES` sets the number of cases.

mod disk;

use disk::{Disk, File};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use wal::{Error, Log, LogOptions, RecoveredLog, check, salvage};

fn cases() -> u32 {
    std::env::var("FUZZ_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(400)
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: cases(),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/fuzz.seeds"))),
        ..ProptestConfig::default()
    }
}

type Index = prop::sample::Index;

#[derive(Clone, Debug)]
enum Mutation {
    /// Sets the byte at an offset.
    Set(Index, u8),
    /// Flips a bit of the byte at an offset.
    Flip(Index, u8),
    /// Replaces all bytes from an offset on.
    ReplaceEnd(Index, Vec<u8>),
    /// Copies a number of bytes from the first offset to the second one.
    Copy(Index, Index, usize),
    /// Copies a number of bytes from another file, at the same offset.
    CopyFrom(Index, Index, usize),
    /// Truncates the file to a length.
    Truncate(Index),
    /// Appends bytes to the file.
    Extend(Vec<u8>),
    /// Removes the file.
    Remove,
    /// Swaps the content with another file.
    Swap(Index),
    /// Renames the file to a segment with this first sequence.
    Rename(u64),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let at = any::<Index>;
    let bytes = || prop::collection::vec(any::<u8>(), 0..200);
    prop_oneof![
        4 => (at(), any::<u8>()).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        4 => (at(), 0u8..8).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
        2 => (at(), bytes()).prop_map(|(at, bytes)| Mutation::ReplaceEnd(at, bytes)),
        2 => (at(), at(), 1usize..600).prop_map(|(a, b, len)| Mutation::Copy(a, b, len)),
        2 => (at(), at(), 1usize..600).prop_map(|(a, b, len)| Mutation::CopyFrom(a, b, len)),
        1 => at().prop_map(Mutation::Truncate),
        1 => bytes().prop_map(Mutation::Extend),
        1 => Just(Mutation::Remove),
        1 => at().prop_map(Mutation::Swap),
        1 => prop_oneof![any::<u64>(), 0u64..40].prop_map(Mutation::Rename),
    ]
}

/// Writes a log of several segments, as a process leaves it. Returns the disk and the
/// payloads.
fn write_log(lens: &[usize]) -> (Disk, Vec<Vec<u8>>) {
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

fn open(disk: &Disk, payloads: &mut Vec<Vec<u8>>) -> Result<(Log, RecoveredLog), Error> {
    Log::open(disk.clone(), LogOptions { segment_bytes: 512 }, 0, |payload| {
        payloads.push(payload.to_vec());
        Ok(())
    })
}

/// Applies `mutation` to one file of the disk.
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
        Mutation::ReplaceEnd(at, bytes) => {
            content.splice(within(at).., bytes.iter().copied());
        }
        Mutation::Copy(from, to, count) => {
            let (from, to) = (within(from), within(to));
            content.copy_within(from..from + (*count).min(len - from.max(to)), to);
        }
        Mutation::CopyFrom(other, at, count) => {
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
        *file = File::durable(content);
    }
}

/// Opens the log. If that succeeds, appends a record and opens the log again. Returns the
/// payloads that the first open recovered, or `None` if it failed.
fn open_and_reopen(disk: &Disk) -> Result<Option<Vec<Vec<u8>>>, TestCaseError> {
    let checked = check(disk, 0, |_| Ok(()));
    // It fails only for segments of a newer format.
    let salvaged = salvage(disk, |_| Ok(()));
    let refused_or_salvaged = matches!(salvaged, Ok(_) | Err(Error::NewerFormat { .. }));
    prop_assert!(refused_or_salvaged);
    let mut found = Vec::new();
    let log = open(disk, &mut found);
    prop_assert_eq!(checked.is_ok(), log.is_ok(), "check and open must both succeed or both fail");
    let Ok((mut log, _)) = log else { return Ok(None) };
    log.append(b"appended").unwrap();
    drop(log);
    let mut again = Vec::new();
    open(disk, &mut again).unwrap();
    prop_assert_eq!(again.pop().unwrap(), b"appended");
    prop_assert_eq!(&again, &found);
    Ok(Some(found))
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_mutated_log_yields_a_prefix_or_is_refused(
        lens in prop::collection::vec(0usize..200, 1..25),
        mutations in prop::collection::vec((any::<Index>(), mutation()), 1..6),
    ) {
        let (disk, written) = write_log(&lens);
        mutations.iter().for_each(|(file, mutation)| mutate(&disk, file, mutation));
        if let Some(found) = open_and_reopen(&disk)? {
            let found: Vec<_> = found.into_iter().filter(|payload| !payload.is_empty()).collect();
            prop_assert!(
                written.starts_with(&found),
                "the {} recovered payloads are not a prefix of the written ones",
                found.len()
            );
        }
    }

    #[test]
    fn arbitrary_files_are_opened_or_refused(
        files in prop::collection::vec((0u64..30, prop::collection::vec(any::<u8>(), 0..700)), 0..4),
        head in prop::option::of(prop::collection::vec(any::<u8>(), 0..40)),
        valid_headers in any::<bool>(),
    ) {
        let disk = Disk::default();
        for (first, mut content) in files {
            // With a valid header, the reader also reads the records.
            if valid_headers && content.len() > 24 {
                let (with_header, _) = write_log(&[0]);
                let state = with_header.0.lock().unwrap();
                let segment = &state.files["00000000000000000001.wal"];
                content[..24].copy_from_slice(&segment.current[..24]);
            }
            let file = File::durable(content);
            disk.0.lock().unwrap().files.insert(format!("{first:020}.wal"), file);
        }
        if let Some(head) = head {
            let file = File::durable(head);
            disk.0.lock().unwrap().files.insert("HEAD".into(), file);
        }
        open_and_reopen(&disk)?;
    }
}
