//! Users.

use std::collections::BTreeMap;
use std::sync::Arc;

use etcdpb::authpb;
use etcdpb::authpb::permission::Type;

use crate::ROOT;
use crate::role::Role;
use crate::spans::Spans;

/// A user.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct User {
    /// The bcrypt hash of the password; empty if there is none.
    pub password_hash: Vec<u8>,
    /// Whether the user was created without a password: a certificate has to prove the name.
    pub no_password: bool,
    /// The names of the roles, ordered.
    pub roles: Vec<String>,
    /// The keys that the roles permit to read.
    pub may_read: Spans,
    /// The keys that the roles permit to write.
    pub may_write: Spans,
}

impl User {
    /// Whether the user may do everything.
    pub fn is_root(&self) -> bool {
        self.has_role(ROOT)
    }

    /// Whether the user has a role.
    pub fn has_role(&self, role: &str) -> bool {
        self.roles.iter().any(|own| own == role)
    }

    /// Returns the message in which etcd stores the user.
    pub fn to_message(&self, name: &str) -> authpb::User {
        authpb::User {
            name: name.as_bytes().to_vec().into(),
            password: self.password_hash.clone().into(),
            roles: self.roles.clone(),
            options: Some(authpb::UserAddOptions { no_password: self.no_password }),
        }
    }

    /// Creates a user from the message in which etcd stores it. `roles` are those that exist.
    pub(crate) fn from_message(
        message: &authpb::User,
        roles: &BTreeMap<Arc<str>, Arc<Role>>,
    ) -> Self {
        let mut own = message.roles.clone();
        own.sort();
        let user = User {
            password_hash: message.password.to_vec(),
            no_password: message.options.as_ref().is_some_and(|options| options.no_password),
            roles: own,
            ..User::default()
        };
        user.with_spans(roles)
    }

    /// Returns the user with the keys that its roles permit.
    pub(crate) fn with_spans(mut self, roles: &BTreeMap<Arc<str>, Arc<Role>>) -> Self {
        let union = |types: [Type; 2]| {
            let own = self.roles.iter().filter_map(|name| roles.get(&name[..]));
            Spans::union(own.flat_map(|role| role.ranges(types)))
        };
        let (may_read, may_write) =
            (union([Type::Read, Type::Readwrite]), union([Type::Write, Type::Readwrite]));
        (self.may_read, self.may_write) = (may_read, may_write);
        self
    }
}
