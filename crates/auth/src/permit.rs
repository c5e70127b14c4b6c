//! Checks whether a client may do something.

use std::sync::Arc;

use crate::error::Error;
use crate::spans::Spans;
use crate::state::State;
use crate::user::User;

/// Who requests something.
#[derive(Clone, Debug)]
pub enum Caller {
    /// The store itself, for example because a lease has expired. It may do everything.
    Store,
    /// A client that has not said who it is, or that was not asked because authentication was
    /// disabled.
    Anonymous,
    /// A client that has proved its name.
    User {
        /// The name, which need not be that of a user.
        name: Arc<str>,
        /// The revision of the state for which the proof holds; 0 if it does not say.
        revision: u64,
    },
}

impl Caller {
    /// The name; empty if there is none.
    pub fn name(&self) -> &str {
        match self {
            Caller::User { name, .. } => name,
            Caller::Store | Caller::Anonymous => "",
        }
    }
}

/// What a caller may do with keys.
#[derive(Clone, Copy, Debug)]
pub struct Permit<'a>(Result<Access<'a>, Error>);

#[derive(Clone, Copy, Debug)]
enum Access<'a> {
    Everything,
    Of(&'a User),
}

impl State {
    /// Fails unless `caller` may do what only users with the role root may do.
    ///
    /// # Errors
    /// If the caller has no name, is no user, or has not the role root.
    pub fn check_admin(&self, caller: &Caller) -> Result<(), Error> {
        if !self.is_enabled() {
            return Ok(());
        }
        let name = match caller {
            Caller::Store => return Ok(()),
            Caller::User { name, .. } if !name.is_empty() => name,
            Caller::User { .. } | Caller::Anonymous => return Err(Error::UserEmpty),
        };
        match self.user(name) {
            None => Err(Error::UserNotFound),
            Some(user) if user.is_root() => Ok(()),
            Some(_) => Err(Error::PermissionDenied),
        }
    }

    /// Returns what `caller` may do with keys.
    pub fn permit(&self, caller: &Caller) -> Permit<'_> {
        Permit(self.access(caller))
    }

    fn access(&self, caller: &Caller) -> Result<Access<'_>, Error> {
        let (name, revision) = match caller {
            _ if !self.is_enabled() => return Ok(Access::Everything),
            Caller::Store => return Ok(Access::Everything),
            Caller::Anonymous | Caller::User { revision: 0, .. } => return Err(Error::UserEmpty),
            Caller::User { name, revision } => (name, *revision),
        };
        if revision < self.revision() {
            return Err(Error::OldRevision);
        }
        match self.user(name) {
            None => Err(Error::PermissionDenied),
            Some(user) if user.is_root() => Ok(Access::Everything),
            Some(user) => Ok(Access::Of(user)),
        }
    }
}

impl Permit<'_> {
    /// Fails unless the keys of a range may be read. `range_end` is as in requests.
    ///
    /// # Errors
    /// Why not.
    pub fn read(&self, key: &[u8], range_end: &[u8]) -> Result<(), Error> {
        self.check(|user| user.may_read.covers(key, range_end))
    }

    /// Fails unless the keys of a range may be written and deleted.
    ///
    /// # Errors
    /// Why not.
    pub fn write(&self, key: &[u8], range_end: &[u8]) -> Result<(), Error> {
        self.check(|user| user.may_write.covers(key, range_end))
    }

    /// Fails unless all keys of a set may be read. `has_key_outside` tells whether the set has
    /// keys that are not in the spans.
    ///
    /// # Errors
    /// Why not.
    pub fn read_all(&self, has_key_outside: impl FnOnce(&Spans) -> bool) -> Result<(), Error> {
        self.check(|user| !has_key_outside(&user.may_read))
    }

    /// Fails unless all keys of a set may be written. `has_key_outside` tells whether the set
    /// has keys that are not in the spans.
    ///
    /// # Errors
    /// Why not.
    pub fn write_all(&self, has_key_outside: impl FnOnce(&Spans) -> bool) -> Result<(), Error> {
        self.check(|user| !has_key_outside(&user.may_write))
    }

    fn check(&self, permits: impl FnOnce(&User) -> bool) -> Result<(), Error> {
        match self.0? {
            Access::Everything => Ok(()),
            Access::Of(user) if permits(user) => Ok(()),
            Access::Of(_) => Err(Error::PermissionDenied),
        }
    }
}
