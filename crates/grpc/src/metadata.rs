//! What a client says about itself in the header fields of a call.

use std::sync::Arc;

use crate::budget::{Account, Share};
use crate::status::Status;

/// Maximum size of a token that is kept, in bytes. No valid token is longer, so a longer one is
/// shortened, which makes it invalid. The tokens of etcd that are signed with RSA keys of 4,096
/// bits have about 900 bytes.
const MAX_TOKEN_BYTES: usize = 4096;

/// The header fields that handlers may read, while they are being received.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    token: Option<String>,
    authorization: Option<String>,
    is_from_gateway: bool,
    requires_leader: bool,
}

impl Fields {
    /// Adds a field to `fields`, if handlers may read it.
    pub(crate) fn add(fields: &mut Option<Box<Fields>>, name: &[u8], value: &[u8]) {
        // Of a repeated field, the first value counts.
        let keep = |field: &mut Option<String>| {
            field.get_or_insert_with(|| {
                let kept = &value[..value.len().min(MAX_TOKEN_BYTES)];
                String::from_utf8_lossy(kept).into_owned()
            });
        };
        match name {
            b"token" => keep(&mut fields.get_or_insert_default().token),
            b"authorization" => keep(&mut fields.get_or_insert_default().authorization),
            b"grpcgateway-accept" => fields.get_or_insert_default().is_from_gateway = true,
            b"hasleader" => fields.get_or_insert_default().requires_leader = value == b"true",
            _ => {}
        }
    }

    fn bytes(&self) -> usize {
        let len = |field: &Option<String>| field.as_ref().map_or(0, String::len);
        size_of::<Metadata>() + len(&self.token) + len(&self.authorization)
    }
}

/// The header fields of a call that handlers may read. Calls with equal fields share them.
#[derive(Debug)]
pub(crate) struct Metadata {
    fields: Fields,
    /// Counts the memory.
    _share: Share,
}

impl Metadata {
    /// Returns `fields` as the metadata of a call. It is `last`, the metadata of another call of
    /// the connection, if that is equal. Fails if there is no memory for them.
    pub(crate) fn new(
        fields: Fields,
        last: &mut Option<Arc<Metadata>>,
        account: &Arc<Account>,
    ) -> Result<Arc<Self>, Status> {
        if let Some(last) = last.as_ref().filter(|last| last.fields == fields) {
            return Ok(last.clone());
        }
        let mut share = Share::new(account.clone());
        share.grow(fields.bytes())?;
        let metadata = Arc::new(Metadata { fields, _share: share });
        *last = Some(metadata.clone());
        Ok(metadata)
    }

    /// The token with which the client authenticates: the field `token`, or else
    /// `authorization`.
    pub(crate) fn token(&self) -> Option<&str> {
        let Fields { token, authorization, .. } = &self.fields;
        let token = token.as_deref().or(authorization.as_deref())?;
        Some(token.strip_prefix("Bearer ").unwrap_or(token))
    }

    /// Whether the client wants the call to fail while the cluster has no leader.
    pub(crate) fn requires_leader(&self) -> bool {
        self.fields.requires_leader
    }

    /// Whether a gateway of etcd forwards the call. The certificate of the connection is then
    /// that of the gateway.
    pub(crate) fn is_from_gateway(&self) -> bool {
        self.fields.is_from_gateway
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;

    fn fields(list: &[(&str, &str)]) -> Fields {
        let mut fields = None;
        let add = |(name, value): &(&str, &str)| {
            Fields::add(&mut fields, name.as_bytes(), value.as_bytes());
        };
        list.iter().for_each(add);
        *fields.unwrap_or_default()
    }

    fn token(list: &[(&str, &str)]) -> Option<String> {
        let account = Arc::new(Account::new(Budget::new(1 << 20)));
        let metadata = Metadata::new(fields(list), &mut None, &account).unwrap();
        metadata.token().map(str::to_owned)
    }

    #[test]
    fn the_token_is_found_as_in_etcd() {
        let found = |token: &str| Some(token.to_owned());
        assert_eq!(token(&[("other", "x")]), None);
        assert_eq!(token(&[("authorization", "a"), ("token", "b")]), found("b"));
        assert_eq!(token(&[("authorization", "Bearer a")]), found("a"));
        assert_eq!(token(&[("token", "Bearer a"), ("token", "b")]), found("a"));
        assert_eq!(token(&[("token", "")]), found(""));
        let long = "x".repeat(2 * MAX_TOKEN_BYTES);
        assert_eq!(token(&[("token", &long)]).unwrap().len(), MAX_TOKEN_BYTES);
    }

    #[test]
    fn a_client_may_require_a_leader() {
        assert!(fields(&[("hasleader", "true")]).requires_leader);
        assert!(!fields(&[("hasleader", "false")]).requires_leader);
    }

    /// A token can be a single index of HPACK, so thousands of calls with long tokens need few
    /// bytes.
    #[test]
    fn equal_metadata_is_shared_and_other_metadata_is_counted() {
        let account = Arc::new(Account::new(Budget::new(100_000)));
        let long = ["a", "b"].map(|letter| letter.repeat(MAX_TOKEN_BYTES));
        let mut last = None;
        let mut kept = Vec::new();
        for _ in 0..1000 {
            kept.push(Metadata::new(fields(&[("token", &long[0])]), &mut last, &account).unwrap());
        }
        let used = account.used();
        assert!((MAX_TOKEN_BYTES..2 * MAX_TOKEN_BYTES).contains(&used), "{used} bytes");
        let refused = (0..1000).find(|count| {
            let other = fields(&[("token", &long[count % 2])]);
            match Metadata::new(other, &mut last, &account) {
                Ok(metadata) => kept.push(metadata),
                Err(_) => return true,
            }
            false
        });
        assert!(refused.is_some_and(|count| count < 25), "{refused:?}");
        kept.clear();
        last = None;
        assert!(last.is_none() && account.used() == 0);
    }
}
