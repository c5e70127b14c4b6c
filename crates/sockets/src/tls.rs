//! TLS for client listeners. As in etcd, changed certificate files apply from the next
//! handshake on. Open connections are not affected. Sessions with client certificates are not
//! resumed, so that each connection has a certificate that is valid at its start.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{
    ProtocolVersion, RootCertStore, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion,
};
use tokio_rustls::server::TlsStream;

use crate::reload::Reloaded;
use crate::socket_url::SocketUrl;

/// A chain of certificates, and the private key of the first one.
pub type KeyPair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Flags for TLS on the client listeners.
#[derive(Args, Clone, Debug)]
pub struct TlsFiles {
    /// Path to the server's TLS certificate.
    #[arg(long, env = "ETCD_CERT_FILE", value_name = "FILE")]
    pub cert_file: Option<PathBuf>,

    /// Path to the server's TLS key.
    #[arg(long, env = "ETCD_KEY_FILE", value_name = "FILE")]
    pub key_file: Option<PathBuf>,

    /// Path to the CA that signs client certificates; if set, every client must present a
    /// certificate of this CA, as in etcd.
    #[arg(long, env = "ETCD_TRUSTED_CA_FILE", value_name = "FILE")]
    pub trusted_ca_file: Option<PathBuf>,

    /// Path to a list of revoked client certificates.
    #[arg(long, env = "ETCD_CLIENT_CRL_FILE", value_name = "FILE")]
    pub client_crl_file: Option<PathBuf>,

    /// Lowest TLS version that clients may use.
    #[arg(long, env = "ETCD_TLS_MIN_VERSION", value_enum, default_value_t = TlsVersion::Tls12)]
    pub tls_min_version: TlsVersion,

    /// Highest TLS version that clients may use [default: TLS1.3]
    #[arg(long, env = "ETCD_TLS_MAX_VERSION", value_enum)]
    pub tls_max_version: Option<TlsVersion>,

    /// Cipher suites of TLS 1.2 by their names in Go, comma-separated [default: all that
    /// are considered secure]
    #[arg(long, env = "ETCD_CIPHER_SUITES", value_name = "NAMES", value_delimiter = ',')]
    pub cipher_suites: Vec<String>,

    /// Require client certificates.
    #[arg(long, env = "ETCD_CLIENT_CERT_AUTH", value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value = "false", default_missing_value = "true", value_parser = BoolishValueParser::new())]
    pub client_cert_auth: bool,
}

/// TLS versions by their names in etcd.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// TLS 1.2.
    #[value(name = "TLS1.2")]
    Tls12,
    /// TLS 1.3.
    #[value(name = "TLS1.3")]
    Tls13,
}

impl TlsFiles {
    /// Checks that the flags are consistent with each other and with the listeners.
    pub fn validate(&self, listens: &[SocketUrl]) -> Result<(), String> {
        if self.cert_file.is_some() != self.key_file.is_some() {
            return Err("--cert-file and --key-file must be set together".into());
        }
        let secure = listens.iter().find(|listen| listen.uses_tls());
        if let (Some(listen), None) = (secure, &self.cert_file) {
            return Err(format!("{listen} needs --cert-file and --key-file"));
        }
        if self.client_cert_auth && self.trusted_ca_file.is_none() {
            return Err("--client-cert-auth needs --trusted-ca-file".into());
        }
        if self.client_crl_file.is_some() && self.trusted_ca_file.is_none() {
            return Err("--client-crl-file needs --trusted-ca-file".into());
        }
        if self.tls_max_version.is_some_and(|max| max < self.tls_min_version) {
            return Err("--tls-max-version is below --tls-min-version".into());
        }
        if self.tls_min_version == TlsVersion::Tls13 && !self.cipher_suites.is_empty() {
            return Err("--cipher-suites cannot be chosen for TLS 1.3".into());
        }
        Ok(())
    }
}

/// Does TLS handshakes with the current content of the certificate files.
#[derive(Clone)]
pub struct Acceptor(Arc<Reloaded<TlsAcceptor>>);

/// Reads the certificate files and returns an acceptor; `None` if no certificate is
/// configured.
pub fn tls_acceptor(files: &TlsFiles) -> Result<Option<Acceptor>> {
    let TlsFiles { cert_file, key_file, trusted_ca_file, client_crl_file, .. } = files.clone();
    let (Some(cert), Some(key)) = (cert_file.clone(), key_file.clone()) else { return Ok(None) };
    let paths = [cert_file, key_file, trusted_ca_file, client_crl_file];
    let files = files.clone();
    let load = move || Ok(TlsAcceptor::from(Arc::new(server_config(&files, &cert, &key)?)));
    let reloaded = Reloaded::new("certificates", paths.into_iter().flatten().collect(), load)?;
    Ok(Some(Acceptor(Arc::new(reloaded))))
}

