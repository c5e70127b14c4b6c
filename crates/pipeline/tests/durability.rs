//! Durability of acknowledged writes when the process is killed or the machine loses
//! power, in every mix of WAL modes. The recovered store is compared with the states
//! after all acknowledged writes.

mod test_store;

use std::time::{Duration, Instant};

use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::{DeleteRangeRequest, RequestOp, TxnRequest};
use futures_executor::block_on;
use mvcc::{Command, Span};
use pipeline::{Error, Pipeline, WalMode};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use test_store::{Keys, TestStore, put};
use watch::{Delivery, Filter, Watch};

/// Key prefixes with the modes buffered, fsync and none. Their keys occur in every mix.
const PREFIXES: [&str; 3] = ["b", "f", "n"];

#[derive(Clone, Debug)]
enum Step {
    /// Writes a new value to a key of each chosen prefix, in one transaction or in one
    /// transaction per key.
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
    /// An fsync fails, which drops what it should have written. The store is restarted.
    FailedSync,
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
        1 => Just(Step::FailedSync),
        2 => prop::collection::vec(any::<bool>(), 1..40).prop_map(Step::PowerCut),
    ]
}

/// The states of all keys, after each acknowledged write.
struct Acknowledged {
    default: WalMode,
    states: Vec<Keys>,
    /// Index of the last state that must survive a power cut.
    durable: usize,
    /// The last published revision.
    revision: i64,
}

impl Acknowledged {
    fn newest(&self) -> Keys {
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

    /// Executes `requests`, which write `keys`, in one transaction.
    fn write(&mut self, test_store: &TestStore, requests: &[Request], keys: &[String]) {
        let success = requests.iter().cloned().map(|r| RequestOp { request: Some(r) }).collect();
        let txn = TxnRequest { success, ..Default::default() };
        test_store.run(Command::Txn(txn)).unwrap();
        self.states.push(test_store.all());
        self.revision = test_store.store().revision();
        if keys.iter().any(|key| self.mode(key) == WalMode::Fsync) {
            self.durable = self.states.len() - 1;
        }
    }

    /// Checks that the recovered store equals one of the states from the index `first`
    /// on, without the unlogged keys.
    fn check(&mut self, test_store: &TestStore, first: usize) {
        let found = test_store.all();
        let logged = |state: &Keys| {
            let keep = state.iter().filter(|(key, _)| self.mode(key) != WalMode::None);
            keep.map(|(key, pair)| (key.clone(), pair.clone())).collect::<Keys>()
        };
        let possible = self.states[first..].iter().map(logged);
        assert!(
            possible.clone().any(|state| state == found),
            "the recovered keys {found:?} are none of {possible:?}"
        );
        let revision = test_store.store().revision();
        assert!(
            revision >= self.revision,
            "the revision went back from {} to {revision}",
            self.revision
        );
        // A watcher that resumes after a lost revision gets the error that it is compacted.
        let keys_lost = self.newest() != found;
        let reported = watch_reports_compaction(test_store.store(), self.revision + 1);
        assert!(
            reported || !keys_lost,
            "keys are lost, but a watch from revision {} on gets no compaction error",
            self.revision + 1
        );
        self.states = vec![found];
        (self.revision, self.durable) = (revision, 0);
    }
}

/// Whether a watch from `start_revision` on gets the error that the revision is compacted.
fn watch_reports_compaction(pipeline: &Pipeline, start_revision: i64) -> bool {
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
    std::iter::from_fn(|| pipeline.next_delivery(&stream))
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
    fn acknowledged_writes_survive_according_to_their_mode(
        fsync_by_default in any::<bool>(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let default = if fsync_by_default { WalMode::Fsync } else { WalMode::Buffered };
        let modes =
            [("b", WalMode::Buffered), ("f", WalMode::Fsync), ("n", WalMode::None)];
        let mut test_store = TestStore::new(default, &modes);
        let states = vec![Keys::new()];
        let mut model = Acknowledged { default, states, durable: 0, revision: 1 };
        let mut counter = 0;
        for step in &steps {
            let newest = model.states.len() - 1;
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
                        true => model.write(&test_store, &puts, &names),
                        false => puts.iter().zip(&names).for_each(|(put, name)| {
                            model.write(&test_store, std::slice::from_ref(put), std::slice::from_ref(name));
                        }),
                    }
                }
                Step::Delete { prefix, key } => {
                    let name = format!("{}{key}", PREFIXES[*prefix]);
                    let key = name.as_bytes().to_vec().into();
                    let delete = DeleteRangeRequest { key, ..Default::default() };
                    let existed = model.newest().contains_key(&name);
                    let synced: &[String] = if existed { &[name] } else { &[] };
                    model.write(&test_store, &[Request::RequestDeleteRange(delete)], synced);
                }
                Step::Compact => {
                    let revision = test_store.store().revision();
                    // Fails if nothing was written since the last compaction.
                    let _ = test_store.run(Command::Compact { revision });
                }
                Step::Stop => {
                    test_store.stop();
                    test_store.start();
                    model.check(&test_store, newest);
                }
                Step::Kill => {
                    test_store.kill();
                    test_store.start();
                    model.check(&test_store, newest);
                }
                Step::FailedSync => {
                    test_store.disk.0.lock().unwrap().fail_next_sync = true;
                    test_store.stop();
                    test_store.disk.0.lock().unwrap().fail_next_sync = false;
                    test_store.start();
                    model.check(&test_store, newest);
                }
                Step::PowerCut(bits) => {
                    let mut bits = bits.iter().cycle();
                    test_store.cut_power(|| *bits.next().unwrap());
                    test_store.start();
                    let durable = model.durable;
                    model.check(&test_store, durable);
                }
            }
        }
    }
}

