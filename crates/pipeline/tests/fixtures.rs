//! Data directories that earlier versions wrote. Each must open with exactly its old
//! content.
//!
//! A fixture is a directory `tests/fixtures/vFORMAT/NAME`. Its subdirectory `data` is the
//! data directory, and its file `holds.txt` describes the content. Existing fixtures never
//! change. For a change of the file format, add a fixture with one of the scripts in this
//! file (`log`, `snapshot`, `leases`, `modes`, `users`, `users-snapshot`):
//!
//! ```sh
//! NEW_FIXTURE=NAME=SCRIPT cargo test -p pipeline --test fixtures write -- --ignored
//! ```

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use data_dir::Identity;
use etcdpb::authpb::Permission;
use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::{DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest};
use files::framing::FORMAT;
use futures_executor::block_on;
use mvcc::{Command, Reply};
use pipeline::{ClientId, Pipeline, PipelineOptions, WalMode};

const IDENTITY: Identity = Identity { cluster_id: 0xc1, member_id: 0x3e };

/// Returns the directory of the fixtures of a format.
fn fixtures(format: u16) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/v{format}"))
}

#[test]
fn every_fixture_opens_with_its_content() {
    let mut names = Vec::new();
    // No released version wrote format 2.
    for format in [1, 3, FORMAT] {
        let directory = fixtures(format);
        let found: Vec<_> = fs::read_dir(&directory).unwrap().map(|e| e.unwrap().path()).collect();
        assert!(found.len() >= 2, "{} fixtures in {}", found.len(), directory.display());
        names.extend(found);
    }
    names.sort();
    for fixture in names {
        let copy = tempfile::tempdir().unwrap();
        copy_all(&fixture.join("data"), copy.path());
        let expected = fs::read_to_string(fixture.join("holds.txt")).unwrap();
        // At the second start, the current version has written to the directory.
        for round in ["first", "second"] {
            let pipeline = open(copy.path());
            let found = describe_content(&pipeline);
            assert_eq!(found, expected, "{} at the {round} start", fixture.display());
        }
    }
}

/// An upgrade needs no space: on a full disk, the store opens and can be read.
#[test]
fn directories_of_format_1_open_on_a_full_disk() {
    for fixture in fs::read_dir(fixtures(1)).unwrap() {
        let fixture = fixture.unwrap().path();
        let copy = tempfile::tempdir().unwrap();
        copy_all(&fixture.join("data"), copy.path());
        for name in ["IDENTITY.new", "MANIFEST.new"] {
            std::os::unix::fs::symlink("/dev/full", copy.path().join(name)).unwrap();
        }
        let expected = fs::read_to_string(fixture.join("holds.txt")).unwrap();
        assert_eq!(describe_content(&open(copy.path())), expected, "{}", fixture.display());
        let identity = fs::read_to_string(copy.path().join("IDENTITY")).unwrap();
        assert!(identity.starts_with(&format!("format {FORMAT}\n")), "{identity}");
        assert!(!identity.contains("crc32c"), "the disk was not full");
        assert_eq!(describe_content(&open(copy.path())), expected, "{}", fixture.display());
    }
}

fn options(data_dir: &Path) -> PipelineOptions {
    PipelineOptions {
        data_dir: data_dir.to_owned(),
        snapshot_log_bytes: 4000,
        ..PipelineOptions::default()
    }
}

fn open(data_dir: &Path) -> Pipeline {
    Pipeline::open(&options(data_dir), Identity { cluster_id: 1, member_id: 1 }).unwrap()
}

