//! Lease renewals that are acknowledged although the log has no space for them. A restart
//! forgets none of them: leases expire later, never earlier.

mod test_store;

use std::time::{Duration, Instant};

use futures_executor::block_on;
use mvcc::Command;
use pipeline::{Error, WalMode};
use test_store::{TestStore, put};

const TTL_SECONDS: i64 = 1000;

/// Returns a store with lease 1, which is on a key, and no space for further writes. The
/// newest record says that all leases were renewed.
fn full_store(mode: WalMode, prefixes: &[(&str, WalMode)]) -> TestStore {
    let mut test_store = TestStore::new(mode, prefixes);
    test_store.stop();
    test_store.options.flush_interval = Duration::from_millis(20);
    test_store.options.snapshot_log_bytes = 4 << 20;
    test_store.start();
    grant(&test_store);
    fill(&test_store);
    test_store
}

fn grant(test_store: &TestStore) {
    let grant = Command::LeaseGrant { id: 1, ttl_seconds: TTL_SECONDS };
    test_store.run(grant).unwrap();
    test_store.run(Command::Put(put("leased", "x", 1))).unwrap();
}

/// Fills the log up to its spare room.
fn fill(test_store: &TestStore) {
    test_store.set_free_bytes(Some(0));
    for bytes in [50_000, 1_000, 1] {
        let value = "x".repeat(bytes);
        while test_store.put("filler", &value).is_ok() {}
    }
    assert!(matches!(test_store.put("filler", "x"), Err(Error::NoSpace)));
    // The first renewals still have space.
    (0..20).for_each(|_| renew(test_store));
}

fn renew(test_store: &TestStore) {
    assert_eq!(block_on(test_store.store().lease_renew(1)).unwrap(), Some(TTL_SECONDS));
}

/// Renews the lease for a while, and once more at the end.
fn renew_for(test_store: &TestStore, time: Duration) {
    let started = Instant::now();
    while started.elapsed() < time {
        renew(test_store);
        // The store is idle in between.
        std::thread::sleep(Duration::from_millis(700));
    }
    renew(test_store);
}

/// Checks that the lease, which was just renewed, has its TTL and its key after a restart.
fn check_after_restart(test_store: &mut TestStore, case: &str) {
    test_store.start();
    let left = test_store.lease_seconds_left(1);
    assert!(left >= TTL_SECONDS - 1, "{case}: {left} s left of {TTL_SECONDS} s");
    assert_eq!(test_store.get("leased").as_deref(), Some("x"), "{case}");
}

/// The store time in the log does not move past the logged renewal while the store is idle.
/// A record with the time is small enough for the room that a renewal does not fit in.
#[test]
fn renewals_on_a_full_disk_survive_a_kill() {
    for mode in [WalMode::Fsync, WalMode::Buffered] {
        let mut test_store = full_store(mode, &[]);
        renew_for(&test_store, Duration::from_secs(7));
        test_store.kill();
        check_after_restart(&mut test_store, &format!("{mode:?}"));
    }
}

/// Space is freed, and the store does not write until it is killed.
#[test]
fn renewals_survive_a_kill_after_space_is_freed() {
    let mut test_store = full_store(WalMode::Buffered, &[]);
    renew_for(&test_store, Duration::from_secs(6));
    test_store.set_free_bytes(None);
    std::thread::sleep(Duration::from_secs(1));
    test_store.kill();
    check_after_restart(&mut test_store, "space is freed");
}

/// A clean shutdown logs the store time.
#[test]
fn renewals_on_a_full_disk_survive_a_clean_shutdown() {
    for (mode, free_bytes) in
        [(WalMode::Fsync, None), (WalMode::Buffered, None), (WalMode::Buffered, Some(0))]
    {
        let mut test_store = full_store(mode, &[]);
        renew_for(&test_store, Duration::from_millis(2500));
        test_store.set_free_bytes(free_bytes);
        test_store.stop();
        check_after_restart(&mut test_store, &format!("{mode:?}, free: {free_bytes:?}"));
    }
}

/// A snapshot that succeeds while the log has no space contains the store time.
#[test]
fn renewals_on_a_full_disk_survive_a_snapshot() {
    let mut test_store = TestStore::new(WalMode::Buffered, &[]);
    test_store.stop();
    test_store.options.flush_interval = Duration::from_millis(20);
    test_store.options.snapshot_log_bytes = 900_000;
    test_store.start();
    // The first snapshot fails, because a file replaces the directory.
    let directory = test_store.dir.path().join("snap");
    let away = test_store.dir.path().join("snap.away");
    std::fs::rename(&directory, &away).unwrap();
    std::fs::write(&directory, "").unwrap();
    grant(&test_store);
    fill(&test_store);
    std::fs::remove_file(&directory).unwrap();
    std::fs::rename(&away, &directory).unwrap();
    let before = test_store.snapshots();
    let started = Instant::now();
    while test_store.snapshots() == before {
        assert!(started.elapsed() < Duration::from_secs(180), "no snapshot is taken");
        assert!(matches!(test_store.put("filler", "x"), Err(Error::NoSpace)));
        renew_for(&test_store, Duration::from_millis(500));
    }
    test_store.kill();
    check_after_restart(&mut test_store, "snapshot");
}

/// In mode fsync, the record that replaces the renewals is durable before they are
/// acknowledged.
#[test]
fn renewals_on_a_full_disk_survive_a_power_cut() {
    let mut test_store = TestStore::new(WalMode::Fsync, &[]);
    test_store.stop();
    test_store.options.snapshot_log_bytes = 4 << 20;
    test_store.start();
    grant(&test_store);
    test_store.set_free_bytes(Some(0));
    std::thread::sleep(Duration::from_millis(2500));
    fill(&test_store);
    test_store.cut_power(|| false);
    check_after_restart(&mut test_store, "power cut");
}