/// If all keys are logged, the revision stays the same over a clean restart and over a
/// kill.
#[test]
fn the_revision_continues_if_no_write_can_be_lost() {
    let mut test_store = TestStore::new(WalMode::Buffered, &[("f", WalMode::Fsync)]);
    test_store.put("a", "1").unwrap();
    for end in [TestStore::stop, TestStore::kill] {
        let before = test_store.store().status();
        end(&mut test_store);
        test_store.start();
        let after = test_store.store().status();
        assert_eq!((after.revision, after.compacted), (before.revision, before.compacted));
    }
}

/// Keys that were logged and now have mode none stay readable until the next restart
/// loses them. They do not reappear with the old logged value.
#[test]
fn keys_that_are_no_longer_logged_do_not_reappear() {
    let mut test_store = TestStore::new(WalMode::Buffered, &[]);
    test_store.put("n/key", "old").unwrap();
    test_store.put("other", "stays").unwrap();
    test_store.stop();
    test_store.options.wal_mode_prefixes = vec![(b"n/".to_vec(), WalMode::None)];
    test_store.start();
    assert_eq!(test_store.get("n/key").as_deref(), Some("old"));
    test_store.put("n/key", "new").unwrap();
    test_store.kill();
    test_store.options.wal_mode_prefixes.clear();
    test_store.start();
    assert_eq!(test_store.all().into_keys().collect::<Vec<_>>(), ["other"]);
    test_store.put("n/key", "logged again").unwrap();
    test_store.kill();
    test_store.start();
    assert_eq!(test_store.get("n/key").as_deref(), Some("logged again"));
}

/// A lease survives a kill with its remaining TTL, but without its unlogged keys.
#[test]
fn a_lease_of_unlogged_keys_survives_without_them() {
    let mut test_store = TestStore::new(WalMode::Buffered, &[("n", WalMode::None)]);
    test_store.run(Command::LeaseGrant { id: 7, ttl_seconds: 100 }).unwrap();
    for key in ["n1", "b1"] {
        test_store.run(Command::Put(put(key, "v", 7))).unwrap();
    }
    test_store.kill();
    test_store.start();
    let (left, _) = test_store.store().lease_time_to_live(7).unwrap();
    let keys = test_store.store().few_lease_keys(7).unwrap();
    assert!(left >= 98, "only {left} s of the TTL of 100 s remain");
    assert_eq!(keys.iter().map(etcdpb::Key::as_bytes).collect::<Vec<_>>(), [b"b1"]);
    test_store.run(Command::LeaseRevoke { id: 7 }).unwrap();
    assert_eq!(test_store.get("b1"), None);
}

