//! Tests of the log on a disk that loses power, has no space left, or fails.

mod disk;

use disk::Disk;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use wal::{Error, Log, LogOptions, PayloadError, RecoveredLog};

fn options() -> LogOptions {
    LogOptions { segment_bytes: 512 }
}

fn open(disk: &Disk) -> Result<(Log, Vec<Vec<u8>>, RecoveredLog), Error> {
    open_after(disk, 0)
}

/// Opens the log with a snapshot that covers the records up to `covered`.
fn open_after(disk: &Disk, covered: u64) -> Result<(Log, Vec<Vec<u8>>, RecoveredLog), Error> {
    let mut payloads = Vec::new();
    let (log, recovered) = Log::open(disk.clone(), options(), covered, |payload| {
        payloads.push(payload.to_vec());
        Ok(())
    })?;
    Ok((log, payloads, recovered))
}

/// Returns the file names of the segments, oldest first.
fn segments(disk: &Disk) -> Vec<String> {
    let state = disk.0.lock().unwrap();
    state.files.keys().filter(|name| name.ends_with(".wal")).cloned().collect()
}

fn append(log: &mut Log, payload: &[u8]) -> Result<(), Error> {
    log.reserve(payload.len() as u64)?;
    log.append(payload)
}

#[derive(Clone, Debug)]
enum Step {
    /// Appends a payload of this size in bytes.
    Append(usize),
    Sync,
    /// Prepares the next segment, as the background thread does.
    Prepare,
    /// Updates `HEAD`, as the background thread does.
    UpdateHead,
    /// An fsync fails. The next process opens the log.
    FailedSync,
    /// Trims the log, as if a snapshot covered all records so far.
    Cover,
    /// Kills the process. The page cache survives.
    Kill,
    /// Cuts the power. The bits select the unsynced blocks that survive.
    PowerCut(Vec<bool>),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0usize..200).prop_map(Step::Append),
        1 => Just(Step::Append(2000)),
        4 => Just(Step::Sync),
        3 => Just(Step::Prepare),
        1 => Just(Step::UpdateHead),
        1 => Just(Step::FailedSync),
        1 => Just(Step::Cover),
        1 => Just(Step::Kill),
        2 => prop::collection::vec(any::<bool>(), 1..40).prop_map(Step::PowerCut),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 500,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/faults.seeds"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn recovery_returns_a_prefix_with_all_synced_records(
        steps in prop::collection::vec(step(), 1..60)
    ) {
        let disk = Disk::default();
        let (mut log, mut appended, _) = open(&disk).unwrap();
        let mut synced = 0;
        let mut covered = 0;
        let mut counter = 0u32;
        for step in &steps {
            let lost_power = match step {
                Step::Append(len) => {
                    counter += 1;
                    let payload: Vec<u8> =
                        counter.to_le_bytes().into_iter().cycle().take(*len).collect();
                    append(&mut log, &payload).unwrap();
                    appended.push(payload);
                    continue;
                }
                Step::Sync => {
                    log.sync().unwrap();
                    synced = appended.len();
                    continue;
                }
                Step::Cover => {
                    covered = appended.len();
                    prop_assert_eq!(log.last(), covered as u64);
                    log.trimmer().trim(log.last()).unwrap();
                    continue;
                }
                Step::Prepare => {
                    log.preparer().prepare().unwrap();
                    continue;
                }
                Step::UpdateHead => {
                    log.syncer().update_head().unwrap();
                    continue;
                }
                Step::FailedSync => {
                    disk.0.lock().unwrap().fail_next_sync = true;
                    let _ = log.sync();
                    disk.0.lock().unwrap().fail_next_sync = false;
                    false
                }
                Step::Kill => false,
                Step::PowerCut(bits) => {
                    let mut bits = bits.iter().cycle();
                    disk.cut_power(|| *bits.next().unwrap());
                    true
                }
            };
            drop(log);
            let (reopened, payloads, _) = open_after(&disk, covered as u64).unwrap();
            prop_assert!(
                appended[covered..].starts_with(&payloads),
                "the recovered payloads are not a prefix of the appended ones"
            );
            let required = if lost_power { synced.max(covered) } else { appended.len() };
            appended.truncate(covered + payloads.len());
            prop_assert!(
                appended.len() >= required,
                "recovered {} records; required: {required}",
                appended.len()
            );
            log = reopened;
            // Opening makes the recovered records durable.
            synced = appended.len();
        }
    }

    /// A flipped bit is either reported as damage or does not affect a synced record.
    #[test]
    fn damage_is_never_silent(lens in prop::collection::vec(1usize..120, 2..30), bit in any::<prop::sample::Index>()) {
        let disk = Disk::default();
        let (mut log, _, _) = open(&disk).unwrap();
        for len in &lens {
            append(&mut log, &vec![7; *len]).unwrap();
            log.sync().unwrap();
        }
        log.append_durability_proof().unwrap();
        drop(log);
        disk.flip_bit(bit.index(1 << 20));
        match open(&disk) {
            Err(Error::Corrupt { .. } | Error::NewerFormat { .. }) => {}
            Err(other) => prop_assert!(false, "unexpected error: {other}"),
            // The empty record that proves durability may itself be truncated.
            Ok((_, payloads, _)) => {
                let kept = payloads.iter().filter(|payload| !payload.is_empty()).count();
                prop_assert_eq!(kept, lens.len());
            }
        }
    }
}

