//! Values that look like records, in a log that a crash has damaged. A client chooses the values,
//! so they must not make the next start take long.

mod disk;

use disk::Disk;
use wal::{Log, LogOptions};

const SEGMENT_BYTES: usize = 12 << 20;
/// Size of the file header, and of a record without its payload.
const HEADER_BYTES: usize = 24;
/// The records before the damage are 1 to `INTACT`.
const INTACT: u64 = 3;
const SNAPSHOT_COVERS: u64 = INTACT + 2;

/// Returns a log that ends with an unfinished write of a value: every 24 bytes look like the
/// record `sequence` with a payload of half of the segment, which proves that the first missing
/// record was durable. Computing all their checksums from the bytes means reading more
/// than 10¹² bytes, which takes minutes.
fn forged_log(sequence: u64) -> Disk {
    let disk = Disk::default();
    let options = LogOptions { segment_bytes: SEGMENT_BYTES as u64 };
    let (mut log, _) = Log::open(disk.clone(), options, 0, |_| Ok(())).unwrap();
    for _ in 0..INTACT {
        log.reserve(0).unwrap();
        log.append(b"").unwrap();
    }
    log.sync().unwrap();
    drop(log);
    let mut forged = vec![7; 4];
    forged.extend((SEGMENT_BYTES as u32 / 2).to_le_bytes());
    forged.extend(sequence.to_le_bytes());
    forged.extend((INTACT + 1).to_le_bytes());
    let mut state = disk.0.lock().unwrap();
    let mut files = state.files.iter_mut().filter(|(name, _)| name.ends_with(".wal"));
    let (_, file) = files.next().unwrap();
    // The first record after the intact ones has no header: its block was not written.
    let start = HEADER_BYTES * (INTACT as usize + 2);
    for chunk in file.current[start..].chunks_exact_mut(HEADER_BYTES) {
        chunk.copy_from_slice(&forged);
    }
    drop(state);
    disk
}

#[test]
fn a_start_takes_no_longer() {
    let disk = forged_log(INTACT + 2);
    let options = LogOptions { segment_bytes: SEGMENT_BYTES as u64 };
    let (_, recovered) = Log::open(disk, options, 0, |_| Ok(())).unwrap();
    assert_eq!(recovered.records, INTACT);
    let offset = HEADER_BYTES as u64 * (INTACT + 1);
    assert_eq!(recovered.unfinished_write.unwrap().offset, offset);
}

#[test]
fn a_repair_takes_no_longer() {
    let disk = forged_log(SNAPSHOT_COVERS + 1);
    assert_eq!(wal::salvage(&disk, |_| Ok(())).unwrap(), INTACT);
    let records = wal::read_records(&disk, SNAPSHOT_COVERS, |_| Ok(())).unwrap();
    assert_eq!(records.next, INTACT + 1);
}
