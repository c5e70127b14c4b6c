//! The fields of requests that are served without an API server.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::ValueEnum;
use serde::Deserialize;

use super::size::Size;

/// The store accepts an object of 1.5 MB.
const MIN_REFERENCED_BYTES: u64 = 16 << 20;

/// Serving requests of nodes without an API server.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct NodePath {
    /// The store of the API servers.
    pub store: Store,
    /// Renewals of the Leases of nodes.
    pub leases: Leases,
    /// Watches and lists of kubelets and kube-proxies.
    pub watches: Watches,
}

/// The store of the API servers.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Store {
    /// URLs, as in kube-apiserver's `--etcd-servers`.
    pub endpoints: Vec<String>,
    /// The CA of the store's serving certificates, PEM; needed for https.
    pub ca_file: Option<PathBuf>,
    /// A client certificate, PEM.
    pub cert_file: Option<PathBuf>,
    /// Private key of the client certificate, PEM.
    pub key_file: Option<PathBuf>,
    /// As kube-apiserver's `--etcd-prefix`.
    pub prefix: String,
}

/// Renewals of the Leases of nodes.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Leases {
    /// What happens to a renewal.
    pub mode: LeaseMode,
    /// Comparisons without a difference for each version of the API servers, before renewals are
    /// served.
    pub comparisons: u64,
    /// Share of the forwarded renewals that are compared, from 0 to 1.
    pub sample: f64,
    /// The operator declares that the audit policy has the level None for renewals. Otherwise an audit
    /// policy forbids to serve them.
    pub audit_level_none: bool,
    /// Watches and lists of all Leases, or of a namespace: whether they are served from the store.
    pub watch: WatchMode,
}

/// What happens to renewals of Leases.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LeaseMode {
    /// They are forwarded.
    #[default]
    Off,
    /// They are forwarded, and what an API server does is compared with what would have been done.
    Shadow,
    /// They are served from the store, after enough comparisons.
    On,
}

/// Watches and lists of kubelets and kube-proxies.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Watches {
    /// What happens to them.
    pub mode: WatchMode,
    /// The operator declares that the audit policy has the level None for these reads, and for those of
    /// Leases. Otherwise an audit policy forbids to serve them.
    pub audit_level_none: bool,
    /// ConfigMaps and Secrets are served to the kubelets whose pods refer to them. The gateway watches and
    /// keeps all of them, for which its user needs permission.
    pub references: bool,
    /// The bytes that all ConfigMaps with their last changes may take, and all Secrets. Beyond that they
    /// are forwarded.
    pub max_referenced_bytes: Size,
}

/// What happens to watches and lists.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum WatchMode {
    /// They are forwarded.
    #[default]
    Off,
    /// They are served from the gateway's watch cache.
    On,
}

impl Default for Store {
    fn default() -> Self {
        let (endpoints, ca_file, cert_file, key_file) = (Vec::new(), None, None, None);
        Store { endpoints, ca_file, cert_file, key_file, prefix: "/registry".into() }
    }
}

impl Default for Watches {
    fn default() -> Self {
        Watches {
            mode: WatchMode::Off,
            audit_level_none: false,
            references: false,
            max_referenced_bytes: Size(256 << 20),
        }
    }
}

impl Default for Leases {
    fn default() -> Self {
        Leases {
            mode: LeaseMode::Off,
            comparisons: 1000,
            sample: 1.0,
            audit_level_none: false,
            watch: WatchMode::Off,
        }
    }
}

impl NodePath {
    /// Paths are relative to the folder of the configuration file.
    pub fn resolve_paths(&mut self, folder: &Path) {
        let Store { ca_file, cert_file, key_file, .. } = &mut self.store;
        for path in [ca_file, cert_file, key_file].into_iter().flatten() {
            *path = folder.join(&*path);
        }
    }

    /// Whether any watches and lists are served.
    pub fn serves_reads(&self) -> bool {
        self.watches.mode != WatchMode::Off || self.leases.watch != WatchMode::Off
    }