/// A trimmed log without its snapshot is not treated as an empty log.
#[test]
fn a_gap_before_the_log_is_refused() {
    let disk = Disk::default();
    let (mut log, _, _) = open(&disk).unwrap();
    for _ in 0..20 {
        append(&mut log, &[1; 100]).unwrap();
    }
    log.trimmer().trim(log.last() - 1).unwrap();
    drop(log);
    assert!(matches!(open(&disk), Err(Error::Gap { covered: 0, .. })));
    assert!(open_after(&disk, 19).is_ok());
}

/// A log whose newest segment is missing is refused, although it looks like a shorter
/// log. The error names the segment.
#[test]
fn a_missing_newest_segment_is_detected() {
    let disk = Disk::default();
    let (mut log, _, _) = open(&disk).unwrap();
    for _ in 0..20 {
        append(&mut log, &[1; 100]).unwrap();
    }
    log.sync().unwrap();
    drop(log);
    let names = segments(&disk);
    assert!(names.len() > 2);
    for newest in names.iter().rev() {
        disk.0.lock().unwrap().files.remove(newest);
        let message = open(&disk).err().unwrap().to_string();
        assert!(message.contains(names.last().unwrap()), "unexpected error: {message}");
        assert!(message.contains("is missing, but HEAD names"), "unexpected error: {message}");
    }
}

/// A newest segment that contains only zeros is not treated as an empty segment.
#[test]
fn a_zeroed_newest_segment_is_detected() {
    let disk = Disk::default();
    let (mut log, _, _) = open(&disk).unwrap();
    append(&mut log, b"one").unwrap();
    log.sync().unwrap();
    drop(log);
    let name = segments(&disk).pop().unwrap();
    disk.0.lock().unwrap().files.get_mut(&name).unwrap().current.fill(0);
    assert!(matches!(open(&disk), Err(Error::Corrupt { offset: 0, .. })));
}

/// A newest segment that is shorter than it was is refused: the missing end may have
/// contained records.
#[test]
fn a_newest_segment_that_is_cut_off_is_detected() {
    let disk = Disk::default();
    let (mut log, _, _) = open(&disk).unwrap();
    for _ in 0..8 {
        append(&mut log, &[1; 100]).unwrap();
    }
    log.sync().unwrap();
    drop(log);
    let name = segments(&disk).pop().unwrap();
    for len in [400, 200, 24, 10, 0] {
        disk.0.lock().unwrap().files.get_mut(&name).unwrap().current.truncate(len);
        let error = open(&disk).err().unwrap_or_else(|| panic!("{len} bytes were accepted"));
        assert!(matches!(error, Error::Corrupt { .. }), "unexpected error: {error}");
        assert!(error.to_string().contains(&name), "unexpected error: {error}");
    }
}

