//! The flag --client-cert-permission: which keys a client may read and write, by the common name of
//! its certificate.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use clap::ValueEnum;

/// The name that stands for every client that no other permission names, with or without a
/// certificate.
pub const OTHERS: &str = "*";

/// Access to keys, by its name in `etcdctl role grant-permission`.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    #[value(name = "readwrite")]
    ReadWrite,
}

/// A permission, parsed from text such as `kube-gateway=readwrite:/registry/leases/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    name: String,
    grant: Grant,
}

/// Access to the keys with a prefix: those from `prefix` to the exclusive `end`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Grant {
    access: Access,
    prefix: Vec<u8>,
    end: Vec<u8>,
}

/// What one client may do. Everything else is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants(Vec<Grant>);

impl FromStr for Permission {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=').and_then(|(name, grant)| {
            let (access, prefix) = grant.split_once(':')?;
            Some((name, access, prefix))
        });
        let (name, access, prefix) = parts
            .ok_or("is not NAME=ACCESS:PREFIX, such as kube-gateway=readwrite:/registry/leases/")?;
        let access = Access::from_str(access, false)
            .map_err(|_| format!("has no access {access:?}: use read, write or readwrite"))?;
        if name.is_empty() {
            return Err("has an empty name; use * for all other clients".into());
        }
        let prefix = prefix.as_bytes().to_vec();
        let mut end = prefix.clone();
        // A byte of UTF-8 is below 0xff, so that the next prefix differs in the last byte only.
        *end.last_mut().ok_or("has an empty prefix, which matches every key")? += 1;
        Ok(Permission { name: name.into(), grant: Grant { access, prefix, end } })
    }
}

impl Permission {
    /// Whether the permission is that of all clients that no other permission names.
    pub fn is_for_others(&self) -> bool {
        self.name == OTHERS
    }
}

/// Returns the grants of each name.
pub fn by_name(permissions: &[Permission]) -> BTreeMap<String, Arc<Grants>> {
    let mut names: BTreeMap<String, Grants> = BTreeMap::new();
    for Permission { name, grant } in permissions {
        names.entry(name.clone()).or_default().0.push(grant.clone());
    }
    names.into_iter().map(|(name, grants)| (name, Arc::new(grants))).collect()
}

impl Grants {
    /// Whether the keys of a range may be read. As in all requests, an empty `range_end` means the
    /// single key `key`, and `"\0"` means all keys from `key` on. One prefix must contain the range.
    pub fn may_read(&self, key: &[u8], range_end: &[u8]) -> bool {
        self.0.iter().any(|grant| grant.access != Access::Write && grant.contains(key, range_end))
    }

    /// Whether the keys of a range may be written and deleted.
    pub fn may_write(&self, key: &[u8], range_end: &[u8]) -> bool {
        self.0.iter().any(|grant| grant.access != Access::Read && grant.contains(key, range_end))
    }
}

impl Grant {
    fn contains(&self, key: &[u8], range_end: &[u8]) -> bool {
        let ends_within = match range_end {
            [] => true,
            [0] => false,
            end => end <= &self.end[..],
        };
        key >= &self.prefix[..] && key < &self.end[..] && ends_within
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(texts: &[&str]) -> Grants {
        let permissions: Vec<Permission> = texts.iter().map(|text| text.parse().unwrap()).collect();
        let names = by_name(&permissions);
        assert_eq!(names.len(), 1);
        Grants::clone(names.values().next().unwrap())
    }

    #[test]
    fn a_range_must_be_within_one_prefix() {
        let grants = grants(&["a=readwrite:/l/"]);
        for (key, end, expected) in [
            ("/l/", "", true),
            ("/l/x", "", true),
            ("/l/\u{10ffff}", "", true),
            ("/l", "", false),
            ("/l0", "", false),
            ("/m", "", false),
            ("", "", false),
            ("\0", "", false),
            ("/l/", "/l0", true),
            ("/l/a", "/l/b", true),
            ("/l/", "/l0\0", false),
            ("/l/", "/l1", false),
            ("/l/", "\0", false),
            ("\0", "\0", false),
            ("", "\0", false),
            ("/l", "/l0", false),
            ("/k", "/l/b", false),
            ("/l/b", "/l/a", true),
            ("/m", "/l/a", false),
            ("/l/a", "\u{7f}", false),
        ] {
            let (key_bytes, end_bytes) = (key.as_bytes(), end.as_bytes());
            assert_eq!(grants.may_read(key_bytes, end_bytes), expected, "{key:?} {end:?}");
            assert_eq!(grants.may_write(key_bytes, end_bytes), expected, "{key:?} {end:?}");
        }
    }

    #[test]
    fn access_is_read_write_or_both() {
        let grants = grants(&["a=read:/r/", "a=write:/w/", "a=readwrite:/x/"]);
        for (key, read, write) in
            [("/r/1", true, false), ("/w/1", false, true), ("/x/1", true, true)]
        {
            assert_eq!(grants.may_read(key.as_bytes(), b""), read, "{key}");
            assert_eq!(grants.may_write(key.as_bytes(), b""), write, "{key}");
        }
        assert!(!Grants::default().may_read(b"a", b""));
    }

    #[test]
    fn invalid_permissions_are_refused() {
        for (text, expected) in [
            ("a", "is not NAME=ACCESS:PREFIX"),
            ("a=read", "is not NAME=ACCESS:PREFIX"),
            ("a=all:/x", "has no access"),
            ("a=read:", "empty prefix"),
            ("=read:/x", "empty name"),
        ] {
            let error = text.parse::<Permission>().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let colon: Permission = "system:x=read:/a:b=c".parse().unwrap();
        assert_eq!((colon.name.as_str(), &colon.grant.prefix[..]), ("system:x", &b"/a:b=c"[..]));
    }
}
