//! Data of a newer version: it is refused with an error that says so, and `mem_etcd repair`
//! does not touch it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use data_dir::Identity;
use etcdpb::rpc::PutRequest;
use futures_executor::block_on;
use mvcc::Command;
use pipeline::{ClientId, OpenError, Pipeline, PipelineOptions, Repair, check};
use wal::{Log, LogOptions, OsMedium};

const IDENTITY: Identity = Identity { cluster_id: 1, member_id: 2 };
/// An effect with a tag that no version has: see the table in `mvcc::Effect`.
const UNKNOWN_TAG: &[u8] = &[99, 1, 2, 3];
/// The effect "opened" with an unknown flag.
const UNKNOWN_FLAG: &[u8] = &[9, 4, 0];
/// The effect "alarm raised" with an unknown kind.
const UNKNOWN_ALARM: &[u8] = &[20, 9, 1];

fn open(dir: &Path) -> Result<Pipeline, OpenError> {
    let options = PipelineOptions { data_dir: dir.to_owned(), ..PipelineOptions::default() };
    Pipeline::open(&options, IDENTITY)
}

/// Creates a data directory with one key, and appends `payload` to its log.
fn directory_with(payload: &[u8]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = open(dir.path()).unwrap();
    let put = PutRequest { key: "key".into(), value: "value".into(), ..Default::default() };
    block_on(pipeline.propose(ClientId(0), Command::Put(put), 0)).unwrap();
    drop(pipeline);
    let medium = OsMedium::new(dir.path().join("wal")).unwrap();
    let options = LogOptions { segment_bytes: 1 << 20 };
    let (mut log, _) = Log::open(medium, options, 0, |_| Ok(())).unwrap();
    log.append(payload).unwrap();
    log.append(&[]).unwrap();
    log.sync().unwrap();
    dir
}

/// Returns the content of all files below `dir`.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap()) {
        match entry.file_type().unwrap().is_dir() {
            true => files.extend(self::files(&entry.path())),
            false => drop(files.insert(entry.path(), fs::read(entry.path()).unwrap())),
        }
    }
    files
}

/// Checks that the server, `check` and `repair` refuse `dir`, and that they change nothing.
fn assert_refused_as_newer(dir: &Path, what: &str) {
    let before = files(dir);
    let plan = Repair::plan(dir, None, b"boot");
    let errors = [
        ("repair", plan.err()),
        ("check", check(dir, None, b"boot").err()),
        ("open", open(dir).err()),
    ];
    for (action, error) in errors {
        let error = error.unwrap_or_else(|| panic!("{action} accepted {what}")).to_string();
        assert!(error.contains("written by a newer version"), "{action}, {what}: {error}");
        assert!(!error.contains("mem_etcd repair"), "{action}, {what}: {error}");
    }
    assert_eq!(files(dir), before, "{what}: the files changed");
}

/// Records have checksums. So an unknown kind of effect is no damage.
#[test]
fn unknown_kinds_of_effects_are_refused() {
    let unknown = [("a tag", UNKNOWN_TAG), ("a flag", UNKNOWN_FLAG), ("an alarm", UNKNOWN_ALARM)];
    for (what, payload) in unknown {
        let dir = directory_with(payload);
        assert_refused_as_newer(dir.path(), what);
    }
}

/// A repair keeps what is before the damage. It refuses if a newer version wrote anything
/// after it.
#[test]
fn unknown_kinds_after_damage_are_not_discarded() {
    let dir = directory_with(UNKNOWN_TAG);
    let segment = dir.path().join("wal/00000000000000000001.wal");
    let mut content = fs::read(&segment).unwrap();
    // The checksum of the first record.
    content[24] ^= 1;
    fs::write(&segment, content).unwrap();
    let before = files(dir.path());
    let error = Repair::plan(dir.path(), None, b"boot").err().expect("the repair is refused");
    let error = error.to_string();
    assert!(error.contains("written by a newer version"), "unexpected error: {error}");
    assert_eq!(files(dir.path()), before);
}

/// A segment and an identity of a newer format are not reported as damage either.
#[test]
fn newer_formats_are_refused() {
    let dir = directory_with(b"");
    let segment = dir.path().join("wal/00000000000000000001.wal");
    let mut content = fs::read(&segment).unwrap();
    content[6] = 99;
    fs::write(&segment, content).unwrap();
    assert_refused_as_newer(dir.path(), "a segment");

    let dir = directory_with(b"");
    let identity = dir.path().join("IDENTITY");
    let text = fs::read_to_string(&identity).unwrap();
    let (_, rest) = text.split_once('\n').unwrap();
    fs::write(&identity, format!("format 99\n{rest}")).unwrap();
    assert_refused_as_newer(dir.path(), "an identity");
}