/// Every open notes in `HEAD` what is durable. So the loss of these records is detected,
/// even if nothing follows them.
#[test]
fn a_zeroed_end_of_the_newest_segment_is_detected() {
    let disk = Disk::default();
    let (mut log, _, _) = open(&disk).unwrap();
    for _ in 0..3 {
        append(&mut log, &[1; 100]).unwrap();
    }
    drop(log);
    drop(open(&disk).unwrap());
    let name = segments(&disk).pop().unwrap();
    for start in [24 + 2 * 124, 24 + 124, 24] {
        disk.0.lock().unwrap().files.get_mut(&name).unwrap().current[start..].fill(0);
        let error = open(&disk).err().unwrap_or_else(|| panic!("zeros from {start} on"));
        assert!(matches!(error, Error::Corrupt { .. }), "unexpected error: {error}");
    }
}

/// A log of a version without `HEAD` can be read, and gets a `HEAD`. Its segments get no
/// more records, which its version could not read.
#[test]
fn a_log_of_format_1_is_read() {
    let disk = Disk::default();
    let (mut log, _, _) = open(&disk).unwrap();
    append(&mut log, b"one").unwrap();
    drop(log);
    disk.make_format_1();
    let old_segment = || disk.0.lock().unwrap().files["00000000000000000001.wal"].current.clone();
    let before = old_segment();
    let (mut log, payloads, _) = open(&disk).unwrap();
    assert_eq!(payloads, [b"one"]);
    append(&mut log, b"two").unwrap();
    drop(log);
    assert!(disk.0.lock().unwrap().files.contains_key("HEAD"));
    assert!(old_segment() == before, "the segment of format 1 changed");
    assert_eq!(segments(&disk).len(), 2);
    assert_eq!(open(&disk).unwrap().1, [b"one", b"two"]);
}

/// The newest segment of format 1 is replaced if it has no record.
#[test]
fn an_empty_segment_of_format_1_is_replaced() {
    let disk = Disk::default();
    let (mut log, _, _) = open(&disk).unwrap();
    log.reserve(1).unwrap();
    drop(log);
    disk.make_format_1();
    let (mut log, payloads, _) = open(&disk).unwrap();
    assert!(payloads.is_empty());
    append(&mut log, b"one").unwrap();
    // The name of the new segment and its header are durable together.
    disk.cut_power(|| true);
    drop(open(&disk).unwrap());
    assert_eq!(segments(&disk).len(), 1);
}

/// A log of the current version without `HEAD` is damaged.
#[test]
fn a_missing_head_is_detected() {
    let disk = Disk::default();
    let (mut log, _, _) = open(&disk).unwrap();
    append(&mut log, b"one").unwrap();
    drop(log);
    disk.0.lock().unwrap().files.remove("HEAD").unwrap();
    let error = open(&disk).err().unwrap().to_string();
    assert!(error.contains("HEAD is corrupt at offset 0: it is missing"), "{error}");
}

/// Records in the spare room of a full log are recovered. Appending works again when
/// there is space.
#[test]
fn a_full_log_has_spare_room() {
    let disk = Disk::default();
    let (mut log, _, _) = open(&disk).unwrap();
    assert!(
        matches!(log.append_spare(b"spare"), Err(Error::NoSpace { .. })),
        "a log without a segment has no spare room"
    );
    let mut appended = 0;
    disk.0.lock().unwrap().free_bytes = Some(600);
    while append(&mut log, &[1; 10]).is_ok() {
        appended += 1;
    }
    log.append_spare(b"spare").unwrap();
    while log.append_spare(b"spare").is_ok() {}
    disk.0.lock().unwrap().free_bytes = None;
    append(&mut log, b"more").unwrap();
    drop(log);
    let payloads = open(&disk).unwrap().1;
    assert!(payloads[appended..].len() >= 2);
    assert_eq!(payloads[appended], b"spare");
    assert_eq!(payloads.last().unwrap(), b"more");
}

