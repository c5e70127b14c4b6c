//! The state: users, roles, and whether authentication is enabled.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::change::{Change, ChangeKind};
use crate::role::Role;
use crate::user::User;

/// Users, roles, and whether authentication is enabled. A clone shares users and roles.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    enabled: bool,
    revision: u64,
    users: BTreeMap<Arc<str>, Arc<User>>,
    roles: BTreeMap<Arc<str>, Arc<Role>>,
}

impl Default for State {
    fn default() -> Self {
        let (users, roles) = (BTreeMap::new(), BTreeMap::new());
        State { enabled: false, revision: State::FIRST_REVISION, users, roles }
    }
}

impl State {
    /// The revision of a new state, as in etcd.
    const FIRST_REVISION: u64 = 1;

    /// Whether authentication is enabled.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Returns the revision.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns a user.
    pub fn user(&self, name: &str) -> Option<&User> {
        self.users.get(name).map(|user| &**user)
    }

    /// Returns a role.
    pub fn role(&self, name: &str) -> Option<&Role> {
        self.roles.get(name).map(|role| &**role)
    }

    /// Returns the users, ordered by name.
    pub fn users(&self) -> impl Iterator<Item = (&Arc<str>, &User)> {
        self.users.iter().map(|(name, user)| (name, &**user))
    }

    /// Returns the roles, ordered by name.
    pub fn roles(&self) -> impl Iterator<Item = (&Arc<str>, &Role)> {
        self.roles.iter().map(|(name, role)| (name, &**role))
    }

    /// Returns the first user whose name is after `after`, or the first of all.
    pub(crate) fn user_after(&self, after: Option<&str>) -> Option<(&Arc<str>, &User)> {
        self.users.range::<str, _>(names_after(after)).next().map(|(name, user)| (name, &**user))
    }

    /// Returns the first role whose name is after `after`, or the first of all.
    pub(crate) fn role_after(&self, after: Option<&str>) -> Option<(&Arc<str>, &Role)> {
        self.roles.range::<str, _>(names_after(after)).next().map(|(name, role)| (name, &**role))
    }

    /// Whether nothing was ever changed.
    pub fn is_new(&self) -> bool {
        *self == State::default()
    }

    /// Applies a change.
    pub fn apply(&mut self, change: &Change) {
        self.revision = change.revision;
        match &change.kind {
            ChangeKind::Enabled => self.enabled = true,
            ChangeKind::Disabled => self.enabled = false,
            ChangeKind::UserPut(message) => {
                let user = User::from_message(message, &self.roles);
                self.users.insert(to_name(&message.name), Arc::new(user));
            }
            ChangeKind::UserDeleted { name } => drop(self.users.remove(&name[..])),
            ChangeKind::RolePut(message) => {
                let role = Role { permissions: message.key_permission.clone() };
                let name = to_name(&message.name);
                self.roles.insert(name.clone(), Arc::new(role));
                self.update_users_with(&name, |user| user);
            }
            ChangeKind::RoleDeleted { name } => {
                self.roles.remove(&name[..]);
                self.update_users_with(name, |mut user| {
                    user.roles.retain(|role| role != name);
                    user
                });
            }
        }
    }

    /// Changes the users who have a role, and computes the keys that they may touch.
    fn update_users_with(&mut self, role: &str, change: impl Fn(User) -> User) {
        for user in self.users.values_mut().filter(|user| user.has_role(role)) {
            *user = Arc::new(change(User::clone(user)).with_spans(&self.roles));
        }
    }
}

/// Returns the name of a user or role. Changes contain only names that are text.
fn to_name(name: &[u8]) -> Arc<str> {
    String::from_utf8_lossy(name).into()
}

/// Returns the bounds of the names after `after`.
fn names_after(after: Option<&str>) -> (Bound<&str>, Bound<&str>) {
    (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded)
}
