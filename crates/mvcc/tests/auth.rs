//! Commands of clients while authentication is enabled.

use auth::{Caller, Error};
use etcdpb::authpb::Permission;
use etcdpb::authpb::permission::Type;
use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::{Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest};
use mvcc::{Alarm, AlarmKind, Command, Effects, Quota, Reply, SnapshotCursor, Store};

/// Who may read `r/`, write `w/`, and both `b/`.
const USER: &str = "u";

fn store() -> Store {
    let mut store = Store::default();
    let mut run = |command| drop(store.apply(&command, &mut Effects::new()).unwrap());
    for name in ["root", USER] {
        let (name, password_hash) = (name.into(), Vec::new());
        run(Command::Auth(auth::Command::UserAdd { name, password_hash, no_password: true }));
    }
    run(Command::Auth(auth::Command::RoleAdd { name: "role".into() }));
    for (kind, key, end) in
        [(Type::Read, "r/", "r0"), (Type::Write, "w/", "w0"), (Type::Readwrite, "b/", "b0")]
    {
        let (key, range_end) = (key.into(), end.into());
        let permission = Some(Permission { perm_type: kind as i32, key, range_end });
        run(Command::Auth(auth::Command::RoleGrantPermission { role: "role".into(), permission }));
    }
    for (user, role) in [("root", "root"), (USER, "role")] {
        let (user, role) = (user.into(), role.into());
        run(Command::Auth(auth::Command::UserGrantRole { user, role }));
    }
    for id in [1, 2, 3] {
        run(Command::LeaseGrant { id, ttl_seconds: 100 });
    }
    run(Command::Put(PutRequest { lease: 1, ..put("b/1") }));
    run(Command::Put(PutRequest { lease: 2, ..put("b/2") }));
    run(Command::Put(PutRequest { lease: 2, ..put("x") }));
    run(Command::Auth(auth::Command::Enable));
    store
}

fn put(key: &str) -> PutRequest {
    PutRequest { key: key.to_owned().into(), value: "v".into(), ..Default::default() }
}

fn delete(key: &str, end: &str) -> DeleteRangeRequest {
    let (key, range_end) = (key.to_owned().into(), end.to_owned().into());
    DeleteRangeRequest { key, range_end, prev_kv: false }
}

fn caller(store: &Store, name: &str) -> Caller {
    Caller::User { name: name.into(), revision: store.auth().revision() }
}

/// Executes a command as the user on a new store. Returns whether it was permitted.
fn may(command: &Command) -> bool {
    let mut store = store();
    let caller = caller(&store, USER);
    let mut effects = Effects::new();
    match mvcc::apply(&mut (&mut store), command, &caller, &mut effects) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error, Error::PermissionDenied.into());
            assert!(effects.is_empty(), "a refused command changes nothing");
            false
        }
    }
}

#[test]
fn puts_and_deletions_are_checked() {
    for (key, writes, both) in
        [("b/1", true, true), ("w/1", true, false), ("r/1", false, false), ("x", false, false)]
    {
        assert_eq!(may(&Command::Put(put(key))), writes, "{key}");
        assert_eq!(may(&Command::Put(PutRequest { prev_kv: true, ..put(key) })), both, "{key}");
        assert_eq!(may(&Command::DeleteRange(delete(key, ""))), writes, "{key}");
        let request = DeleteRangeRequest { prev_kv: true, ..delete(key, "") };
        assert_eq!(may(&Command::DeleteRange(request)), both, "{key}");
        assert!(!may(&Command::DeleteRange(delete(key, "\0"))), "{key}");
    }
    assert!(may(&Command::DeleteRange(delete("w/", "w0"))));
}

/// A key may not be attached to a lease that the user could not revoke.
#[test]
fn leases_are_checked_by_their_keys() {
    for (lease, expected) in [(1, true), (2, false), (3, true)] {
        let put = Command::Put(PutRequest { lease, ..put("b/new") });
        assert_eq!(may(&put), expected, "put with lease {lease}");
        assert_eq!(may(&Command::LeaseRevoke { id: lease }), expected, "revoke {lease}");
    }
    let mut store = store();
    let root = caller(&store, "root");
    let revoke = Command::LeaseRevoke { id: 2 };
    mvcc::apply(&mut (&mut store), &revoke, &root, &mut Effects::new()).unwrap();
}

