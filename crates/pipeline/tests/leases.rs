//! Leases that expire while other commands change them.

use std::thread;
use std::time::Duration;

use data_dir::Identity;
use futures_executor::block_on;
use futures_util::future::join_all;
use mvcc::Command;
use pipeline::{Pipeline, PipelineOptions, WalMode};

/// The revocation of an expired lease does not revoke a new lease with the same ID.
#[test]
fn a_lease_that_replaces_an_expired_one_stays() {
    let options = PipelineOptions { wal_mode: WalMode::None, ..Default::default() };
    let store = Pipeline::open(&options, Identity { cluster_id: 1, member_id: 2 }).unwrap();
    let grant = |ttl_seconds| store.propose(Command::LeaseGrant { id: 7, ttl_seconds }, 0);
    for _ in 0..3 {
        block_on(grant(1)).unwrap();
        thread::sleep(Duration::from_millis(950));
        // The first poll queues a command. The thread of the store applies both when the lease
        // expires.
        let revoke = store.propose(Command::LeaseRevoke { id: 7 }, 0);
        let commands = async {
            let (mut revoke, mut replace) = (Box::pin(revoke), Box::pin(grant(1000)));
            assert!(futures_util::poll!(&mut revoke).is_pending());
            assert!(futures_util::poll!(&mut replace).is_pending());
            thread::sleep(Duration::from_millis(200));
            join_all([revoke, replace]).await
        };
        let replies = block_on(commands);
        assert!(replies[1].is_ok(), "{replies:?}");
        thread::sleep(Duration::from_millis(50));
        assert_eq!(store.lease_time_to_live(7).map(|(_, ttl)| ttl), Some(1000));
        block_on(store.propose(Command::LeaseRevoke { id: 7 }, 0)).unwrap();
    }
}
