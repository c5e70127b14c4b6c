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
fn uuid(random: u128) -> [u8; 36] {
    let bits = (random & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
    let mut text = [b'-'; 36];
    let places = (0..text.len()).filter(|place| ![8, 13, 18, 23].contains(place));
    for (digit, place) in places.enumerate() {
        text[place] = b"0123456789abcdef"[(bits >> (124 - 4 * digit)) as usize & 0xf];
    }
    text
}

/// Returns the files with which the gateway connects to the store.
fn tls_files(store: &Store) -> TlsFiles {
    let Store { ca_file, cert_file, key_file, .. } = store.clone();
    TlsFiles { ca: ca_file, cert: cert_file, key: key_file }
}
