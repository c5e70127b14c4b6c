//! Tests that the store rejects commands that exceed its quota or that a raised alarm forbids.

use etcdpb::rpc::{DeleteRangeRequest, PutRequest};
use mvcc::{Alarm, AlarmKind, Command, Effects, Error, Quota, Reply, Store};

const MEMBER: u64 = 7;

fn put(key: &str) -> Command {
    let (key, value) = (key.to_owned().into(), vec![0; 100].into());
    Command::Put(PutRequest { key, value, ..Default::default() })
}

fn delete(key: &str) -> Command {
    Command::DeleteRange(DeleteRangeRequest { key: key.to_owned().into(), ..Default::default() })
}

fn alarm(kind: AlarmKind, raised: bool) -> Command {
    Command::Alarm { alarm: Alarm { kind, member_id: MEMBER }, raised }
}

#[test]
fn exceeding_the_quota_raises_an_alarm_until_it_is_cleared() {
    let (mut store, mut effects) = (Store::default(), Effects::new());
    store.set_quota(Quota { bytes: 1500, member_id: MEMBER });
    let mut written = 0;
    let rejection = loop {
        match store.apply(&put(&format!("k{written}")), &mut effects) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(rejection, Error::NoSpace);
    assert!(written > 2, "only {written} puts were accepted below the quota");
    assert_eq!(store.revision(), 1 + written);
    let raised = Alarm { kind: AlarmKind::NoSpace, member_id: MEMBER };
    assert_eq!(store.alarms().collect::<Vec<_>>(), [raised]);

    for n in 0..written {
        store.apply(&delete(&format!("k{n}")), &mut effects).unwrap();
    }
    let revision = store.revision();
    store.apply(&Command::Compact { revision }, &mut effects).unwrap();
    while store.collect(i64::MAX, 100) {}
    assert_eq!(
        store.apply(&put("a"), &mut effects).unwrap_err(),
        Error::NoSpace,
        "the alarm stays raised until it is cleared"
    );
    let grant = Command::LeaseGrant { id: 1, ttl_seconds: 10 };
    assert_eq!(store.apply(&grant, &mut effects).unwrap_err(), Error::NoSpace);

    let mut replayed = Store::default();
    effects.iter().for_each(|effect| replayed.replay(effect.clone()).unwrap());
    assert_eq!(replayed.alarms().collect::<Vec<_>>(), [raised], "replay restores the alarm");

    let clear = alarm(AlarmKind::NoSpace, false);
    for expected in [true, false] {
        match store.apply(&clear, &mut effects).unwrap() {
            Reply::Alarm { changed, revision: r } => assert_eq!((changed, r), (expected, revision)),
            reply => panic!("{reply:?} is the reply to {clear:?}"),
        }
    }
    store.apply(&put("a"), &mut effects).unwrap();
}

#[test]
fn a_corrupt_alarm_rejects_all_changes_but_renewals() {
    let (mut store, mut effects) = (Store::default(), Effects::new());
    store.apply(&Command::LeaseGrant { id: 9, ttl_seconds: 10 }, &mut effects).unwrap();
    store.apply(&alarm(AlarmKind::Corrupt, true), &mut effects).unwrap();
    effects.clear();
    for command in [
        put("a"),
        delete("a"),
        Command::Compact { revision: 1 },
        Command::LeaseGrant { id: 1, ttl_seconds: 1 },
        Command::LeaseRevoke { id: 1 },
    ] {
        assert_eq!(
            store.apply(&command, &mut effects).unwrap_err(),
            Error::Corrupt,
            "the result of {command:?}"
        );
    }
    assert!(effects.is_empty());
    store.apply(&Command::LeaseRenew { id: 9 }, &mut effects).unwrap();
    store.apply(&alarm(AlarmKind::Corrupt, false), &mut effects).unwrap();
    store.apply(&put("a"), &mut effects).unwrap();
}
