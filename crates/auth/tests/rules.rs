//! The rules by which users and roles change, and by which requests are permitted.

use std::sync::Arc;

use auth::{Caller, ChangeKind, Command, Error, Export, State};
use etcdpb::authpb::Permission;
use etcdpb::authpb::permission::Type;

/// A state with a short way to change it.
#[derive(Default)]
struct Store(State);

impl Store {
    /// Executes a command. Returns whether it changed anything.
    fn run(&mut self, command: Command) -> Result<bool, Error> {
        let change = command.evaluate(&self.0)?;
        if let Some(change) = &change {
            self.0.apply(change);
        }
        Ok(change.is_some())
    }

    fn user_add(&mut self, name: &str) -> Result<bool, Error> {
        let password_hash = b"hash".to_vec();
        self.run(Command::UserAdd { name: name.into(), password_hash, no_password: false })
    }

    fn grant(&mut self, user: &str, role: &str) -> Result<bool, Error> {
        self.run(Command::UserGrantRole { user: user.into(), role: role.into() })
    }

    fn revoke(&mut self, user: &str, role: &str) -> Result<bool, Error> {
        self.run(Command::UserRevokeRole { user: user.into(), role: role.into() })
    }

    fn role_add(&mut self, name: &str) -> Result<bool, Error> {
        self.run(Command::RoleAdd { name: name.into() })
    }

    fn permit(&mut self, role: &str, kind: Type, key: &str, end: &str) -> Result<bool, Error> {
        let (key, range_end) = (key.to_owned().into(), end.to_owned().into());
        let permission = Some(Permission { perm_type: kind as i32, key, range_end });
        self.run(Command::RoleGrantPermission { role: role.into(), permission })
    }

    fn forbid(&mut self, role: &str, key: &str, end: &str) -> Result<bool, Error> {
        let (key, range_end) = (key.into(), end.into());
        self.run(Command::RoleRevokePermission { role: role.into(), key, range_end })
    }

    /// A store with the user root, and the user u with the role r, which may read a..c and write b..d.
    /// Authentication is enabled.
    fn enabled() -> Self {
        let mut store = Store::default();
        for name in ["root", "u"] {
            store.user_add(name).unwrap();
        }
        for role in ["root", "r"] {
            store.role_add(role).unwrap();
        }
        store.permit("r", Type::Read, "a", "c").unwrap();
        store.permit("r", Type::Write, "b", "d").unwrap();
        store.grant("u", "r").unwrap();
        store.grant("root", "root").unwrap();
        assert_eq!(store.run(Command::Enable), Ok(true));
        store
    }

    fn caller(&self, name: &str) -> Caller {
        Caller::User { name: name.into(), revision: self.0.revision() }
    }

    fn may_read(&self, name: &str, key: &str, end: &str) -> Result<(), Error> {
        self.0.permit(&self.caller(name)).read(key.as_bytes(), end.as_bytes())
    }

    fn may_write(&self, name: &str, key: &str, end: &str) -> Result<(), Error> {
        self.0.permit(&self.caller(name)).write(key.as_bytes(), end.as_bytes())
    }
}

const DENIED: Result<(), Error> = Err(Error::PermissionDenied);

#[test]
fn names_must_be_new_or_known() {
    let mut store = Store::default();
    assert_eq!(store.user_add(""), Err(Error::UserEmpty));
    assert_eq!(store.user_add("u"), Ok(true));
    assert_eq!(store.user_add("u"), Err(Error::UserExists));
    assert_eq!(store.role_add(""), Err(Error::RoleEmpty));
    assert_eq!(store.role_add("r"), Ok(true));
    assert_eq!(store.role_add("r"), Err(Error::RoleExists));
    assert_eq!(store.grant("v", "r"), Err(Error::UserNotFound));
    assert_eq!(store.grant("u", "s"), Err(Error::RoleNotFound));
    assert_eq!(store.revoke("u", "r"), Err(Error::RoleNotGranted));
    assert_eq!(store.grant("u", "r"), Ok(true));
    assert_eq!(store.grant("u", "r"), Ok(false), "granted already");
    assert_eq!(store.revoke("u", "r"), Ok(true));
    assert_eq!(store.revoke("v", "r"), Err(Error::UserNotFound));
    assert_eq!(store.permit("s", Type::Read, "a", ""), Err(Error::RoleNotFound));
    assert_eq!(store.permit("r", Type::Read, "b", "a"), Err(Error::InvalidManagement));
    assert_eq!(store.forbid("r", "a", ""), Err(Error::PermissionNotGranted));
    assert_eq!(store.forbid("s", "a", ""), Err(Error::RoleNotFound));
    let nothing = Command::RoleGrantPermission { role: "r".into(), permission: None };
    assert_eq!(store.run(nothing), Err(Error::PermissionNotGiven));
    let (name, password_hash) = ("v".into(), Vec::new());
    let unknown = Command::UserChangePassword { name, password_hash };
    assert_eq!(store.run(unknown), Err(Error::UserNotFound));
    assert_eq!(store.run(Command::UserDelete { name: "v".into() }), Err(Error::UserNotFound));
    assert_eq!(store.run(Command::RoleDelete { name: "s".into() }), Err(Error::RoleNotFound));
    // One, and one for each of four changes.
    assert_eq!(store.0.revision(), 5);
}