    /// Checks what the types do not.
    ///
    /// # Errors
    /// Returns a one-line message for the first invalid field.
    pub fn check(&self) -> Result<()> {
        let NodePath { store, leases, watches } = self;
        ensure!(leases.comparisons > 0, "nodePath.leases.comparisons must be at least 1");
        ensure!((0.0..=1.0).contains(&leases.sample), "nodePath.leases.sample must be from 0 to 1");
        store.check()?;
        ensure!(
            watches.max_referenced_bytes.0 >= MIN_REFERENCED_BYTES,
            "nodePath.watches.maxReferencedBytes must be at least {}Mi; set references to false to serve none",
            MIN_REFERENCED_BYTES >> 20
        );
        ensure!(
            leases.watch == WatchMode::Off || leases.mode != LeaseMode::Off,
            "nodePath.leases.watch is on and mode is off; only with mode shadow or on does the gateway examine \
             how Leases are stored"
        );
        if leases.mode == LeaseMode::Off {
            return Ok(());
        }
        ensure!(
            !store.endpoints.is_empty(),
            "nodePath.store.endpoints is empty; name the store of the API servers, or set nodePath.leases.mode to off"
        );
        ensure!(leases.sample > 0.0, "nodePath.leases.sample is 0; no renewal would be compared");
        Ok(())
    }
}

impl Store {
    fn check(&self) -> Result<()> {
        for endpoint in &self.endpoints {
            let https = endpoint.starts_with("https://");
            ensure!(
                https || endpoint.starts_with("http://"),
                "nodePath.store.endpoints: {endpoint:?} is not a URL such as https://10.0.0.1:2379"
            );
            ensure!(!https || self.ca_file.is_some(), "nodePath.store.caFile is needed for https");
        }
        ensure!(
            self.cert_file.is_some() == self.key_file.is_some(),
            "nodePath.store.certFile and keyFile are only valid together"
        );
        ensure!(
            self.prefix.starts_with('/') && !self.prefix.ends_with('/'),
            "nodePath.store.prefix {:?} must begin with a slash and not end with one",
            self.prefix
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> Result<()> {
        serde_saphyr::from_str::<NodePath>(text)?.check()
    }

    #[test]
    fn what_is_on_is_complete() {
        checked("{}").unwrap();
        checked("watches: {mode: on, auditLevelNone: true}").unwrap();
        checked("watches: {mode: on, references: true, maxReferencedBytes: 16Mi}").unwrap();
        assert!(!NodePath::default().watches.references, "Secrets are read only if that is said");
        let store = "store: {endpoints: ['http://127.0.0.1:2379']}";
        for mode in ["shadow", "on"] {
            checked(&format!("leases: {{mode: {mode}, auditLevelNone: true}}\n{store}")).unwrap();
            checked(&format!("leases: {{mode: {mode}, watch: on}}\n{store}")).unwrap();
        }
        for (text, expected) in [
            ("leases: {mode: on}".into(), "endpoints is empty"),
            (format!("leases: {{mode: on, sample: 0}}\n{store}"), "sample is 0"),
            ("leases: {sample: 2}".into(), "sample must be"),
            ("leases: {comparisons: 0}".into(), "comparisons must be"),
            ("leases: {mode: always}".into(), "always"),
            ("watches: {mode: shadow}".into(), "shadow"),
            (format!("leases: {{watch: on}}\n{store}"), "mode is off"),
            ("leases: {mode: on, watch: on}".into(), "endpoints is empty"),
            ("leases: {watch: shadow}".into(), "shadow"),
            ("watches: {leaseInterval: 5s}".into(), "leaseInterval"),
            ("watches: {references: 1}".into(), "references"),
            ("watches: {maxReferencedBytes: 15Mi}".into(), "at least 16Mi"),
            ("store: {endpoints: ['a:1']}".into(), "is not a URL"),
            ("store: {endpoints: ['https://a:1']}".into(), "caFile is needed"),
            ("store: {certFile: a}".into(), "only valid together"),
            ("store: {prefix: registry}".into(), "must begin with a slash"),
            ("store: {prefix: /registry/}".into(), "must begin with a slash"),
        ] {
            let error = format!("{:#}", checked(&text).unwrap_err());
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
