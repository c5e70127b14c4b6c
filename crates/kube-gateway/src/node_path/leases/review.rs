//! Asks API servers who may renew Leases.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};

use crate::identity::{FieldNames, IdentityFields};
use crate::upstream::{Connector, GROUP, Pool, Protocol, Speaker, USER};

const URL: &str = "https://kubernetes/apis/authorization.k8s.io/v1/subjectaccessreviews";
const TIMEOUT: Duration = Duration::from_secs(5);
const MAX_ANSWER: usize = 64 << 10;

/// Sends SubjectAccessReviews as the gateway's own user, which must be allowed to create them.
pub struct Reviewer {
    /// The API servers.
    pub pool: Arc<Pool>,
    /// Opens connections to them.
    pub connector: Arc<Connector>,
    /// Names of the identity's fields.
    pub names: Arc<FieldNames>,
}

impl Reviewer {
    /// Returns whether somebody may renew every Lease of a node.
    ///
    /// # Errors
    /// If no API server says so.
    pub async fn may_renew(&self, identity: &IdentityFields) -> Result<bool> {
        let servers = self.pool.servers();
        let server = servers.iter().find(|server| server.is_ready());
        let server = server.context("no API server is ready")?;
        let ask = self.ask(&server.address, identity);
        tokio::time::timeout(TIMEOUT, ask).await?.with_context(|| server.address.clone())
    }

    async fn ask(&self, address: &str, identity: &IdentityFields) -> Result<bool> {
        let io = self.connector.connect(address, Speaker::FrontProxy, Protocol::Http2).await?;
        let builder = http2::Builder::new(TokioExecutor::new());
        let (mut sender, connection) = builder.handshake(TokioIo::new(io)).await?;
        // It ends when the sender is dropped.
        tokio::spawn(connection);
        let body = review(identity, &self.names)?.to_string();
        let request = Request::post(URL)
            .header(&self.names.user, HeaderValue::from_static(USER))
            .header(&self.names.group, HeaderValue::from_static(GROUP))
            .header("accept", "application/json")
            .header("content-type", "application/json")
            .header("user-agent", concat!("kube-gateway/", env!("CARGO_PKG_VERSION")))
            .body(Full::new(Bytes::from(body)))?;
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("{error}"))?.to_bytes();
        if status == StatusCode::FORBIDDEN {
            bail!(
                "the user {USER} may not create SubjectAccessReviews; apply deploy/kube-gateway/node-path.yaml"
            );
        }
        ensure!(status == StatusCode::CREATED, "status {status}");
        let review: Value = serde_json::from_slice(&body).context("parse the review")?;
        Ok(review["status"]["allowed"] == true && review["status"]["denied"] != true)
    }
}

/// Returns the review. Without a name, RBAC allows it only if every Lease of the namespace may be
/// updated.
fn review(identity: &IdentityFields, names: &FieldNames) -> Result<Value> {
    let mut spec = json!({
        "groups": [],
        "resourceAttributes": {
            "namespace": "kube-node-lease", "verb": "update",
            "group": "coordination.k8s.io", "version": "v1", "resource": "leases",
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
        let spec = &review(&names.encode(&user).unwrap(), &names).unwrap()["spec"];
        assert_eq!((&spec["user"], &spec["uid"]), (&json!("kwok"), &json!("u")));
        assert_eq!(spec["groups"], json!(["a", "b", "system:authenticated"]));
        assert_eq!(spec["resourceAttributes"]["name"], Value::Null);
    }
}
