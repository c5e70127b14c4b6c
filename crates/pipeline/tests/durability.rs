//! What is promised of a store whose process is killed and whose machine stops,
//! in every mix of modes: held against a list of all that was acknowledged.
//!
//! The log lies on the simulated disk of `crates/wal`. A kill copies what the disk
//! holds while the store runs, and goes on with the copy.

#[path = "../../wal/tests/disk/mod.rs"]
mod disk;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use data_dir::Identity;
use disk::Disk;
use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::{DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest};
use futures_executor::block_on;
use mvcc::{Command, Reply, Span};
use pipeline::{Error, Pipeline, PipelineOptions, WalMode};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use watch::{Delivery, Filter, Watch};

const IDENTITY: Identity = Identity { cluster_id: 1, member_id: 2 };

/// A store and the ground that it stands on.
struct Ground {
    disk: Disk,
    dir: tempfile::TempDir,
    options: PipelineOptions,
    pipeline: Option<Pipeline>,
}

impl Ground {
    fn new(default: WalMode, prefixes: &[(&str, WalMode)]) -> Ground {
        let dir = tempfile::tempdir().unwrap();
        let prefix = |(prefix, mode): &(&str, WalMode)| (prefix.as_bytes().to_vec(), *mode);
        let options = PipelineOptions {
            data_dir: dir.path().to_owned(),
            wal_mode: default,
            wal_mode_prefixes: prefixes.iter().map(prefix).collect(),
            boot_id: b"boot 0".to_vec(),
            // Only the tests flush, so that a power cut has something to take.
            flush_interval: Duration::from_secs(3600),
            snapshot_log_bytes: 400,
            ..PipelineOptions::default()
        };
        let mut ground = Ground { disk: Disk::default(), dir, options, pipeline: None };
        ground.start();
        ground
    }

    fn start(&mut self) {
        let disk = self.disk.clone();
        let opened = Pipeline::open_on(&self.options, IDENTITY, |_| Ok(disk));
        self.pipeline = Some(opened.unwrap());
    }

    fn store(&self) -> &Pipeline {
        self.pipeline.as_ref().unwrap()
    }

    fn stop(&mut self) {
        self.pipeline = None;
    }

    /// Ends the process at once. What is left is what the disk and the snapshots
    /// held at that moment.
    fn kill(&mut self) {
        let dir = tempfile::tempdir().unwrap();
        let disk = self.disk.copy_with(|| copy_all(self.dir.path(), dir.path()));
        self.pipeline = None;
        (self.dir, self.disk) = (dir, disk);
        self.options.data_dir = self.dir.path().to_owned();
    }

    /// Stops the machine: blocks that no fsync has covered stay or go.
    fn cut_power(&mut self, keep: impl FnMut() -> bool) {
        self.kill();
        self.disk.cut_power(keep);
        let boots: u32 = std::str::from_utf8(&self.options.boot_id[5..]).unwrap().parse().unwrap();
        self.options.boot_id = format!("boot {}", boots + 1).into_bytes();
    }

    fn run(&self, command: Command) -> Result<Reply, Error> {
        block_on(self.store().propose(command, 0))
    }

    fn put(&self, key: &str, value: &str) -> Result<Reply, Error> {
        self.run(Command::Put(put(key, value, 0)))
    }

    fn get(&self, key: &str) -> Option<String> {
        self.all().remove(key).map(|(value, _)| value)
    }

    /// Every key, with its value and its revision.
    fn all(&self) -> Keys {
        let (key, range_end) = (vec![0].into(), vec![0].into());
        let request = RangeRequest { key, range_end, ..Default::default() };
        let found = self.store().range(&request).unwrap().finish();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let kvs = found.kvs.iter();
        kvs.map(|kv| (text(kv.key()), (text(kv.value()), kv.mod_revision()))).collect()
    }
}

type Keys = BTreeMap<String, (String, i64)>;

fn copy_all(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_all(&entry.path(), &target),
            // It may be renamed or removed as we look.
            false => drop(std::fs::copy(entry.path(), target)),
        }
    }
}

fn put(key: &str, value: &str, lease: i64) -> PutRequest {
    let (key, value) = (key.as_bytes().to_vec().into(), value.as_bytes().to_vec().into());
    PutRequest { key, value, lease, ..Default::default() }
}

/// Prefixes "b", "f" and "n" have the mode that they begin with, in every mix.
const PREFIXES: [&str; 3] = ["b", "f", "n"];

#[derive(Clone, Debug)]
enum Step {
    /// Writes a new value to a key of each prefix, in one transaction or in several.
    Write {
        keys: [Option<u8>; 3],
        together: bool,
    },
    Delete {
        prefix: usize,
        key: u8,
    },
    Compact,
    Stop,
    Kill,
    PowerCut(Vec<bool>),
}