/// A TTL elapses only while the store runs. An acknowledged renewal survives a kill.
#[test]
fn leases_keep_their_remaining_ttl() {
    let mut test_store = TestStore::new(WalMode::Buffered, &[]);
    let granted = Instant::now();
    for id in [1, 2] {
        test_store.run(Command::LeaseGrant { id, ttl_seconds: 1000 }).unwrap();
    }
    std::thread::sleep(Duration::from_millis(2100));
    let renewed = Instant::now();
    assert_eq!(block_on(test_store.store().lease_renew(2)).unwrap(), Some(1000));
    let left = |test_store: &TestStore, id| test_store.store().lease_time_to_live(id).unwrap().0;
    let killed = Instant::now();
    test_store.kill();
    std::thread::sleep(Duration::from_millis(1500));
    test_store.start();
    let away = killed.elapsed();
    // They are 997 s and 999 s unless the machine is so busy that the store has run for longer.
    let check = |test_store: &TestStore, end: &str| {
        let (first, second) = (left(test_store, 1), left(test_store, 2));
        let least = |since: Instant| 1000 - (since.elapsed() - away).as_secs_f64().ceil() as i64;
        assert!((least(granted)..=997).contains(&first), "the first TTL after {end}: {first}");
        assert!((least(renewed)..=999).contains(&second), "the second TTL after {end}: {second}");
    };
    check(&test_store, "a kill");
    test_store.stop();
    test_store.start();
    check(&test_store, "a clean shutdown");
    // A power cut may lose acknowledged renewals, so every lease gets its full TTL.
    test_store.cut_power(|| true);
    test_store.start();
    assert!(left(&test_store, 1) >= 999);
}

#[test]
fn a_full_disk_refuses_writes_but_renews_leases() {
    let mut test_store = TestStore::new(WalMode::Fsync, &[("n", WalMode::None)]);
    test_store.run(Command::LeaseGrant { id: 1, ttl_seconds: 1000 }).unwrap();
    test_store.disk.0.lock().unwrap().free_bytes = Some(0);
    let mut acknowledged = 0;
    let error = loop {
        match test_store.put(&format!("key{acknowledged}"), &"x".repeat(50_000)) {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::NoSpace), "unexpected error: {error}");
    assert!(test_store.store().status().no_space);
    while test_store.put("little", "x").is_ok() {}
    assert_eq!(block_on(test_store.store().lease_renew(1)).unwrap(), Some(1000));
    test_store.disk.0.lock().unwrap().free_bytes = None;
    test_store.put("late", "x").unwrap();
    assert!(!test_store.store().status().no_space);
    test_store.kill();
    test_store.start();
    let found = test_store.all();
    assert!((0..acknowledged).all(|i| found.contains_key(&format!("key{i}"))));
    assert!(found.contains_key("late"));
}

/// On a file system with copy-on-write, overwriting `HEAD` needs space. Without it, the store
/// refuses writes, and accepts them once there is space. It keeps what it acknowledged.
#[test]
fn a_head_without_space_refuses_writes_until_there_is_space() {
    for mode in [WalMode::Fsync, WalMode::Buffered] {
        let mut test_store = TestStore::new(mode, &[]);
        test_store.stop();
        test_store.options.flush_interval = Duration::from_millis(5);
        test_store.start();
        let set_free_bytes = |test_store: &TestStore, bytes| {
            let mut disk = test_store.disk.0.lock().unwrap();
            (disk.free_bytes, disk.overwrites_need_space) = (bytes, true);
        };
        // Enough for copies of blocks, but not for a segment.
        set_free_bytes(&test_store, Some(1000));
        let mut acknowledged = 0;
        let mut put = |test_store: &TestStore| {
            let result = test_store.put(&format!("key{acknowledged}"), &"x".repeat(50_000));
            acknowledged += usize::from(result.is_ok());
            result.map(drop)
        };
        while put(&test_store).is_ok() {}
        // Enough for a segment, but not for the copy of `HEAD` that names it. The log tries it
        // again one second after the last attempt.
        set_free_bytes(&test_store, Some(1 << 20));
        std::thread::sleep(Duration::from_millis(1100));
        let first = put(&test_store);
        assert_eq!(first.is_ok(), mode == WalMode::Buffered, "{mode:?}: {first:?}");
        // In buffered mode, the log tries it a few milliseconds later.
        let started = Instant::now();
        let refused = loop {
            std::thread::sleep(Duration::from_millis(200));
            let result = put(&test_store);
            if result.is_err() || started.elapsed() > Duration::from_secs(180) {
                break result;
            }
        };
        assert!(matches!(refused, Err(Error::NoSpace)), "{mode:?}: {refused:?}");
        assert!(test_store.store().status().no_space);
        set_free_bytes(&test_store, None);
        put(&test_store).unwrap();
        assert!(!test_store.store().status().no_space);
        test_store.kill();
        test_store.start();
        let found = test_store.all();
        assert!((0..acknowledged).all(|n| found.contains_key(&format!("key{n}"))), "{mode:?}");
    }
}