/// Refused appends on a full disk do not take its free space, which a snapshot may need.
#[test]
fn refused_appends_leave_the_free_space_alone() {
    let disk = Disk::default();
    let (mut log, _, _) = open(&disk).unwrap();
    disk.0.lock().unwrap().free_bytes = Some(600);
    while append(&mut log, &[1; 10]).is_ok() {}
    // Returns how often a refused append has tried to create a file.
    let mut attempts = |disk: &Disk| {
        disk.0.lock().unwrap().slow_operations.clear();
        for _ in 0..100 {
            assert!(matches!(append(&mut log, &[1; 10]), Err(Error::NoSpace { .. })));
        }
        disk.0.lock().unwrap().slow_operations.len()
    };
    assert_eq!(attempts(&disk), 0);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert_eq!(attempts(&disk), 1, "it is tried again after a second");
    let claim = log.space_claim();
    claim.set(1000);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    disk.0.lock().unwrap().free_bytes = Some(1400);
    disk.0.lock().unwrap().slow_operations.clear();
    assert!(matches!(append(&mut log, &[1; 10]), Err(Error::NoSpace { .. })));
    assert_eq!(disk.0.lock().unwrap().slow_operations.len(), 0, "a snapshot needs the space");
    claim.set(0);
    append(&mut log, &[1; 10]).unwrap();
}

/// A sector of a segment that cannot be read is damage, never the end of the log. A repair
/// keeps the records before it, and those that the snapshot does not cover after it.
#[test]
fn a_sector_that_cannot_be_read_is_damage() {
    let disk = Disk::default();
    let options = LogOptions { segment_bytes: 32 << 10 };
    let (mut log, _) = Log::open(disk.clone(), options.clone(), 0, |_| Ok(())).unwrap();
    for number in 1..=10 {
        append(&mut log, &[number; 1500]).unwrap();
        log.sync().unwrap();
    }
    log.settle_head().unwrap();
    drop(log);
    let name = segments(&disk)[0].clone();
    // The header and records, records in the middle, and space without records.
    for (start, before) in [(0, 0), (4096, 2), (8192, 5), (20_000, 10)] {
        let file = |state: &mut disk::DiskState| {
            state.files.get_mut(&name).unwrap().unreadable = start..start + 50;
        };
        file(&mut disk.0.lock().unwrap());
        let refused = Log::open(disk.clone(), options.clone(), 0, |_| Ok(())).err().unwrap();
        let checked = wal::check(&disk, 0, |_| Ok(())).err().unwrap();
        for error in [refused, checked].map(|error| error.to_string()) {
            let offset = start / 4096 * 4096;
            let expected = format!("{name} is corrupt at offset {offset}: it cannot be read");
            assert!(error.contains(&expected), "{error}");
            assert!(error.contains("mem_etcd repair"), "{error}");
        }
        let mut kept = Vec::new();
        let read = wal::read_records(&disk, 0, |payload| {
            kept.push(payload[0]);
            Ok(())
        });
        assert!(matches!(read, Err(Error::Corrupt { .. })));
        assert_eq!(kept, (1..=before).collect::<Vec<u8>>(), "unreadable from {start}");
        let highest = wal::salvage(&disk, |_| Ok(())).unwrap();
        assert_eq!(highest, if start == 0 { 0 } else { 10 }, "unreadable from {start}");
    }
    disk.0.lock().unwrap().files.get_mut(&name).unwrap().unreadable = 4096..4100;
    let mut kept = Vec::new();
    let records = wal::read_records(&disk, 7, |payload| {
        kept.push(payload[0]);
        Ok(())
    });
    let covered_damage = records.unwrap().covered_damage.unwrap().to_string();
    assert!(covered_damage.contains("cannot be read"), "{covered_damage}");
    assert_eq!(kept, [8, 9, 10]);
    disk.0.lock().unwrap().files.get_mut("HEAD").unwrap().unreadable = 0..1;
    let error = Log::open(disk.clone(), options, 0, |_| Ok(())).err().unwrap().to_string();
    assert!(error.contains("HEAD is corrupt at offset 0: it cannot be read"), "{error}");
}