/// Returns everything that a client can read, as text.
fn describe_content(pipeline: &Pipeline) -> String {
    let mut text = String::new();
    let status = pipeline.status();
    let (revision, compacted) = (status.revision, status.compacted);
    let identity = pipeline.identity();
    writeln!(text, "cluster {:x} member {:x}", identity.cluster_id, identity.member_id).unwrap();
    writeln!(text, "revision {revision} compacted {compacted}").unwrap();
    for (id, ttl) in pipeline.lease_ttls_unless(&|_| false).unwrap() {
        let keys = pipeline.lease_keys_unless(id, &|_| false).unwrap();
        writeln!(text, "lease {id} ttl {ttl} keys {keys:?}").unwrap();
    }
    for change in auth::Export::new(pipeline.auth()) {
        writeln!(text, "auth {} {:?}", change.revision, change.kind).unwrap();
    }
    // After a crash there is a wide gap of revisions without changes. Describe the last
    // 1,000.
    let first = compacted.max(1).max(revision - 1000);
    for at in first..=revision {
        writeln!(text, "at {at}").unwrap();
        let all = RangeRequest {
            key: vec![0].into(),
            range_end: vec![0].into(),
            revision: at,
            ..Default::default()
        };
        for kv in pipeline.range(&all).unwrap().finish().kvs {
            let (key, value) = (kv.key().escape_ascii(), kv.value().escape_ascii());
            let (create, modified) = (kv.create_revision(), kv.mod_revision());
            let (version, lease) = (kv.version(), kv.lease());
            writeln!(text, "  {key}={value} {create} {modified} {version} {lease}").unwrap();
        }
    }
    text
}

#[test]
#[ignore = "writes a new fixture"]
fn write() {
    let fixture_spec = std::env::var("NEW_FIXTURE")
        .expect("the environment variable NEW_FIXTURE=NAME=SCRIPT is set");
    let (name, script) =
        fixture_spec.split_once('=').expect("NEW_FIXTURE has the form NAME=SCRIPT");
    let fixture = fixtures(FORMAT).join(name);
    assert!(!fixture.exists(), "fixture {name} exists; existing fixtures must not change");
    let work = tempfile::tempdir().unwrap();
    let wal_mode_prefixes = match script {
        "modes" => vec![(b"n/".to_vec(), WalMode::None), (b"f/".to_vec(), WalMode::Fsync)],
        _ => Vec::new(),
    };
    let options = PipelineOptions { wal_mode_prefixes, ..options(work.path()) };
    let pipeline = Pipeline::open(&options, IDENTITY).unwrap();
    let run = Script(&pipeline);
    match script {
        "log" => run.log(),
        "snapshot" => run.snapshot(&work.path().join("snap")),
        "leases" => run.leases(),
        "modes" => run.modes(),
        "users" => run.users(),
        "users-snapshot" => {
            run.users();
            run.snapshot(&work.path().join("snap"));
        }
        other => panic!("unknown script {other}"),
    }
    // The script `modes` simulates a crash; the others shut down cleanly.
    if script != "modes" {
        pipeline.shutdown();
    }
    copy_all(work.path(), &fixture.join("data"));
    let copy = tempfile::tempdir().unwrap();
    copy_all(&fixture.join("data"), copy.path());
    fs::write(fixture.join("holds.txt"), describe_content(&open(copy.path()))).unwrap();
}

/// The scripts: each executes the commands of a fixture.
struct Script<'a>(&'a Pipeline);