/// After a failed fsync or write, no further write is acknowledged, and reads still work.
/// A restart recovers the acknowledged writes.
#[test]
fn a_failed_write_or_fsync_stops_all_writes() {
    for fault in ["sync", "write"] {
        let mut test_store = TestStore::new(WalMode::Fsync, &[]);
        test_store.put("before", "x").unwrap();
        match fault {
            "sync" => test_store.disk.0.lock().unwrap().fail_next_sync = true,
            _ => test_store.disk.0.lock().unwrap().fail_next_write_after = Some(20),
        }
        assert!(
            matches!(test_store.put("failed", "x"), Err(Error::LogFailed(_))),
            "after a failed {fault}"
        );
        assert!(
            matches!(test_store.put("after", "x"), Err(Error::LogFailed(_))),
            "after a failed {fault}"
        );
        let renewed = test_store.run(Command::LeaseRenew { id: 1 });
        assert!(matches!(renewed, Err(Error::LogFailed(_))), "after a failed {fault}");
        assert!(test_store.store().status().failure.is_some());
        assert_eq!(
            test_store.all().into_keys().collect::<Vec<_>>(),
            ["before"],
            "after a failed {fault}"
        );
        // The failed write was neither published nor acknowledged. The power cut loses
        // it.
        test_store.cut_power(|| false);
        test_store.start();
        assert_eq!(
            test_store.all().into_keys().collect::<Vec<_>>(),
            ["before"],
            "after a failed {fault}"
        );
        test_store.put("again", "x").unwrap();
    }
}