/// A read error makes the open fail and changes nothing.
#[test]
fn a_read_error_is_reported() {
    let disk = Disk::default();
    let (mut log, _, _) = open(&disk).unwrap();
    append(&mut log, b"one").unwrap();
    drop(log);
    disk.0.lock().unwrap().fail_next_read = true;
    assert!(matches!(open(&disk), Err(Error::Io { .. })));
    assert_eq!(open(&disk).unwrap().1, [b"one"]);
}

/// A failure to create a segment does not poison the log: the append can be tried again.
#[test]
fn a_segment_that_cannot_be_created_is_retried() {
    let disk = Disk::default();
    let (mut log, _, _) = open(&disk).unwrap();
    append(&mut log, &[1; 100]).unwrap();
    disk.0.lock().unwrap().fail_next_create = Some(std::io::ErrorKind::PermissionDenied);
    assert!(matches!(append(&mut log, &[2; 1000]), Err(Error::Io { .. })));
    append(&mut log, &[2; 1000]).unwrap();
    drop(log);
    assert_eq!(open(&disk).unwrap().1, [vec![1; 100], vec![2; 1000]]);
}

/// The search for a record that proves durability does not compute a checksum at every
/// offset, even if the content looks plausible at many offsets.
#[test]
fn a_large_torn_record_is_truncated_quickly() {
    let disk = Disk::default();
    let (mut log, _, _) = open(&disk).unwrap();
    append(&mut log, b"kept").unwrap();
    log.sync().unwrap();
    append(&mut log, &[0x10, 0, 0x10, 0].repeat(1 << 20)).unwrap();
    drop(log);
    let torn = segments(&disk).pop().unwrap();
    disk.0.lock().unwrap().files.get_mut(&torn).unwrap().current[200] ^= 1;
    assert_eq!(open(&disk).unwrap().1, [b"kept"]);
}

/// After a failed fsync the page cache has records that are not on the disk, and the next
/// fsync succeeds without writing them. Once a log is open, its records are durable all the
/// same.
#[test]
fn records_that_a_failed_fsync_dropped_are_written_again() {
    let disk = Disk::default();
    let (mut log, _, _) = open(&disk).unwrap();
    append(&mut log, b"synced").unwrap();
    log.sync().unwrap();
    append(&mut log, &[1; 300]).unwrap();
    append(&mut log, &[2; 300]).unwrap();
    disk.0.lock().unwrap().fail_next_sync = true;
    assert!(log.sync().is_err());
    drop(log);
    let (log, recovered, _) = open(&disk).unwrap();
    assert_eq!(recovered, [b"synced".to_vec(), vec![1; 300], vec![2; 300]]);
    assert_eq!(log.durable(), 3);
    drop(log);
    disk.drop_page_cache();
    assert_eq!(open(&disk).unwrap().1, recovered, "records that the last open returned");
}

/// The same if an fsync fails while the log is opened.
#[test]
fn records_that_a_failed_open_dropped_are_written_again() {
    let disk = Disk::default();
    let (mut log, _, _) = open(&disk).unwrap();
    append(&mut log, b"one").unwrap();
    append(&mut log, &[1; 600]).unwrap();
    drop(log);
    disk.0.lock().unwrap().fail_next_sync = true;
    assert!(matches!(open(&disk), Err(Error::Io { .. })));
    let (_, recovered, report) = open(&disk).unwrap();
    assert_eq!(recovered, [b"one".to_vec(), vec![1; 600]]);
    assert!(report.failed_before, "an fsync failed, so unsynced records may be missing");
    disk.drop_page_cache();
    assert_eq!(open(&disk).unwrap().1, recovered, "records that the last open returned");
}