impl Script<'_> {
    fn run(&self, command: Command) -> Reply {
        block_on(self.0.propose(ClientId(0), command, 0)).unwrap()
    }

    fn put(&self, key: &str, value: &[u8], lease: i64) {
        self.run(Command::Put(put(key, value, lease)));
    }

    /// Executes commands with many kinds of effects, a compaction after which some
    /// history stays readable, and keys and values with unusual bytes.
    fn log(&self) {
        self.run(Command::LeaseGrant { id: 7, ttl_seconds: 1000 });
        self.run(Command::LeaseGrant { id: -8, ttl_seconds: 50 });
        self.put("a", b"1", 0);
        self.put("a", b"2", 7);
        self.put("b\0\u{ff}", &[0, 1, 255, b'\n'], 7);
        self.put("c", b"", -8);
        self.put("d", b"gone", 0);
        let delete = DeleteRangeRequest { key: b"d".to_vec().into(), ..Default::default() };
        self.run(Command::DeleteRange(delete));
        let op = |key, value| {
            let request = Some(Request::RequestPut(put(key, value, 0)));
            RequestOp { request }
        };
        let success = vec![op("e", b"left"), op("f", b"right")];
        self.run(Command::Txn(TxnRequest { success, ..Default::default() }));
        self.run(Command::LeaseRevoke { id: -8 });
        self.run(Command::Compact { revision: 4 });
        self.put("a", b"3", 7);
        self.put("d", b"again", 0);
    }

    /// Grants leases, of which one is renewed and one is revoked after a part of the TTL.
    fn leases(&self) {
        for id in 1..=3 {
            self.run(Command::LeaseGrant { id, ttl_seconds: 100 * id });
            self.put(&format!("key{id}"), b"leased", id);
        }
        std::thread::sleep(std::time::Duration::from_millis(1200));
        block_on(self.0.lease_renew(2)).unwrap().unwrap();
        self.run(Command::LeaseRevoke { id: 3 });
    }

    /// Adds, changes and deletes users and roles, and enables authentication.
    fn users(&self) {
        let run = |command| drop(self.run(Command::Auth(command)));
        for name in ["root", "a", "gone"] {
            let (name, password_hash) = (name.into(), b"$2a$04$hash".to_vec());
            run(auth::Command::UserAdd { name, password_hash, no_password: false });
        }
        let (name, password_hash) = ("certificate".into(), Vec::new());
        run(auth::Command::UserAdd { name, password_hash, no_password: true });
        for name in ["r", "deleted"] {
            run(auth::Command::RoleAdd { name: name.into() });
        }
        for (kind, key, end) in [(0, "a", "b\u{ff}"), (1, "b", ""), (2, "c", "\0")] {
            let (key, range_end) = (key.into(), end.into());
            let permission = Some(Permission { perm_type: kind, key, range_end });
            run(auth::Command::RoleGrantPermission { role: "r".into(), permission });
        }
        for (user, role) in [("root", "root"), ("a", "r"), ("a", "deleted"), ("certificate", "r")] {
            run(auth::Command::UserGrantRole { user: user.into(), role: role.into() });
        }
        run(auth::Command::UserDelete { name: "gone".into() });
        run(auth::Command::RoleDelete { name: "deleted".into() });
        run(auth::Command::Enable);
        run(auth::Command::Disable);
        run(auth::Command::Enable);
    }

    /// Writes unlogged keys, alone and in a transaction together with logged keys.
    fn modes(&self) {
        self.run(Command::LeaseGrant { id: 5, ttl_seconds: 500 });
        self.put("n/alone", b"gone", 5);
        self.put("f/synced", b"stays", 5);
        let op = |key, value| {
            let request = Some(Request::RequestPut(put(key, value, 0)));
            RequestOp { request }
        };
        let success = vec![op("n/together", b"gone"), op("b/together", b"stays")];
        self.run(Command::Txn(TxnRequest { success, ..Default::default() }));
        self.put("n/alone", b"gone again", 5);
    }

    /// Executes the commands of `log`, waits for a snapshot, and executes more commands.
    fn snapshot(&self, snapshots: &Path) {
        self.log();
        let is_snapshot = |path: &Path| path.extension().is_some_and(|found| found == "snap");
        while !fs::read_dir(snapshots).unwrap().any(|entry| is_snapshot(&entry.unwrap().path())) {
            self.put("large", &[b'x'; 5000], 0);
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        self.put("a", b"4", 0);
        self.put("z", b"last", 7);
    }
}

fn put(key: &str, value: &[u8], lease: i64) -> PutRequest {
    let (key, value) = (key.as_bytes().to_vec().into(), value.to_vec().into());
    PutRequest { key, value, lease, ..Default::default() }
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
