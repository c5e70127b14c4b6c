//! Requests of nodes that are served without an API server.

mod client;
mod detect;
pub mod leases;
mod permission;
mod watches;

use etcd_client::TlsFiles;

use crate::config::Store;

pub use client::Dialer;
pub use detect::Detection;
pub use permission::Permission;

/// The namespace of the Leases of nodes.
const NAMESPACE: &str = "kube-node-lease";

/// Returns what the keys of the Leases of nodes begin with.
fn lease_keys(store: &Store) -> String {
    format!("{}/leases/{NAMESPACE}/", store.prefix)
}

/// Returns the files with which the gateway connects to the store.
fn tls_files(store: &Store) -> TlsFiles {
    let Store { ca_file, cert_file, key_file, .. } = store.clone();
    TlsFiles { ca: ca_file, cert: cert_file, key: key_file }
}
