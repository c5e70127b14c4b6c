//! Requests of nodes that are served without an API server.

mod client;
mod detect;
pub mod leases;
mod permission;
mod review;
mod reviews;
pub mod watches;

use etcd_client::TlsFiles;

use crate::config::Store;

pub use client::Dialer;
pub use detect::Detection;
pub use permission::Permission;
pub use review::Reviewer;

/// The namespace of the Leases of nodes.
const NAMESPACE: &str = "kube-node-lease";

/// Returns what the keys of the Leases of nodes begin with.
fn lease_keys(store: &Store) -> String {
    format!("{}/leases/{NAMESPACE}/", store.prefix)
}

/// Writes a random number as a UUID of version 4, such as the `Audit-Id` of an answer.
fn uuid(random: u128) -> String {
    let bits = (random & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Returns the files with which the gateway connects to the store.
fn tls_files(store: &Store) -> TlsFiles {
    let Store { ca_file, cert_file, key_file, .. } = store.clone();
    TlsFiles { ca: ca_file, cert: cert_file, key: key_file }
}
