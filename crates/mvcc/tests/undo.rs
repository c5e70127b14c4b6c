//! Undo: what the model of `model.rs` does not have: alarms, users, and counts over many changes.

use etcdpb::rpc::{DeleteRangeRequest, PutRequest, RangeRequest};
use mvcc::{Alarm, AlarmKind, Command, Effects, Error, Quota, RangeCursor, Store};

fn put(key: String) -> Command {
    Command::Put(PutRequest { key: key.into(), value: vec![0; 100].into(), ..Default::default() })
}

#[test]
fn alarms_are_restored() {
    let (mut store, mut effects) = (Store::default(), Effects::new());
    store.set_quota(Quota { bytes: 1000, member_id: 7 });
    let corrupt = Alarm { kind: AlarmKind::Corrupt, member_id: 7 };
    let no_space = Alarm { kind: AlarmKind::NoSpace, member_id: 7 };
    let alarm = |alarm, raised| Command::Alarm { alarm, raised };
    store.begin_undo();
    // The rejected command raises an alarm.
    let rejection = loop {
        if let Err(error) = store.apply(&put("a".to_owned()), &mut effects) {
            break error;
        }
    };
    assert_eq!(rejection, Error::NoSpace);
    let first = store.end_undo();
    store.begin_undo();
    store.apply(&alarm(no_space, false), &mut effects).unwrap();
    store.apply(&alarm(corrupt, true), &mut effects).unwrap();
    store.apply(&alarm(corrupt, true), &mut effects).unwrap();
    let second = store.end_undo();
    assert_eq!(store.alarms().collect::<Vec<_>>(), [corrupt]);
    store.undo(second);
    assert_eq!(store.alarms().collect::<Vec<_>>(), [no_space]);
    store.undo(first);
    assert_eq!(store.alarms().count(), 0);
    assert_eq!((store.revision(), store.stats()), (1, Store::default().stats()));
}

#[test]
fn users_are_restored() {
    let (mut store, mut effects) = (Store::default(), Effects::new());
    let role = |name: &str| Command::Auth(auth::Command::RoleAdd { name: name.to_owned() });
    store.apply(&role("first"), &mut effects).unwrap();
    let before = store.auth().revision();
    store.begin_undo();
    store.apply(&role("second"), &mut effects).unwrap();
    let undo = store.end_undo();
    assert!(store.auth().role("second").is_some());
    store.undo(undo);
    assert!(store.auth().role("second").is_none() && store.auth().role("first").is_some());
    assert_eq!(store.auth().revision(), before);
}

/// A count that has begun before changes are taken back counts what remains.
#[test]
fn counts_in_progress_begin_again() {
    let (mut store, mut effects) = (Store::default(), Effects::new());
    for number in 0..5000 {
        store.apply(&put(format!("key{number:04}")), &mut effects).unwrap();
    }
    let published = store.revision();
    let (key, range_end) = (vec![0], vec![0]);
    let delete = DeleteRangeRequest {
        key: key.clone().into(),
        range_end: range_end.clone().into(),
        ..Default::default()
    };
    store.begin_undo();
    for number in 0..3000 {
        store.apply(&put(format!("new{number:04}")), &mut effects).unwrap();
    }
    store.apply(&Command::DeleteRange(delete), &mut effects).unwrap();
    let undo = store.end_undo();
    let start = |revision: i64| {
        let (key, range_end) = (key.clone().into(), range_end.clone().into());
        let request =
            RangeRequest { key, range_end, revision, count_only: true, ..Default::default() };
        let mut cursor = RangeCursor::new(&store, &request, published, true).unwrap();
        assert!(!cursor.step(&store, 1), "it is not complete after one step");
        cursor
    };
    let cursors = [(5000, start(published)), (2500, start(2501))];
    store.undo(undo);
    // Further changes are not counted either.
    for number in 0..2000 {
        store.apply(&put(format!("other{number:04}")), &mut effects).unwrap();
    }
    for (expected, mut cursor) in cursors {
        while !cursor.step(&store, 1) {}
        assert_eq!(cursor.finish().count, expected);
    }
}

/// Readers see a compaction only when it can no longer be taken back.
#[test]
fn compactions_are_published() {
    let (mut store, mut effects) = (Store::default(), Effects::new());
    for number in 0..10 {
        store.apply(&put(format!("key{number}")), &mut effects).unwrap();
    }
    let compact = |revision| Command::Compact { revision };
    store.apply(&compact(3), &mut effects).unwrap();
    assert_eq!(store.compacted(), 3);
    let old = RangeRequest { key: b"key1".to_vec().into(), revision: 5, ..Default::default() };
    let read = |store: &Store| RangeCursor::new(store, &old, store.revision(), true).map(drop);
    for taken_back in [true, false] {
        store.begin_undo();
        store.apply(&compact(7), &mut effects).unwrap();
        let undo = store.end_undo();
        assert_eq!((store.compacted(), read(&store)), (3, Ok(())));
        let again = store.apply(&compact(6), &mut effects).unwrap_err();
        assert_eq!(again, Error::Compacted);
        match taken_back {
            true => store.undo(undo),
            false => store.publish_compacted(7),
        }
    }
    assert_eq!((store.compacted(), read(&store)), (7, Err(Error::Compacted)));
}
