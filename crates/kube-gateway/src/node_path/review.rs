//! Asks API servers what users may do.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::identity::{FieldNames, IdentityFields};
use crate::node_path::client::{Ask, Dialer, expect_status};
use crate::upstream::Pool;

const PATH: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
const TIMEOUT: Duration = Duration::from_secs(5);
const MAX_ANSWER: usize = 64 << 10;

/// What somebody wants to do with all objects of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The verb.
    pub verb: &'static str,
    /// The API group.
    pub group: &'static str,
    /// The resource.
    pub resource: &'static str,
    /// The namespace; empty for all.
    pub namespace: Cow<'static, str>,
}

/// Sends SubjectAccessReviews as the gateway's own user, which must be allowed to create them.
pub struct Reviewer {
    /// The API servers.
    pub pool: Arc<Pool>,
    /// Connects to them.
    pub dialer: Dialer,
}

impl Reviewer {
    /// Returns whether somebody may do this.
    ///
    /// # Errors
    /// If no API server says so.
    pub async fn allows(&self, identity: &IdentityFields, access: &Access) -> Result<bool> {
        let servers = self.pool.servers();
        let server = servers.iter().find(|server| server.is_ready());
        let server = server.context("no API server is ready")?;
        let ask = self.ask(&server.address, identity, access);
        tokio::time::timeout(TIMEOUT, ask).await?.with_context(|| server.address.clone())
    }

    async fn ask(&self, address: &str, identity: &IdentityFields, access: &Access) -> Result<bool> {
        let client = self.dialer.connect(address).await?;
        let ask = Ask {
            method: Method::POST,
            path: PATH,
            accept: "application/json",
            content_type: "application/json",
            body: review(identity, &self.dialer.names, access)?.to_string().into(),
            max_answer: MAX_ANSWER,
        };
        let (status, body) = client.send(ask).await?;
        expect_status(PATH, StatusCode::CREATED, status)?;
        let review: Value = serde_json::from_slice(&body).context("parse the review")?;
        Ok(review["status"]["allowed"] == true && review["status"]["denied"] != true)
    }
}

/// Returns the review. Without a name, RBAC allows it only for all objects.
fn review(identity: &IdentityFields, names: &FieldNames, access: &Access) -> Result<Value> {
    let Access { verb, group, resource, namespace } = access;
    let mut spec = json!({
        "groups": [],
        "resourceAttributes": {
            "namespace": namespace, "verb": verb,
            "group": group, "version": "v1", "resource": resource,
        },
    });
    let mut groups = Vec::new();
    for (name, value) in identity.fields() {
        let text = std::str::from_utf8(value.as_bytes()).context("a name is not UTF-8")?;
        if *name == names.user {
            spec["user"] = text.into();
        } else if *name == names.uid {
            spec["uid"] = text.into();
        } else if *name == names.group {
            groups.push(text);
        }
    }
    // kube-apiserver adds it to everybody with a valid certificate.
    groups.push("system:authenticated");
    spec["groups"] = groups.into();
    Ok(json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::User;

    #[test]
    fn the_review_names_the_user_and_all_groups() {
        let user = User {
            name: "kwok".into(),
            uid: Some("u".into()),
            groups: vec!["a".into(), "b".into()],
            credential_id: "X509SHA256=00".into(),
        };
        let names = FieldNames::default();
        let (verb, group, resource, namespace) = ("list", "", "services", "".into());
        let access = Access { verb, group, resource, namespace };
        let spec = &review(&names.encode(&user).unwrap(), &names, &access).unwrap()["spec"];
        assert_eq!((&spec["user"], &spec["uid"]), (&json!("kwok"), &json!("u")));
        assert_eq!(spec["groups"], json!(["a", "b", "system:authenticated"]));
        assert_eq!(spec["resourceAttributes"]["name"], Value::Null);
        assert_eq!(spec["resourceAttributes"]["resource"], "services");
    }
}
