//! Header fields that carry an identity, and those that must not pass from clients.

use anyhow::{Context, Result};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::certificate::User;

/// The key of the extra field that names the credential of a request.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// The group that may do everything.
const MASTERS: &str = "system:masters";
/// The group of kubelets, and what their names begin with.
const NODES: &str = "system:nodes";
const NODE_PREFIX: &str = "system:node:";

/// Characters of an extra key that are legal in the name of a header field. All others are
/// percent-encoded; kube-apiserver decodes them.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Prefixes of header fields by which a client could claim to be somebody else, or to come from
/// another address. They are removed from each request. `HeaderName` is always in lower case.
const CLAIMS: [&str; 3] = ["x-remote-", "x-forwarded-", "x-real-ip"];

/// The names of the header fields, as in kube-apiserver's flags `--requestheader-*`.
#[derive(Clone, Debug)]
pub struct FieldNames {
    /// Field of the user's name.
    pub user: HeaderName,
    /// Field of the user's UID.
    pub uid: HeaderName,
    /// Field of a group.
    pub group: HeaderName,
    /// Prefix of the fields of extra values, in lower case.
    pub extra_prefix: String,
}

impl Default for FieldNames {
    fn default() -> Self {
        FieldNames {
            user: HeaderName::from_static("x-remote-user"),
            uid: HeaderName::from_static("x-remote-uid"),
            group: HeaderName::from_static("x-remote-group"),
            extra_prefix: "x-remote-extra-".into(),
        }
    }
}

impl FieldNames {
    /// Whether a request field of this name is a claim that only the gateway may make.
    fn is_claim(&self, name: &HeaderName) -> bool {
        let text = name.as_str();
        [&self.user, &self.uid, &self.group].contains(&name)
            || text.starts_with(&self.extra_prefix)
            || CLAIMS.iter().any(|prefix| text.starts_with(prefix))
    }

    /// Removes every claim of the client.
    pub fn remove_claims(&self, fields: &mut HeaderMap) {
        let claims: Vec<HeaderName> =
            fields.keys().filter(|name| self.is_claim(name)).cloned().collect();
        for name in claims {
            fields.remove(name);
        }
    }

    /// Encodes a user as header fields.
    ///
    /// # Errors
    /// If a name cannot be a field value. [`User::from_certificate`] does not return such a user.
    pub fn encode(&self, user: &User) -> Result<IdentityFields> {
        let value = |text: &str| HeaderValue::from_bytes(text.as_bytes()).context("a field value");
        let extra = format!("{}{}", self.extra_prefix, utf8_percent_encode(CREDENTIAL_ID, ESCAPED));
        let extra = HeaderName::from_bytes(extra.as_bytes()).context("the field of the extra")?;
        let mut fields = vec![(self.user.clone(), value(&user.name)?)];
        if let Some(uid) = &user.uid {
            fields.push((self.uid.clone(), value(uid)?));
        }
        // kube-apiserver ignores an empty field, and no rule can name an empty group.
        for group in user.groups.iter().filter(|group| !group.is_empty()) {
            fields.push((self.group.clone(), value(group)?));
        }
        fields.push((extra, value(&user.credential_id)?));
        let is_in = |name: &str| user.groups.iter().any(|group| group == name);
        let node = is_in(NODES) && user.name.starts_with(NODE_PREFIX);
        Ok(IdentityFields { fields, masters: is_in(MASTERS), node })
    }
}

/// The header fields of an identity, encoded once for all requests of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityFields {
    /// The first one is the user's name.
    fields: Vec<(HeaderName, HeaderValue)>,
    masters: bool,
    node: bool,
}

impl IdentityFields {
    /// The user's name.
    pub fn user(&self) -> &[u8] {
        self.fields.first().map(|(_, name)| name.as_bytes()).unwrap_or_default()
    }

    /// Whether the user is in the group `system:masters`, which kube-apiserver does not limit.
    pub fn is_master(&self) -> bool {
        self.masters
    }

    /// The name of the node, if the user is a kubelet (`NodeIdentity` in
    /// k8s.io/kubernetes/pkg/auth/nodeidentifier). Everything that a kubelet may do depends on it.
    pub fn node(&self) -> Option<&[u8]> {
        self.node.then(|| &self.user()[NODE_PREFIX.len()..])
    }

    /// All fields.
    pub fn fields(&self) -> &[(HeaderName, HeaderValue)] {
        &self.fields
    }

    /// Identifies the user with its groups, whatever the certificate.
    pub fn key(&self) -> Box<[u8]> {
        let mut key = Vec::new();
        // The last field is the credential.
        for (name, value) in &self.fields[..self.fields.len().saturating_sub(1)] {
            for part in [name.as_str().as_bytes(), value.as_bytes()] {
                key.extend_from_slice(&(part.len() as u32).to_le_bytes());
                key.extend_from_slice(part);
            }
        }
        key.into()
    }

    /// Adds the fields to a request from which the client's claims were removed.
    pub fn add_to(&self, fields: &mut HeaderMap) {
        for (name, value) in &self.fields {
            fields.append(name, value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_removed_whatever_their_case() {
        let mut fields = HeaderMap::new();
        for name in ["X-Remote-User", "x-REMOTE-extra-Scopes", "X-Forwarded-For", "X-Real-IP"] {
            fields.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), "a".parse().unwrap());
        }
        fields.append("impersonate-user", "b".parse().unwrap());
        FieldNames::default().remove_claims(&mut fields);
        assert_eq!(fields.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["impersonate-user"]);
    }

    #[test]
    fn an_identity_has_a_field_for_each_group() {
        let user = User {
            name: "system:node:a".into(),
            uid: Some("u".into()),
            groups: vec!["system:nodes".into(), "b".into()],
            credential_id: "X509SHA256=00".into(),
        };
        let mut fields = HeaderMap::new();
        FieldNames::default().encode(&user).unwrap().add_to(&mut fields);
        assert_eq!(fields["x-remote-user"], "system:node:a");
        assert_eq!(fields["x-remote-uid"], "u");
        assert_eq!(fields.get_all("x-remote-group").iter().count(), 2);
        assert!(!FieldNames::default().encode(&user).unwrap().is_master());
        let node = FieldNames::default().encode(&user).unwrap();
        assert_eq!(node.node(), Some(&b"a"[..]));
        let renewed = User { credential_id: "X509SHA256=01".into(), ..user.clone() };
        assert_eq!(FieldNames::default().encode(&renewed).unwrap().key(), node.key());
        for (name, group) in [("system:node:a", "b"), ("a", "system:nodes"), ("system:node", "")] {
            let user = User { name: name.into(), groups: vec![group.into()], ..user.clone() };
            let other = FieldNames::default().encode(&user).unwrap();
            assert!(other.node().is_none() && other.key() != node.key());
        }
        let admin = User { groups: vec!["a".into(), "system:masters".into()], ..user };
        let admin = FieldNames::default().encode(&admin).unwrap();
        assert!(admin.is_master() && admin.user() == b"system:node:a");
        let extra = "x-remote-extra-authentication.kubernetes.io%2fcredential-id";
        assert_eq!(fields[extra], "X509SHA256=00");
    }
}