/// A failed fsync is noted without waiting for the disk, of which other fsyncs may fail too.
#[test]
fn a_failure_is_noted_although_no_file_can_be_synced() {
    let disk = Disk::default();
    let (mut log, _, _) = open(&disk).unwrap();
    append(&mut log, b"one").unwrap();
    {
        let mut state = disk.0.lock().unwrap();
        state.fail_next_sync = true;
        state.fail_next_replace = true;
    }
    assert!(log.sync().is_err());
    drop(log);
    disk.0.lock().unwrap().fail_next_replace = false;
    assert!(open(&disk).unwrap().2.failed_before);
}

/// The first record of a new segment that replaces an empty one of the same size.
#[test]
fn a_record_in_a_replaced_segment_survives() {
    let disk = Disk::default();
    let (mut log, _, _) = open(&disk).unwrap();
    log.reserve(1).unwrap();
    drop(log);
    disk.make_format_1();
    let (mut log, _, _) = open(&disk).unwrap();
    log.append(b"one").unwrap();
    log.sync().unwrap();
    drop(log);
    disk.cut_power(|| false);
    assert_eq!(open(&disk).unwrap().1, [b"one"]);
}

/// A start overwrites an unfinished write with zeros, and its fsync fails. The next start
/// reads these zeros, but they are not on the disk.
#[test]
fn an_unfinished_write_does_not_come_back() {
    let disk = Disk::default();
    let (mut log, _, _) = open(&disk).unwrap();
    log.append(&[0xa; 16]).unwrap();
    log.sync().unwrap();
    log.append(&[1; 40]).unwrap();
    log.append(&[2; 40]).unwrap();
    drop(log);
    // The second record is lost, the third one is on the disk: they start at 64 and 128.
    let mut block = 0;
    disk.cut_power(|| {
        block += 1;
        block > 1
    });
    disk.0.lock().unwrap().fail_next_sync = true;
    assert!(open(&disk).is_err());
    let (mut log, recovered, _) = open(&disk).unwrap();
    assert_eq!(recovered, [vec![0xa; 16]]);
    log.append(&[7; 40]).unwrap();
    log.sync().unwrap();
    drop(log);
    disk.cut_power(|| true);
    assert_eq!(open(&disk).unwrap().1, [vec![0xa; 16], vec![7; 40]]);
}

#[test]
fn a_failed_sync_poisons_the_log() {
    let disk = Disk::default();
    let (mut log, _, _) = open(&disk).unwrap();
    append(&mut log, b"one").unwrap();
    disk.0.lock().unwrap().fail_next_sync = true;
    assert!(matches!(log.sync(), Err(Error::Io { .. })));
    assert!(matches!(log.sync(), Err(Error::Poisoned)));
    assert!(matches!(append(&mut log, b"two"), Err(Error::Poisoned)));
    assert!(matches!(log.syncer().sync(), Err(Error::Poisoned)));
}

#[test]
fn a_short_write_poisons_the_log_and_is_truncated() {
    let disk = Disk::default();
    let (mut log, _, _) = open(&disk).unwrap();
    append(&mut log, b"one").unwrap();
    disk.0.lock().unwrap().fail_next_write_after = Some(10);
    assert!(matches!(append(&mut log, b"two"), Err(Error::Io { .. })));
    assert!(matches!(append(&mut log, b"three"), Err(Error::Poisoned)));
    drop(log);
    let (mut log, payloads, recovered) = open(&disk).unwrap();
    assert_eq!(payloads, [b"one"]);
    assert!(recovered.unfinished_write.is_some());
    append(&mut log, b"four").unwrap();
    drop(log);
    assert_eq!(open(&disk).unwrap().1, [&b"one"[..], b"four"]);
}

