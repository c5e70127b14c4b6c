//! How an API server stores a Lease, found out by writing one.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use etcd_client::Connection;
use etcdpb::rpc::{RangeRequest, RangeResponse};
use http::{Method, StatusCode};
use node_lease::Lease;
use serde_json::json;

use crate::config::Store;
use crate::node_path::client::{Ask, Client, expect_status, status_error, within};
use crate::node_path::{NAMESPACE, lease_keys, tls_files};

/// The Lease that all gateways write. No Node has its name, so that the life-cycle controller, which
/// looks for the Leases of its Nodes, does not see it.
const NAME: &str = "kube-gateway-storage-probe";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const MANAGER: &str = "fieldManager=kube-gateway-storage-probe";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// The start of a value that is neither encrypted nor in another encoding.
const MAGIC: &[u8] = b"k8s\0";
/// Bytes of an answer, which is the probe or an error.
const MAX_ANSWER: usize = 64 << 10;
/// The store must answer within this time.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// Writes the probe through an API server and reads it from the store.
///
/// # Errors
/// If the store has another value than the API server answered, or if one of them failed. The error is [`Busy`] if one
/// was too busy to answer.
///
/// [`Busy`]: crate::node_path::client::Busy
pub async fn check(client: &Client, store: &Store) -> Result<()> {
    let answer = write(client).await?;
    let lease = Lease::parse(&answer).with_context(|| {
        format!("the Lease {NAME} has fields that the gateway did not write; delete it")
    })?;
    let version = lease.resource_version.context("the answer has no resourceVersion")?;
    let key = lease_keys(store) + NAME;
    let value = read(store, &key, version.get().cast_signed()).await?;
    let value = value.with_context(|| {
        format!("the store has no key {key}; check nodePath.store.endpoints and prefix")
    })?;
    compare(&lease, &value)
}

fn compare(answer: &Lease<'_>, value: &[u8]) -> Result<()> {
    ensure!(
        value.starts_with(MAGIC),
        "Leases are not stored as plain protobuf: the value begins with {:?}",
        String::from_utf8_lossy(&value[..value.len().min(20)])
    );
    ensure!(
        value == answer.stored(answer.managed_time),
        "a Lease is stored in another way than the gateway would store it"
    );
    Ok(())
}

/// Changes the probe, so that the API server has to write it. Returns its answer in protobuf.
async fn write(client: &Client) -> Result<Bytes> {
    let holder = format!("{:016x}", rand::random::<u64>());
    let path = format!("{LEASES}/{NAME}?{MANAGER}");
    let patch = json!({"spec": {"holderIdentity": holder}});
    let (code, body) = client
        .send(Ask {
            method: Method::PATCH,
            path: &path,
            accept: PROTOBUF,
            content_type: "application/merge-patch+json",
            body: patch.to_string().into(),
            max_answer: MAX_ANSWER,
        })
        .await?;
    match code {
        StatusCode::OK => Ok(body),
        StatusCode::NOT_FOUND => create(client, &holder).await,
        code => Err(status_error(&path, code)),
    }
}

async fn create(client: &Client, holder: &str) -> Result<Bytes> {
    let path = format!("{LEASES}?{MANAGER}");
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        // Only `holderIdentity` changes: the time has no meaning.
        "spec": {"holderIdentity": holder, "renewTime": "2026-01-01T00:00:00.000000Z"},
    });
    let (code, body) = client
        .send(Ask {
            method: Method::POST,
            path: &path,
            accept: PROTOBUF,
            content_type: "application/json",
            body: lease.to_string().into(),
            max_answer: MAX_ANSWER,
        })
        .await?;
    expect_status(&path, StatusCode::CREATED, code)?;
    Ok(body)
}

/// Reads a key as it was at a revision.
async fn read(store: &Store, key: &str, revision: i64) -> Result<Option<Bytes>> {
    let mut failure = anyhow::anyhow!("nodePath.store.endpoints is empty");
    for endpoint in &store.endpoints {
        match within(STORE_TIMEOUT, read_from(endpoint, store, key, revision)).await {
            Ok(value) => return Ok(value),
            Err(error) => failure = error.context(format!("the store {endpoint}")),
        }
    }
    Err(failure)
}

async fn read_from(
    endpoint: &str,
    store: &Store,
    key: &str,
    revision: i64,
) -> Result<Option<Bytes>> {
    let (connection, driver) = etcd_client::connect(endpoint, &tls_files(store)).await?;
    let request = RangeRequest { key: key.to_owned().into(), revision, ..Default::default() };
    tokio::select! {
        value = range(&connection, &request) => value,
        () = driver => bail!("the connection ended"),
    }
}

async fn range(connection: &Connection, request: &RangeRequest) -> Result<Option<Bytes>> {
    let response: RangeResponse = connection
        .call("/etcdserverpb.KV/Range", request)
        .await
        .map_err(|failure| anyhow::anyhow!("{}", failure.0))?;
    let pair = response.kvs.first();
    Ok(pair.map(|pair| Bytes::copy_from_slice(pair.value())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field with a length below 16,384.
    fn field(tag: &[u8], value: &[u8]) -> Vec<u8> {
        let len = value.len();
        let len = match len {
            0..128 => vec![len as u8],
            _ => vec![len as u8 | 0x80, (len >> 7) as u8],
        };
        [tag, &len, value].concat()
    }

    /// Returns a Lease in protobuf with this resourceVersion.
    fn lease(version: &str) -> Vec<u8> {
        let time = [0x08, 1, 0x10, 0];
        let entry = [
            &field(&[0x0a], b"m")[..],
            b"\x12\x06Update\x1a\x16coordination.k8s.io/v1",
            &field(&[0x22], &time),
            b"\x32\x08FieldsV1",
            &field(&[0x3a], b""),
            &[0x42, 0],
        ];
        let metadata = [
            field(&[0x0a], NAME.as_bytes()),
            field(&[0x12], b""),
            field(&[0x1a], b"kube-node-lease"),
            field(&[0x22], b""),
            field(&[0x2a], b"u"),
            field(&[0x32], version.as_bytes()),
            vec![0x38, 0],
            field(&[0x8a, 0x01], &entry.concat()),
        ];
        let spec = [field(&[0x0a], b"h"), field(&[0x22], &time)];
        let raw = [field(&[0x0a], &metadata.concat()), field(&[0x12], &spec.concat())];
        let head = b"k8s\0\x0a\x1f\x0a\x16coordination.k8s.io/v1\x12\x05Lease";
        [head, &field(&[0x12], &raw.concat())[..], &[0x1a, 0, 0x22, 0]].concat()
    }

    #[test]
    fn the_store_must_have_the_bytes_of_the_answer() {
        let (answer, stored) = (lease("7"), lease(""));
        let answer = Lease::parse(&answer).expect("the test encodes a Lease");
        compare(&answer, &stored).unwrap();
        let changed = [&stored[..stored.len() - 4], &[0x1a, 1, b'x', 0x22, 0]].concat();
        for (value, expected) in [
            (&b"k8s:enc:aescbc:v1:k:xyz"[..], "begins with \"k8s:enc"),
            (b"{\"kind\":\"Lease\"}", "begins with \"{"),
            (b"", "not stored as plain protobuf"),
            (&lease("7"), "in another way"),
            (&changed, "in another way"),
        ] {
            let error = compare(&answer, value).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