fn step() -> impl Strategy<Value = Step> {
    let key = || prop::option::of(0u8..3);
    prop_oneof![
        12 => ([key(), key(), key()], any::<bool>())
            .prop_map(|(keys, together)| Step::Write { keys, together }),
        2 => (0usize..3, 0u8..3).prop_map(|(prefix, key)| Step::Delete { prefix, key }),
        1 => Just(Step::Compact),
        1 => Just(Step::Stop),
        1 => Just(Step::Kill),
        2 => prop::collection::vec(any::<bool>(), 1..40).prop_map(Step::PowerCut),
    ]
}

/// All that was acknowledged, as it was after each write.
struct Acknowledged {
    default: WalMode,
    states: Vec<Keys>,
    /// How many of the states a crash of the machine must leave.
    durable: usize,
    revision: i64,
}

impl Acknowledged {
    fn now(&self) -> Keys {
        self.states.last().unwrap().clone()
    }

    fn mode(&self, key: &str) -> WalMode {
        match key.as_bytes()[0] {
            b'f' => WalMode::Fsync,
            b'n' => WalMode::None,
            b'b' => WalMode::Buffered,
            _ => self.default,
        }
    }

    fn write(&mut self, ground: &Ground, requests: &[Request], keys: &[String]) {
        let success = requests.iter().cloned().map(|r| RequestOp { request: Some(r) }).collect();
        let txn = TxnRequest { success, ..Default::default() };
        ground.run(Command::Txn(txn)).unwrap();
        self.states.push(ground.all());
        self.revision = ground.store().revision();
        if keys.iter().any(|key| self.mode(key) == WalMode::Fsync) {
            self.durable = self.states.len() - 1;
        }
    }

    /// What was found after a start is one of the states from `least` on, but for
    /// the keys that are not logged, which are gone.
    fn check(&mut self, ground: &Ground, least: usize) {
        let found = ground.all();
        let logged = |state: &Keys| {
            let keep = state.iter().filter(|(key, _)| self.mode(key) != WalMode::None);
            keep.map(|(key, pair)| (key.clone(), pair.clone())).collect::<Keys>()
        };
        let possible = self.states[least..].iter().map(logged);
        assert!(possible.clone().any(|state| state == found), "{found:?} is none of {possible:?}");
        let revision = ground.store().revision();
        assert!(revision >= self.revision, "from revision {} back to {revision}", self.revision);
        // A watcher that goes on where it was is told if what it saw is gone.
        let gone = self.now() != found;
        let told = told_of_compaction(ground.store(), self.revision + 1);
        assert!(told || !gone, "revision {revision} after {}", self.revision);
        self.states = vec![found];
        (self.revision, self.durable) = (revision, 0);
    }
}

fn told_of_compaction(pipeline: &Pipeline, start_revision: i64) -> bool {
    let stream = pipeline.watch_stream(|| {});
    let span = Span::new(&[0], &[0]);
    let filter = Filter::default();
    stream.create(Watch {
        id: 1,
        span,
        start_revision,
        filter,
        prev_kv: false,
        progress_notify: false,
        fragment: false,
    });
    std::iter::from_fn(|| pipeline.next(&stream))
        .take(3)
        .any(|delivery| matches!(delivery, Delivery::Compacted { .. }))
}

