//! Leases that expire while other commands change them.

use std::thread;
use std::time::Duration;

use data_dir::Identity;
use futures_executor::block_on;
use mvcc::Command;
use pipeline::{ClientId, Pipeline, PipelineOptions, WalMode};

/// The revocation of an expired lease does not revoke a new lease with the same ID.
#[test]
fn a_lease_that_replaces_an_expired_one_stays() {
    let options = PipelineOptions { wal_mode: WalMode::None, ..Default::default() };
    let store = Pipeline::open(&options, Identity { cluster_id: 1, member_id: 2 }).unwrap();
    let grant =
        |ttl_seconds| store.propose(ClientId(0), Command::LeaseGrant { id: 7, ttl_seconds }, 0);
    for _ in 0..3 {
        block_on(grant(1)).unwrap();
        thread::sleep(Duration::from_millis(950));
        // The first poll queues a command. The thread of the store applies it when the lease
        // expires.
        let revoke = store.propose(ClientId(0), Command::LeaseRevoke { id: 7 }, 0);
        let commands = async {
            let mut revoke = Box::pin(revoke);
            assert!(futures_util::poll!(&mut revoke).is_pending());
            thread::sleep(Duration::from_millis(200));
            // It fails if the lease has expired first.
            let _ = revoke.await;
            grant(1000).await
        };
        let granted = block_on(commands);
        assert!(granted.is_ok(), "{granted:?}");
        thread::sleep(Duration::from_millis(50));
        assert_eq!(store.lease_time_to_live(7).map(|(_, ttl)| ttl), Some(1000));
        block_on(store.propose(ClientId(0), Command::LeaseRevoke { id: 7 }, 0)).unwrap();
    }
}