#[test]
fn all_parts_of_a_transaction_are_checked() {
    let op = |request| RequestOp { request: Some(request) };
    let range = |key: &str| {
        let key = key.to_owned().into();
        op(Request::RequestRange(RangeRequest { key, ..Default::default() }))
    };
    for (operation, expected) in [
        (range("r/1"), true),
        (range("x"), false),
        (op(Request::RequestPut(put("w/1"))), true),
        (op(Request::RequestPut(put("r/1"))), false),
        (op(Request::RequestPut(PutRequest { lease: 2, ..put("w/1") })), false),
        (op(Request::RequestDeleteRange(delete("b/", "b0"))), true),
        (op(Request::RequestDeleteRange(delete("b/", "c"))), false),
    ] {
        let ops = vec![operation];
        let nested = TxnRequest { failure: ops.clone(), ..Default::default() };
        for request in [
            TxnRequest { success: ops.clone(), ..Default::default() },
            nested.clone(),
            TxnRequest { success: vec![op(Request::RequestTxn(nested))], ..Default::default() },
        ] {
            assert_eq!(may(&Command::Txn(request.clone())), expected, "{request:?}");
        }
    }
    for (key, expected) in [("r/1", true), ("b/1", true), ("w/1", false), ("x", false)] {
        let compare = Compare { key: key.into(), ..Default::default() };
        let request = TxnRequest { compare: vec![compare], ..Default::default() };
        assert_eq!(may(&Command::Txn(request.clone())), expected, "{key}");
        let store = store();
        let reads = mvcc::authorize_reads(store.auth(), &caller(&store, USER), &request);
        assert_eq!(reads.is_ok(), expected, "{key}");
    }
}

#[test]
fn only_root_changes_users() {
    let change = Command::Auth(auth::Command::RoleAdd { name: "new".into() });
    assert!(!may(&change));
    let mut store = store();
    let old = caller(&store, USER);
    let mut apply = |caller: &Caller, command: &Command| {
        mvcc::apply(&mut (&mut store), command, caller, &mut Effects::new())
    };
    let root = Caller::User { name: "root".into(), revision: 1 };
    assert_eq!(apply(&Caller::Anonymous, &change).unwrap_err(), Error::UserEmpty.into());
    assert!(matches!(apply(&root, &change), Ok(Reply::Done { .. })), "its revision is not checked");
    let write = Command::Put(put("w/1"));
    assert_eq!(apply(&old, &write).unwrap_err(), Error::OldRevision.into());
    assert_eq!(apply(&Caller::Anonymous, &write).unwrap_err(), Error::UserEmpty.into());
    assert!(apply(&Caller::Store, &write).is_ok());
}

/// An alarm is reported to everybody. A command that is not permitted raises none.
#[test]
fn alarms_come_first_and_the_quota_last() {
    let mut store = store();
    store.set_quota(Quota { bytes: 1, member_id: 7 });
    let user = caller(&store, USER);
    let apply = |store: &mut Store, command: &Command| {
        let mut access = store;
        mvcc::apply(&mut access, command, &user, &mut Effects::new()).unwrap_err()
    };
    assert_eq!(apply(&mut store, &Command::Put(put("x"))), Error::PermissionDenied.into());
    assert_eq!(store.alarms().count(), 0);
    assert_eq!(apply(&mut store, &Command::Put(put("w/1"))), mvcc::Error::NoSpace);
    let alarm = Alarm { kind: AlarmKind::NoSpace, member_id: 7 };
    assert!(store.alarms().eq([alarm]));
    assert_eq!(apply(&mut store, &Command::Put(put("x"))), mvcc::Error::NoSpace);
    let change = Command::Auth(auth::Command::Disable);
    store.apply(&change, &mut Effects::new()).unwrap();
}

#[test]
fn users_and_roles_survive_replay_and_snapshots() {
    let mut replayed = Store::default();
    let mut original = Store::default();
    for name in ["root", "a", "b"] {
        let (name, password_hash) = (name.into(), b"hash".to_vec());
        let add = auth::Command::UserAdd { name, password_hash, no_password: false };
        let mut effects = Effects::new();
        let command = Command::Auth(add);
        let bound = original.effect_bytes(&command);
        original.apply(&command, &mut effects).unwrap();
        let mut encoded = Vec::new();
        effects.iter().for_each(|effect| effect.encode(&mut encoded));
        assert!(encoded.len() <= bound);
        effects.into_iter().for_each(|effect| replayed.replay(effect).unwrap());
    }
    assert_eq!(original.auth(), replayed.auth());

    let original = store();
    let mut effects = Effects::new();
    let mut cursor = SnapshotCursor::new(&original, &mut effects);
    while cursor.step(&original, 2, &mut effects) {}
    let mut restored = Store::default();
    effects.into_iter().for_each(|effect| restored.replay(effect).unwrap());
    assert_eq!(restored.auth(), original.auth());
    assert_eq!(restored.revision(), original.revision());
}