fn cases() -> u32 {
    std::env::var("FUZZ_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(60)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/durability.seeds"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_was_acknowledged_is_there_as_promised(
        fsync_by_default in any::<bool>(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let default = if fsync_by_default { WalMode::Fsync } else { WalMode::Buffered };
        let modes =
            [("b", WalMode::Buffered), ("f", WalMode::Fsync), ("n", WalMode::None)];
        let mut ground = Ground::new(default, &modes);
        let states = vec![Keys::new()];
        let mut known = Acknowledged { default, states, durable: 0, revision: 1 };
        let mut counter = 0;
        for step in &steps {
            let all = known.states.len() - 1;
            match step {
                Step::Write { keys, together } => {
                    let chosen = PREFIXES.iter().zip(keys);
                    let names: Vec<String> =
                        chosen.filter_map(|(p, k)| k.map(|k| format!("{p}{k}"))).collect();
                    counter += 1;
                    let value = format!("{counter:0100}");
                    let puts: Vec<_> =
                        names.iter().map(|k| Request::RequestPut(put(k, &value, 0))).collect();
                    match *together {
                        true => known.write(&ground, &puts, &names),
                        false => puts.iter().zip(&names).for_each(|(put, name)| {
                            known.write(&ground, std::slice::from_ref(put), std::slice::from_ref(name));
                        }),
                    }
                }
                Step::Delete { prefix, key } => {
                    let name = format!("{}{key}", PREFIXES[*prefix]);
                    let key = name.as_bytes().to_vec().into();
                    let delete = DeleteRangeRequest { key, ..Default::default() };
                    let existed = known.now().contains_key(&name);
                    let synced: &[String] = if existed { &[name] } else { &[] };
                    known.write(&ground, &[Request::RequestDeleteRange(delete)], synced);
                }
                Step::Compact => {
                    let revision = ground.store().revision();
                    // Refused when nothing has happened since the last one.
                    let _ = ground.run(Command::Compact { revision });
                }
                Step::Stop => {
                    ground.stop();
                    ground.start();
                    known.check(&ground, all);
                }
                Step::Kill => {
                    ground.kill();
                    ground.start();
                    known.check(&ground, all);
                }
                Step::PowerCut(bits) => {
                    let mut bits = bits.iter().cycle();
                    ground.cut_power(|| *bits.next().unwrap());
                    ground.start();
                    let durable = known.durable;
                    known.check(&ground, durable);
                }
            }
        }
    }
}

/// Without keys that go unlogged nothing jumps: not at a clean end, not when only
/// the process was killed.
#[test]
fn the_revision_goes_on_where_nothing_can_be_missing() {
    let mut ground = Ground::new(WalMode::Buffered, &[("f", WalMode::Fsync)]);
    ground.put("a", "1").unwrap();
    for end in [Ground::stop, Ground::kill] {
        let before = ground.store().status();
        end(&mut ground);
        ground.start();
        let after = ground.store().status();
        assert_eq!((after.revision, after.compacted), (before.revision, before.compacted));
    }
}

/// A mode of none for keys that were logged before: they live on in memory, and are
/// gone after the next restart, not back in their old form.
#[test]
fn keys_that_are_no_longer_logged_do_not_come_back() {
    let mut ground = Ground::new(WalMode::Buffered, &[]);
    ground.put("n/key", "old").unwrap();
    ground.put("other", "stays").unwrap();
    ground.stop();
    ground.options.wal_mode_prefixes = vec![(b"n/".to_vec(), WalMode::None)];
    ground.start();
    assert_eq!(ground.get("n/key").as_deref(), Some("old"));
    ground.put("n/key", "new").unwrap();
    ground.kill();
    ground.options.wal_mode_prefixes.clear();
    ground.start();
    assert_eq!(ground.all().into_keys().collect::<Vec<_>>(), ["other"]);
    ground.put("n/key", "logged again").unwrap();
    ground.kill();
    ground.start();
    assert_eq!(ground.get("n/key").as_deref(), Some("logged again"));
}

/// A lease outlives its keys that were not logged, and goes on with what it had left.
#[test]
fn a_lease_of_unlogged_keys_survives_without_them() {
    let mut ground = Ground::new(WalMode::Buffered, &[("n", WalMode::None)]);
    ground.run(Command::LeaseGrant { id: 7, ttl_seconds: 100 }).unwrap();
    for key in ["n1", "b1"] {
        ground.run(Command::Put(put(key, "v", 7))).unwrap();
    }
    ground.kill();
    ground.start();
    let (left, _, keys) = ground.store().lease_time_to_live(7).unwrap();
    assert!(left >= 98, "{left}");
    assert_eq!(keys.iter().map(etcdpb::Key::as_bytes).collect::<Vec<_>>(), [b"b1"]);
    ground.run(Command::LeaseRevoke { id: 7 }).unwrap();
    assert_eq!(ground.get("b1"), None);
}

/// Time runs for a lease only while the store does, and a renewal that was answered
/// counts.
#[test]
fn leases_go_on_with_what_they_had_left() {
    let mut ground = Ground::new(WalMode::Buffered, &[]);
    for id in [1, 2] {
        ground.run(Command::LeaseGrant { id, ttl_seconds: 1000 }).unwrap();
    }
    std::thread::sleep(Duration::from_millis(2100));
    assert_eq!(block_on(ground.store().lease_renew(2)).unwrap(), Some(1000));
    let left = |ground: &Ground, id| ground.store().lease_time_to_live(id).unwrap().0;
    ground.kill();
    std::thread::sleep(Duration::from_millis(1500));
    ground.start();
    assert_eq!((left(&ground, 1), left(&ground, 2)), (997, 999), "killed");
    ground.stop();
    ground.start();
    assert_eq!((left(&ground, 1), left(&ground, 2)), (997, 999), "ended");
    // With the machine a renewal may be gone that was answered: rather too long.
    ground.cut_power(|| true);
    ground.start();
    assert!(left(&ground, 1) >= 999);
}

#[test]
fn a_full_disk_refuses_and_recovers_and_leases_live_on() {
    let mut ground = Ground::new(WalMode::Fsync, &[("n", WalMode::None)]);
    ground.run(Command::LeaseGrant { id: 1, ttl_seconds: 1000 }).unwrap();
    ground.disk.0.lock().unwrap().free_bytes = Some(0);
    let mut acknowledged = 0;
    let error = loop {
        match ground.put(&format!("key{acknowledged}"), &"x".repeat(50_000)) {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::NoSpace), "{error}");
    assert!(ground.store().status().no_space);
    while ground.put("little", "x").is_ok() {}
    assert_eq!(block_on(ground.store().lease_renew(1)).unwrap(), Some(1000));
    ground.disk.0.lock().unwrap().free_bytes = None;
    ground.put("late", "x").unwrap();
    assert!(!ground.store().status().no_space);
    ground.kill();
    ground.start();
    let found = ground.all();
    assert!((0..acknowledged).all(|i| found.contains_key(&format!("key{i}"))));
    assert!(found.contains_key("late"));
}

/// A failed fsync or write: nothing is acknowledged any more, reads go on, and what
/// was acknowledged before is there after a restart.
#[test]
fn a_failing_disk_ends_writing_for_good() {
    for fault in ["sync", "write"] {
        let mut ground = Ground::new(WalMode::Fsync, &[]);
        ground.put("before", "x").unwrap();
        match fault {
            "sync" => ground.disk.0.lock().unwrap().fail_next_sync = true,
            _ => ground.disk.0.lock().unwrap().fail_next_write_after = Some(20),
        }
        assert!(matches!(ground.put("failed", "x"), Err(Error::LogFailed(_))), "{fault}");
        assert!(matches!(ground.put("after", "x"), Err(Error::LogFailed(_))), "{fault}");
        let renewed = ground.run(Command::LeaseRenew { id: 1 });
        assert!(matches!(renewed, Err(Error::LogFailed(_))), "{fault}");
        assert!(ground.store().status().failure.is_some());
        assert_eq!(ground.all().into_keys().collect::<Vec<_>>(), ["before"], "{fault}");
        // Neither shown nor promised; a power cut takes the write that failed.
        ground.cut_power(|| false);
        ground.start();
        assert_eq!(ground.all().into_keys().collect::<Vec<_>>(), ["before"], "{fault}");
        ground.put("again", "x").unwrap();
    }
}

/// A failed flush in the background ends writing as well.
#[test]
fn a_failed_flush_is_noticed() {
    let mut ground = Ground::new(WalMode::Buffered, &[]);
    ground.stop();
    ground.options.flush_interval = Duration::from_millis(5);
    ground.start();
    ground.disk.0.lock().unwrap().fail_next_sync = true;
    let mut puts = 0;
    while ground.put("key", "x").is_ok() {
        puts += 1;
        assert!(puts < 100_000, "nobody noticed");
    }
    assert!(ground.store().status().failure.is_some());
    let shown = ground.store().revision();
    // The kernel lives, and what it could not write is gone all the same. The next
    // process knows, and only that one.
    ground.kill();
    ground.disk.cut_power(|| false);
    ground.start();
    assert!(ground.store().revision() > shown);
    assert!(told_of_compaction(ground.store(), shown + 1));
    let revision = ground.store().revision();
    ground.kill();
    ground.start();
    assert_eq!(ground.store().revision(), revision);
}

/// No descriptors, no permission: refused for now, and the store is as good as ever.
#[test]
fn a_log_that_cannot_grow_now_may_later() {
    let mut ground = Ground::new(WalMode::Fsync, &[]);
    let value = "x".repeat(2 << 20);
    ground.disk.0.lock().unwrap().fail_next_create = Some(std::io::ErrorKind::PermissionDenied);
    assert!(matches!(ground.put("key", &value), Err(Error::CannotGrow(_))));
    ground.put("key", &value).unwrap();
    ground.kill();
    ground.start();
    assert_eq!(ground.get("key").map(|found| found.len()), Some(value.len()));
}

/// With the disk full from the start reads are answered, and writes when there is room.
#[test]
fn a_start_on_a_full_disk_reads() {
    let mut ground = Ground::new(WalMode::Buffered, &[("n", WalMode::None)]);
    ground.put("n", "gone").unwrap();
    ground.put("key", "stays").unwrap();
    let shown = ground.store().revision();
    ground.kill();
    // The segment is full but for a few bytes.
    {
        let mut disk = ground.disk.0.lock().unwrap();
        disk.free_bytes = Some(0);
        let segment = disk.files.values_mut().next().unwrap();
        let used = segment.current.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        segment.current.truncate(used + 10);
        segment.durable = segment.current.clone();
    }
    ground.start();
    assert_eq!(ground.get("key").as_deref(), Some("stays"));
    assert!(matches!(ground.put("n", "x"), Err(Error::NoSpace)));
    assert!(ground.store().revision() > shown);
    ground.disk.0.lock().unwrap().free_bytes = None;
    ground.put("n", "x").unwrap();
}