#[test]
fn a_full_disk_refuses_appends_until_there_is_space() {
    let disk = Disk::default();
    disk.0.lock().unwrap().free_bytes = Some(1024);
    let (mut log, _, _) = open(&disk).unwrap();
    let mut appended = Vec::new();
    let error = loop {
        match append(&mut log, &[1; 100]) {
            Ok(()) => appended.push(vec![1; 100]),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::NoSpace { .. }), "unexpected error: {error}");
    disk.0.lock().unwrap().free_bytes = None;
    append(&mut log, &[2; 100]).unwrap();
    appended.push(vec![2; 100]);
    drop(log);
    assert_eq!(open(&disk).unwrap().1, appended);
}

/// If blocks are copied on write, `HEAD` may have no space to name a new segment. Then the log
/// accepts no more records, until there is space. What was appended stays.
#[test]
fn a_head_without_space_refuses_appends_until_there_is_space() {
    let disk = Disk::default();
    let (mut log, _, _) = open(&disk).unwrap();
    append(&mut log, &[1; 300]).unwrap();
    log.sync().unwrap();
    set_free_bytes(&disk, Some(512));
    append(&mut log, &[2; 300]).unwrap();
    for _ in 0..2 {
        assert!(matches!(log.sync(), Err(Error::NoSpace { .. })));
        assert!(matches!(log.syncer().sync(), Err(Error::NoSpace { .. })));
        assert_eq!(log.durable(), 1, "HEAD does not name the segment of record 2");
        assert!(log.reserve_waits(1), "the log tries again to write HEAD");
        assert!(matches!(append(&mut log, &[3; 10]), Err(Error::NoSpace { .. })));
    }
    assert!(!log.is_poisoned());
    set_free_bytes(&disk, None);
    append(&mut log, &[3; 10]).unwrap();
    assert!(!log.reserve_waits(1));
    log.sync().unwrap();
    assert_eq!(log.durable(), 3);
    drop(log);
    disk.cut_power(|| false);
    assert_eq!(open(&disk).unwrap().1, [vec![1; 300], vec![2; 300], vec![3; 10]]);
}

/// After [`Log::reserve_sync`], the sync of the next record needs no space.
#[test]
fn a_sync_after_its_reservation_needs_no_space() {
    let disk = Disk::default();
    let (mut log, _, _) = open(&disk).unwrap();
    append(&mut log, &[1; 300]).unwrap();
    log.sync().unwrap();
    set_free_bytes(&disk, Some(512));
    log.reserve(300).unwrap();
    assert!(matches!(log.reserve_sync(), Err(Error::NoSpace { .. })));
    set_free_bytes(&disk, None);
    log.reserve(300).unwrap();
    log.reserve_sync().unwrap();
    log.append(&[2; 300]).unwrap();
    set_free_bytes(&disk, Some(0));
    log.sync().unwrap();
    assert_eq!(log.durable(), 2);
}

/// Sets the space of a disk that copies blocks on write.
fn set_free_bytes(disk: &Disk, bytes: Option<u64>) {
    let mut state = disk.0.lock().unwrap();
    (state.free_bytes, state.overwrites_need_space) = (bytes, true);
}

#[test]
fn a_record_that_the_visitor_refuses_is_reported_with_its_offset() {
    let disk = Disk::default();
    let (mut log, _, _) = open(&disk).unwrap();
    append(&mut log, b"good").unwrap();
    append(&mut log, b"bad").unwrap();
    drop(log);
    let refused = Log::open(disk, options(), 0, |payload| match payload {
        b"bad" => Err(PayloadError::Damaged("unknown effect".into())),
        _ => Ok(()),
    });
    let message = refused.err().unwrap().to_string();
    assert!(
        message.contains("00000000000000000001.wal is corrupt at offset 52"),
        "unexpected error: {message}"
    );
    assert!(message.contains("unknown effect"), "unexpected error: {message}");
}