impl Acceptor {
    /// Does the server side of a handshake.
    pub async fn accept<IO>(&self, io: IO) -> io::Result<TlsStream<IO>>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        self.0.current().accept(io).await
    }
}

fn server_config(files: &TlsFiles, cert: &Path, key: &Path) -> Result<ServerConfig> {
    let provider = Arc::new(crypto_provider(files)?);
    let (chain, key) = read_key_pair(cert, key)?;
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&tls_versions(files))
        .context("use --cipher-suites")?;
    let builder = match &files.trusted_ca_file {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let crl = files.client_crl_file.as_deref();
            builder.with_client_cert_verifier(client_verifier(ca, crl, provider)?)
        }
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .with_context(|| format!("use the certificate in {}", cert.display()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    if files.trusted_ca_file.is_some() {
        // A resumed session does not verify the client's certificate again, which may have
        // expired or been revoked since.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(config)
}

fn client_verifier(
    ca: &Path,
    crl: Option<&Path>,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>> {
    let mut builder =
        WebPkiClientVerifier::builder_with_provider(Arc::new(read_ca_certificates(ca)?), provider);
    if let Some(crl) = crl {
        // As in etcd, certificates that the list does not mention are accepted.
        builder = builder.with_crls([read_revocations(crl)?]).allow_unknown_revocation_status();
    }
    builder.build().with_context(|| format!("use the CA in {}", ca.display()))
}

/// Reads the list of revoked certificates in PEM or DER format.
pub fn read_revocations(path: &Path) -> Result<CertificateRevocationListDer<'static>> {
    let content =
        fs::read(path).with_context(|| format!("read the revocations in {}", path.display()))?;
    Ok(CertificateRevocationListDer::from_pem_slice(&content).unwrap_or_else(|_| content.into()))
}

fn tls_versions(files: &TlsFiles) -> Vec<&'static SupportedProtocolVersion> {
    let max = files.tls_max_version.unwrap_or(TlsVersion::Tls13);
    [(TlsVersion::Tls12, &TLS12), (TlsVersion::Tls13, &TLS13)]
        .into_iter()
        .filter(|(version, _)| (files.tls_min_version..=max).contains(version))
        .map(|(_, version)| version)
        .collect()
}

/// Returns a cryptography provider that has the configured cipher suites of TLS 1.2. As
/// in Go, the cipher suites of TLS 1.3 are not configurable.
fn crypto_provider(files: &TlsFiles) -> Result<CryptoProvider> {
    let mut provider = ring::default_provider();
    if files.cipher_suites.is_empty() {
        return Ok(provider);
    }
    let is_tls12 =
        |suite: &SupportedCipherSuite| suite.version().version == ProtocolVersion::TLSv1_2;
    let name = |suite: &SupportedCipherSuite| suite.suite().as_str().unwrap_or_default();
    let offered: Vec<_> = provider.cipher_suites.iter().filter(|s| is_tls12(s)).map(name).collect();
    for requested in &files.cipher_suites {
        let full = full_suite_name(requested);
        let is_tls13 = full.starts_with("TLS_AES_") || full.starts_with("TLS_CHACHA20_");
        ensure!(
            is_tls13 || offered.contains(&full.as_str()),
            "--cipher-suites: {requested} is not available; supported: {}",
            offered.join(", ")
        );
    }
    let is_requested = |suite: &SupportedCipherSuite| {
        files.cipher_suites.iter().any(|requested| full_suite_name(requested) == name(suite))
    };
    provider.cipher_suites.retain(|suite| !is_tls12(suite) || is_requested(suite));
    Ok(provider)
}

/// Returns the full name of a cipher suite. Go has short names for two of them.
fn full_suite_name(name: &str) -> String {
    if name.ends_with("_CHACHA20_POLY1305") { format!("{name}_SHA256") } else { name.to_owned() }
}

/// Reads the CA certificates in a file.
pub fn read_ca_certificates(path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        roots.add(certificate).with_context(|| format!("use the CA in {}", path.display()))?;
    }
    Ok(roots)
}

/// Reads the certificates and the private key in two PEM files.
pub fn read_key_pair(cert: &Path, key: &Path) -> Result<KeyPair> {
    let chain = read_certificates(cert)?;
    let private_key = PrivateKeyDer::from_pem_file(key)
        .with_context(|| format!("read the private key in {}", key.display()))?;
    Ok((chain, private_key))
}

/// Reads the certificates in a PEM file. Fails if the file contains none.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .with_context(|| format!("read the certificates in {}", path.display()))?;
    ensure!(!certificates.is_empty(), "{} contains no PEM certificate", path.display());
    Ok(certificates)
}