#[test]
fn root_is_needed() {
    let mut store = Store::default();
    assert_eq!(store.run(Command::Enable), Err(Error::RootUserNotFound));
    store.user_add("root").unwrap();
    assert_eq!(store.run(Command::Enable), Err(Error::RootRoleNotGranted));
    assert_eq!(store.grant("root", "root"), Ok(true), "the role need not exist");
    let before = store.0.revision();
    assert_eq!(store.run(Command::Enable), Ok(true));
    assert_eq!(store.run(Command::Enable), Ok(false));
    assert_eq!(store.0.revision(), before, "tokens stay valid");
    let delete = || Command::UserDelete { name: "root".into() };
    assert_eq!(store.run(delete()), Err(Error::InvalidManagement));
    assert_eq!(store.revoke("root", "root"), Err(Error::InvalidManagement));
    let role = Command::RoleDelete { name: "root".into() };
    assert_eq!(store.run(role), Err(Error::InvalidManagement));
    assert_eq!(store.run(Command::Disable), Ok(true));
    assert_eq!(store.run(Command::Disable), Ok(false));
    assert_eq!(store.0.revision(), before + 1);
    assert_eq!(store.run(delete()), Ok(true));
}

#[test]
fn users_may_do_what_their_roles_permit() {
    let mut store = Store::enabled();
    assert_eq!(store.may_read("u", "a", "c"), Ok(()));
    assert_eq!(store.may_read("u", "c", ""), DENIED);
    assert_eq!(store.may_write("u", "b", "d"), Ok(()));
    assert_eq!(store.may_write("u", "a", ""), DENIED);
    assert_eq!(store.may_read("root", "a", "\0"), Ok(()));
    assert_eq!(store.may_read("nobody", "a", ""), DENIED);
    store.permit("r", Type::Readwrite, "c", "e").unwrap();
    assert_eq!(store.may_read("u", "a", "e"), Ok(()), "permissions that touch are joined");
    assert_eq!(store.may_write("u", "b", "e"), Ok(()));
    store.forbid("r", "a", "c").unwrap();
    assert_eq!(store.may_read("u", "a", ""), DENIED);
    assert_eq!(store.may_read("u", "d", ""), Ok(()));
    store.run(Command::RoleDelete { name: "r".into() }).unwrap();
    assert_eq!(store.may_read("u", "d", ""), DENIED);
    assert!(store.0.user("u").unwrap().roles.is_empty());
    // A new role with the name is not that of the user.
    store.role_add("r").unwrap();
    store.permit("r", Type::Read, "a", "\0").unwrap();
    assert_eq!(store.may_read("u", "d", ""), DENIED);
}

#[test]
fn callers_must_be_known_and_current() {
    let mut store = Store::enabled();
    let old = store.caller("root");
    let read = |store: &Store, caller: &Caller| store.0.permit(caller).read(b"a", b"");
    assert_eq!(read(&store, &Caller::Anonymous), Err(Error::UserEmpty));
    let without_revision = Caller::User { name: "root".into(), revision: 0 };
    assert_eq!(read(&store, &without_revision), Err(Error::UserEmpty));
    assert_eq!(read(&store, &Caller::Store), Ok(()));
    assert_eq!(read(&store, &old), Ok(()));
    store.role_add("other").unwrap();
    assert_eq!(read(&store, &old), Err(Error::OldRevision));
    assert_eq!(store.0.check_admin(&old), Ok(()), "as in etcd");
    assert_eq!(store.0.check_admin(&store.caller("u")), DENIED);
    assert_eq!(store.0.check_admin(&store.caller("nobody")), Err(Error::UserNotFound));
    assert_eq!(store.0.check_admin(&store.caller("")), Err(Error::UserEmpty));
    assert_eq!(store.0.check_admin(&Caller::Anonymous), Err(Error::UserEmpty));
    assert_eq!(store.0.check_admin(&Caller::Store), Ok(()));
    store.run(Command::Disable).unwrap();
    assert_eq!(read(&store, &Caller::Anonymous), Ok(()));
    assert_eq!(store.0.check_admin(&Caller::Anonymous), Ok(()));
}

#[test]
fn an_export_leads_to_the_same_state() {
    let mut store = Store::enabled();
    let (name, password_hash) = ("certificate".into(), Vec::new());
    store.run(Command::UserAdd { name, password_hash, no_password: true }).unwrap();
    store.grant("certificate", "r").unwrap();
    for disabled in [false, true] {
        if disabled {
            store.run(Command::Disable).unwrap();
        }
        let mut copy = State::default();
        for change in Export::new(Arc::new(store.0.clone())) {
            let content = change.kind.encode_content();
            assert_eq!(content.len(), change.kind.content_len());
            let decoded = match &change.kind {
                ChangeKind::UserPut(_) => ChangeKind::decode_user(&content).unwrap(),
                ChangeKind::RolePut(_) => ChangeKind::decode_role(&content).unwrap(),
                kind => kind.clone(),
            };
            assert_eq!(decoded, change.kind);
            copy.apply(&change);
        }
        assert_eq!(copy, store.0);
    }
    assert_eq!(Export::new(Arc::default()).count(), 0);
}

#[test]
fn a_user_without_password_gets_none() {
    let mut store = Store::default();
    let name = || "c".to_owned();
    let (password_hash, no_password) = (Vec::new(), true);
    store.run(Command::UserAdd { name: name(), password_hash, no_password }).unwrap();
    let password_hash = b"hash".to_vec();
    let change = Command::UserChangePassword { name: name(), password_hash };
    assert_eq!(store.run(change), Ok(true));
    assert!(store.0.user("c").unwrap().password_hash.is_empty());
    assert!(ChangeKind::decode_user(b"\x0a\x01\xff").is_err(), "the name is no text");
    assert!(ChangeKind::decode_role(b"\x0a\x7f").is_err());
    assert!(ChangeKind::decode_deleted_user(b"\xff").is_err());
}
