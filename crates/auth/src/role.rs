//! Roles: named lists of permissions.

use etcdpb::authpb;
use etcdpb::authpb::permission::Type;

/// A role.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Role {
    /// The permissions, ordered by key.
    pub permissions: Vec<authpb::Permission>,
}

impl Role {
    /// Returns the message in which etcd stores the role.
    pub fn to_message(&self, name: &str) -> authpb::Role {
        authpb::Role {
            name: name.as_bytes().to_vec().into(),
            key_permission: self.permissions.clone(),
        }
    }

    /// Returns the role with another permission. A permission for the same range is replaced,
    /// but, as in etcd, only the first one of its key is compared.
    pub(crate) fn with(&self, permission: authpb::Permission) -> Role {
        let mut permissions = self.permissions.clone();
        let first = permissions.partition_point(|other| other.key < permission.key);
        let after = permissions.partition_point(|other| other.key <= permission.key);
        match permissions.get_mut(first) {
            Some(same) if same.key == permission.key && same.range_end == permission.range_end => {
                same.perm_type = permission.perm_type;
            }
            _ => permissions.insert(after, permission),
        }
        Role { permissions }
    }

    /// Returns the role without the permissions for a range; `None` if it has none.
    pub(crate) fn without(&self, key: &[u8], range_end: &[u8]) -> Option<Role> {
        let is_other = |permission: &&authpb::Permission| {
            permission.key != key || permission.range_end != range_end
        };
        let permissions: Vec<_> = self.permissions.iter().filter(is_other).cloned().collect();
        (permissions.len() < self.permissions.len()).then_some(Role { permissions })
    }

    /// Returns the ranges with a permission of one of these types: key and `range_end`. A type
    /// that does not exist permits nothing.
    pub(crate) fn ranges(&self, types: [Type; 2]) -> impl Iterator<Item = (&[u8], &[u8])> {
        let numbers = types.map(|kind| kind as i32);
        let permits =
            move |permission: &&authpb::Permission| numbers.contains(&permission.perm_type);
        self.permissions
            .iter()
            .filter(permits)
            .map(|permission| (&permission.key[..], &permission.range_end[..]))
    }
}

/// Whether a permission may be granted for a range: it has keys.
pub(crate) fn is_valid_range(key: &[u8], range_end: &[u8]) -> bool {
    !key.is_empty() && (range_end.is_empty() || range_end == [0] || key < range_end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permission(kind: Type, key: &'static str, end: &'static str) -> authpb::Permission {
        let (key, range_end) = (key.into(), end.into());
        authpb::Permission { perm_type: kind as i32, key, range_end }
    }

    #[test]
    fn permissions_are_ordered_by_key_and_replaced() {
        let role = Role::default()
            .with(permission(Type::Read, "b", "c"))
            .with(permission(Type::Read, "a", ""))
            .with(permission(Type::Write, "b", "d"))
            .with(permission(Type::Readwrite, "b", "c"));
        let expected = [
            permission(Type::Read, "a", ""),
            permission(Type::Readwrite, "b", "c"),
            permission(Type::Write, "b", "d"),
        ];
        assert_eq!(role.permissions, expected);
        // Not the first permission of its key: etcd does not find it.
        let twice = role.with(permission(Type::Read, "b", "d"));
        assert_eq!(twice.permissions.len(), 4);
        assert_eq!(twice.without(b"b", b"d").unwrap().permissions, expected[..2]);
        assert_eq!(role.without(b"b", b""), None);
    }

    #[test]
    fn ranges_must_have_keys() {
        for (key, end, expected) in [
            ("a", "", true),
            ("a", "b", true),
            ("a", "\0", true),
            ("", "", false),
            ("", "b", false),
            ("b", "a", false),
            ("a", "a", false),
        ] {
            assert_eq!(is_valid_range(key.as_bytes(), end.as_bytes()), expected, "{key} {end}");
        }
    }
}