/// A write that fails while the store is idle is reported at once, not by the next write.
#[test]
fn a_failure_while_idle_is_reported() {
    let test_store = TestStore::new(WalMode::Fsync, &[]);
    // While a lease exists, the idle store logs store time every five seconds.
    test_store.run(Command::LeaseGrant { id: 1, ttl_seconds: 1000 }).unwrap();
    test_store.disk.0.lock().unwrap().fail_next_write_after = Some(0);
    let started = Instant::now();
    while test_store.store().status().failure.is_none() {
        assert!(started.elapsed() < Duration::from_secs(180), "the failure is not reported");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(matches!(test_store.put("after", "x"), Err(Error::LogFailed(_))));
}

/// A write that fails while lease renewals are noted on a full disk is reported, and the
/// renewals fail.
#[test]
fn a_failure_beside_a_full_disk_is_reported() {
    let test_store = TestStore::new(WalMode::Fsync, &[]);
    test_store.run(Command::LeaseGrant { id: 1, ttl_seconds: 1000 }).unwrap();
    test_store.disk.0.lock().unwrap().free_bytes = Some(0);
    while test_store.put("key", &"x".repeat(50_000)).is_ok() {}
    let grant = |id| test_store.run(Command::LeaseGrant { id, ttl_seconds: 1000 });
    assert!((2..100_000).any(|id| grant(id).is_err()));
    // Wait until the idle store has logged that the last grant is durable.
    std::thread::sleep(Duration::from_secs(1));
    test_store.disk.0.lock().unwrap().fail_next_write_after = Some(0);
    let renewed = test_store.run(Command::LeaseRenew { id: 1 });
    assert!(matches!(renewed, Err(Error::LogFailed(_))), "{renewed:?}");
    assert!(test_store.store().status().failure.is_some());
}

/// A failed sync of the flusher stops all writes too.
#[test]
fn a_failed_flush_stops_all_writes() {
    let mut test_store = TestStore::new(WalMode::Buffered, &[]);
    test_store.stop();
    test_store.options.flush_interval = Duration::from_millis(5);
    test_store.start();
    test_store.disk.0.lock().unwrap().fail_next_sync = true;
    let mut puts = 0;
    while test_store.put("key", "x").is_ok() {
        puts += 1;
        assert!(puts < 100_000, "writes succeed although the flush has failed");
    }
    assert!(test_store.store().status().failure.is_some());
    let published = test_store.store().revision();
    // The machine keeps running, but the kernel has dropped the unsynced data. The next
    // process continues at a higher revision; the process after it does not raise the
    // revision again.
    test_store.kill();
    test_store.disk.drop_unsynced_data();
    test_store.start();
    assert!(test_store.store().revision() > published);
    assert!(watch_reports_compaction(test_store.store(), published + 1));
    let revision = test_store.store().revision();
    test_store.kill();
    test_store.start();
    assert_eq!(test_store.store().revision(), revision);
}

/// Data that a failed fsync dropped is in the page cache of the next process. What this
/// process has served from it does not disappear later.
#[test]
fn writes_recovered_after_a_failed_fsync_stay() {
    let mut test_store = TestStore::new(WalMode::Buffered, &[]);
    test_store.put("key", "acknowledged").unwrap();
    test_store.disk.0.lock().unwrap().fail_next_sync = true;
    test_store.stop();
    test_store.start();
    let recovered = test_store.all();
    assert!(recovered.contains_key("key"));
    test_store.kill();
    test_store.disk.drop_page_cache();
    test_store.start();
    assert_eq!(test_store.all(), recovered);
}

/// In mode buffered, the thread that proposes a command runs the applier. It is a thread of
/// the async runtime, so it must not wait for a disk: neither when a segment is full nor at
/// any other time.
#[test]
fn a_proposing_thread_does_not_wait_for_the_disk() {
    let mut test_store = TestStore::new(WalMode::Buffered, &[]);
    test_store.stop();
    test_store.options.snapshot_log_bytes = 4 << 20;
    test_store.options.flush_interval = Duration::from_millis(5);
    test_store.start();
    test_store.disk.0.lock().unwrap().slow_operations.clear();
    let value = "x".repeat(400_000);
    for number in 0..9 {
        test_store.put(&format!("key{}", number % 3), &value).unwrap();
    }
    let this_thread = std::thread::current().id();
    let mut disk = test_store.disk.0.lock().unwrap();
    disk.slow_operations.retain(|(thread, _)| *thread == this_thread);
    assert_eq!(disk.slow_operations, []);
    let segments = disk.files.keys().filter(|name| name.ends_with(".wal")).count();
    assert!(segments >= 3, "only {segments} segments");
}

/// In mode fsync, a snapshot of an idle store covers only durable records: an empty record,
/// which proves that the record before it is durable, is not fsynced otherwise.
#[test]
fn a_snapshot_of_an_idle_store_survives_a_power_cut() {
    for prefixes in [&[][..], &[("n", WalMode::None)]] {
        let mut test_store = TestStore::new(WalMode::Fsync, prefixes);
        test_store.stop();
        test_store.options.snapshot_log_bytes = 1 << 40;
        test_store.start();
        for number in 0..20 {
            test_store.put(&format!("key{number}"), &"x".repeat(100)).unwrap();
        }
        test_store.kill();
        // The snapshot is due at the start, and the store is idle.
        test_store.options.snapshot_log_bytes = 400;
        let before = test_store.snapshots();
        test_store.start();
        let started = Instant::now();
        while test_store.snapshots() == before {
            assert!(started.elapsed() < Duration::from_secs(180), "no snapshot is taken");
            std::thread::sleep(Duration::from_millis(10));
        }
        test_store.cut_power(|| false);
        test_store.start();
        assert_eq!(test_store.all().len(), 20);
    }
}

/// If a segment cannot be created (for example, no file descriptor is free), the write
/// fails. A retry may succeed.
#[test]
fn a_failure_to_create_a_segment_can_be_retried() {
    let mut test_store = TestStore::new(WalMode::Fsync, &[]);
    let value = "x".repeat(2 << 20);
    test_store.disk.0.lock().unwrap().fail_next_create = Some(std::io::ErrorKind::PermissionDenied);
    assert!(matches!(test_store.put("key", &value), Err(Error::CannotGrow(_))));
    test_store.put("key", &value).unwrap();
    test_store.kill();
    test_store.start();
    assert_eq!(test_store.get("key").map(|found| found.len()), Some(value.len()));
}

/// A store that starts on a full disk serves reads. Writes succeed once there is space.
#[test]
fn a_store_that_starts_on_a_full_disk_serves_reads() {
    let mut test_store = TestStore::new(WalMode::Buffered, &[("n", WalMode::None)]);
    test_store.put("n", "gone").unwrap();
    test_store.put("key", "stays").unwrap();
    let published = test_store.store().revision();
    test_store.kill();
    // Segments of format 1 get no more records, so the next record needs a new segment.
    test_store.disk.make_format_1();
    test_store.disk.0.lock().unwrap().free_bytes = Some(0);
    test_store.start();
    assert_eq!(test_store.get("key").as_deref(), Some("stays"));
    assert!(matches!(test_store.put("n", "x"), Err(Error::NoSpace)));
    assert!(test_store.store().revision() > published);
    test_store.disk.0.lock().unwrap().free_bytes = None;
    test_store.put("n", "x").unwrap();
}
