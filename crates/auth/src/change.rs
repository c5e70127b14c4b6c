//! Changes of the state, as the log stores them.

use etcdpb::authpb;
use prost::Message;
use prost::bytes::Bytes;

/// One change of the state.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The revision of the state after the change.
    pub revision: u64,
    /// What has changed.
    pub kind: ChangeKind,
}

/// What a [`Change`] changes.
#[derive(Clone, Debug, PartialEq)]
pub enum ChangeKind {
    /// Authentication was enabled.
    Enabled,
    /// Authentication was disabled.
    Disabled,
    /// A user was added or replaced. The name is valid UTF-8.
    UserPut(authpb::User),
    /// A user was deleted.
    UserDeleted {
        /// The name.
        name: String,
    },
    /// A role was added or replaced. The name is valid UTF-8. The keys that its users may touch
    /// change with it.
    RolePut(authpb::Role),
    /// A role was deleted, and taken from all users.
    RoleDeleted {
        /// The name.
        name: String,
    },
}

/// The error of bytes that are not the content of a change.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the user or role is malformed")]
pub struct MalformedChange;

impl ChangeKind {
    /// Size in bytes of [`ChangeKind::encode_content`].
    pub fn content_len(&self) -> usize {
        match self {
            ChangeKind::Enabled | ChangeKind::Disabled => 0,
            ChangeKind::UserPut(user) => user.encoded_len(),
            ChangeKind::RolePut(role) => role.encoded_len(),
            ChangeKind::UserDeleted { name } | ChangeKind::RoleDeleted { name } => name.len(),
        }
    }

    /// Returns what the log contains besides the kind: a message of etcd, or the name.
    pub fn encode_content(&self) -> Vec<u8> {
        match self {
            ChangeKind::Enabled | ChangeKind::Disabled => Vec::new(),
            ChangeKind::UserPut(user) => user.encode_to_vec(),
            ChangeKind::RolePut(role) => role.encode_to_vec(),
            ChangeKind::UserDeleted { name } | ChangeKind::RoleDeleted { name } => {
                name.as_bytes().to_vec()
            }
        }
    }

    /// Decodes a user that was put.
    ///
    /// # Errors
    /// If the bytes are no user whose name is text.
    pub fn decode_user(content: &[u8]) -> Result<Self, MalformedChange> {
        let user = authpb::User::decode(Bytes::copy_from_slice(content));
        let user = user.map_err(|_| MalformedChange)?;
        to_name(&user.name)?;
        Ok(ChangeKind::UserPut(user))
    }

    /// Decodes a role that was put.
    ///
    /// # Errors
    /// If the bytes are no role whose name is text.
    pub fn decode_role(content: &[u8]) -> Result<Self, MalformedChange> {
        let role = authpb::Role::decode(Bytes::copy_from_slice(content));
        let role = role.map_err(|_| MalformedChange)?;
        to_name(&role.name)?;
        Ok(ChangeKind::RolePut(role))
    }

    /// Decodes a user that was deleted.
    ///
    /// # Errors
    /// If the bytes are no text.
    pub fn decode_deleted_user(content: &[u8]) -> Result<Self, MalformedChange> {
        Ok(ChangeKind::UserDeleted { name: to_name(content)? })
    }

    /// Decodes a role that was deleted.
    ///
    /// # Errors
    /// If the bytes are no text.
    pub fn decode_deleted_role(content: &[u8]) -> Result<Self, MalformedChange> {
        Ok(ChangeKind::RoleDeleted { name: to_name(content)? })
    }
}

fn to_name(bytes: &[u8]) -> Result<String, MalformedChange> {
    String::from_utf8(bytes.to_vec()).map_err(|_| MalformedChange)
}
