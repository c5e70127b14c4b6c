//! Commands, and the rules by which they are accepted.

use etcdpb::authpb;

use crate::ROOT;
use crate::change::{Change, ChangeKind};
use crate::error::Error;
use crate::role::{Role, is_valid_range};
use crate::state::State;
use crate::user::User;

/// A change that a client requests. Whether the client may request it is not checked here.
#[derive(Clone, Debug)]
pub enum Command {
    /// Enables authentication.
    Enable,
    /// Disables authentication.
    Disable,
    /// Adds a user.
    UserAdd {
        /// The name.
        name: String,
        /// The bcrypt hash of the password; empty for a user without password.
        password_hash: Vec<u8>,
        /// Whether the user has no password.
        no_password: bool,
    },
    /// Deletes a user.
    UserDelete {
        /// The name.
        name: String,
    },
    /// Changes the password of a user. That of a user without password stays empty.
    UserChangePassword {
        /// The name.
        name: String,
        /// The bcrypt hash of the password.
        password_hash: Vec<u8>,
    },
    /// Grants a role to a user.
    UserGrantRole {
        /// The name of the user.
        user: String,
        /// The name of the role.
        role: String,
    },
    /// Takes a role from a user.
    UserRevokeRole {
        /// The name of the user.
        user: String,
        /// The name of the role.
        role: String,
    },
    /// Adds a role without permissions.
    RoleAdd {
        /// The name.
        name: String,
    },
    /// Deletes a role, and takes it from all users.
    RoleDelete {
        /// The name.
        name: String,
    },
    /// Grants a permission to a role.
    RoleGrantPermission {
        /// The name of the role.
        role: String,
        /// The permission. Without one, the command is rejected.
        permission: Option<authpb::Permission>,
    },
    /// Takes the permissions for a range from a role.
    RoleRevokePermission {
        /// The name of the role.
        role: String,
        /// The first key.
        key: Vec<u8>,
        /// The end, as in requests.
        range_end: Vec<u8>,
    },
}

impl Command {
    /// Returns the change that the command causes; `None` if it changes nothing.
    ///
    /// # Errors
    /// If the command is rejected.
    pub fn evaluate(&self, state: &State) -> Result<Option<Change>, Error> {
        let kind = match self {
            Command::Enable => return enable(state),
            Command::Disable if !state.is_enabled() => return Ok(None),
            Command::Disable => ChangeKind::Disabled,
            Command::UserAdd { name, password_hash, no_password } => {
                user_add(state, name, password_hash, *no_password)?
            }
            Command::UserDelete { name } => user_delete(state, name)?,
            Command::UserChangePassword { name, password_hash } => {
                user_change_password(state, name, password_hash)?
            }
            Command::UserGrantRole { user, role } => match user_grant_role(state, user, role)? {
                Some(change) => change,
                None => return Ok(None),
            },
            Command::UserRevokeRole { user, role } => user_revoke_role(state, user, role)?,
            Command::RoleAdd { name } => role_add(state, name)?,
            Command::RoleDelete { name } => role_delete(state, name)?,
            Command::RoleGrantPermission { role, permission } => {
                role_grant_permission(state, role, permission.as_ref())?
            }
            Command::RoleRevokePermission { role, key, range_end } => {
                let changed = find_role(state, role)?.without(key, range_end);
                role_put(role, &changed.ok_or(Error::PermissionNotGranted)?)
            }
        };
        Ok(Some(Change { revision: state.revision() + 1, kind }))
    }
}

/// Enabling does not change the revision, so that tokens from before stay valid.
fn enable(state: &State) -> Result<Option<Change>, Error> {
    if state.is_enabled() {
        return Ok(None);
    }
    let root = state.user(ROOT).ok_or(Error::RootUserNotFound)?;
    match root.is_root() {
        true => Ok(Some(Change { revision: state.revision(), kind: ChangeKind::Enabled })),
        false => Err(Error::RootRoleNotGranted),
    }
}

fn user_add(
    state: &State,
    name: &str,
    password_hash: &[u8],
    no_password: bool,
) -> Result<ChangeKind, Error> {
    match () {
        () if name.is_empty() => Err(Error::UserEmpty),
        () if state.user(name).is_some() => Err(Error::UserExists),
        () => {
            let password_hash = password_hash.to_vec();
            Ok(user_put(name, &User { password_hash, no_password, ..User::default() }))
        }
    }
}

fn user_delete(state: &State, name: &str) -> Result<ChangeKind, Error> {
    if state.is_enabled() && name == ROOT {
        return Err(Error::InvalidManagement);
    }
    find_user(state, name)?;
    Ok(ChangeKind::UserDeleted { name: name.into() })
}

fn user_change_password(
    state: &State,
    name: &str,
    password_hash: &[u8],
) -> Result<ChangeKind, Error> {
    let user = find_user(state, name)?;
    let password_hash = if user.no_password { Vec::new() } else { password_hash.to_vec() };
    Ok(user_put(name, &User { password_hash, ..user.clone() }))
}

fn user_grant_role(state: &State, name: &str, role: &str) -> Result<Option<ChangeKind>, Error> {
    let mut user = find_user(state, name)?.clone();
    if role != ROOT {
        find_role(state, role)?;
    }
    match user.roles.binary_search_by(|own| own.as_str().cmp(role)) {
        Ok(_) => Ok(None),
        Err(position) => {
            user.roles.insert(position, role.into());
            Ok(Some(user_put(name, &user)))
        }
    }
}

fn user_revoke_role(state: &State, name: &str, role: &str) -> Result<ChangeKind, Error> {
    if state.is_enabled() && name == ROOT && role == ROOT {
        return Err(Error::InvalidManagement);
    }
    let mut user = find_user(state, name)?.clone();
    if !user.has_role(role) {
        return Err(Error::RoleNotGranted);
    }
    user.roles.retain(|own| own != role);
    Ok(user_put(name, &user))
}

fn role_add(state: &State, name: &str) -> Result<ChangeKind, Error> {
    match () {
        () if name.is_empty() => Err(Error::RoleEmpty),
        () if state.role(name).is_some() => Err(Error::RoleExists),
        () => Ok(role_put(name, &Role::default())),
    }
}

fn role_delete(state: &State, name: &str) -> Result<ChangeKind, Error> {
    if state.is_enabled() && name == ROOT {
        return Err(Error::InvalidManagement);
    }
    find_role(state, name)?;
    Ok(ChangeKind::RoleDeleted { name: name.into() })
}

fn role_grant_permission(
    state: &State,
    role: &str,
    permission: Option<&authpb::Permission>,
) -> Result<ChangeKind, Error> {
    let permission = permission.ok_or(Error::PermissionNotGiven)?;
    if !is_valid_range(&permission.key, &permission.range_end) {
        return Err(Error::InvalidManagement);
    }
    let changed = find_role(state, role)?.with(permission.clone());
    Ok(role_put(role, &changed))
}

fn find_user<'a>(state: &'a State, name: &str) -> Result<&'a User, Error> {
    state.user(name).ok_or(Error::UserNotFound)
}

fn find_role<'a>(state: &'a State, name: &str) -> Result<&'a Role, Error> {
    state.role(name).ok_or(Error::RoleNotFound)
}

fn user_put(name: &str, user: &User) -> ChangeKind {
    ChangeKind::UserPut(user.to_message(name))
}

fn role_put(name: &str, role: &Role) -> ChangeKind {
    ChangeKind::RolePut(role.to_message(name))
}
