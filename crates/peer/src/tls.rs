//! TLS between members. Both sides present a certificate of the same CA. Changed files apply from
//! the next handshake on, as on the listeners for clients.
//!
//! A CA may have signed certificates of clients too. Therefore a certificate that its CA vouches
//! for is not enough: it must be valid for the peer URLs that its owner claims
//! ([`PeerTlsFiles::skip_client_san_verification`]).

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, ServerName};
use sockets::{Reloaded, read_ca_certificates, read_key_pair, read_revocations};
use tokio_rustls::rustls::client::{Resumption, WebPkiServerVerifier, verify_server_name};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::server::{
    NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier,
};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;

use crate::url::PeerUrl;

/// The protocol in the handshake of TLS.
const ALPN: &[u8] = b"k1m-peer";

/// The files of the TLS configuration, and what certificates of members must have.
#[derive(Clone, Debug)]
pub struct PeerTlsFiles {
    /// The certificate of this member.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The certificate with which this member connects to others, and its key; `None` if it is the
    /// same.
    pub client_cert: Option<(PathBuf, PathBuf)>,
    /// The CA of all members.
    pub trusted_ca: PathBuf,
    /// A list of revoked certificates.
    pub crl: Option<PathBuf>,
    /// Common names that certificates of members may have; empty if all are allowed.
    pub allowed_common_names: Vec<String>,
    /// Host names for one of which certificates of members must be valid; empty if all are allowed.
    pub allowed_hostnames: Vec<String>,
    /// Whether a member that connects need not have a certificate for the hosts of its peer URLs.
    pub skip_client_san_verification: bool,
}

/// Does TLS handshakes with the current content of the files.
pub struct PeerTls {
    files: PeerTlsFiles,
    current: Reloaded<(TlsAcceptor, TlsConnector)>,
}

impl PeerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// If a file cannot be read or used; the error names it.
    pub fn new(files: PeerTlsFiles) -> Result<PeerTls> {
        let read = files.clone();
        let current =
            Reloaded::new("the certificates for peers", paths(&files), move || load(&read))?;
        Ok(PeerTls { files, current })
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.current.current().0
    }

    pub(crate) fn connector(&self) -> TlsConnector {
        self.current.current().1
    }

    /// Whether the name in the certificate of a member is allowed.
    pub(crate) fn is_allowed(&self, certificate: &CertificateDer<'_>) -> bool {
        let PeerTlsFiles { allowed_common_names, allowed_hostnames, .. } = &self.files;
        let common_name = || {
            let names = common_names(certificate);
            names.iter().any(|name| allowed_common_names.contains(name))
        };
        let hostname = || allowed_hostnames.iter().any(|host| is_valid_for(certificate, host));
        (allowed_common_names.is_empty() || common_name())
            && (allowed_hostnames.is_empty() || hostname())
    }

    /// Whether a member with this certificate may claim these peer URLs.
    pub(crate) fn may_claim(&self, certificate: &CertificateDer<'_>, urls: &[String]) -> bool {
        let is_own = |url: &String| {
            let url: Result<PeerUrl, _> = url.parse();
            url.is_ok_and(|url| url.uses_tls() && is_valid_for(certificate, url.host()))
        };
        self.files.skip_client_san_verification || (!urls.is_empty() && urls.iter().all(is_own))
    }
}

fn is_valid_for(certificate: &CertificateDer<'_>, host: &str) -> bool {
    let Ok(name) = ServerName::try_from(host.to_owned()) else { return false };
    ParsedCertificate::try_from(certificate)
        .is_ok_and(|certificate| verify_server_name(&certificate, &name).is_ok())
}

fn common_names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let names = certificate.subject().iter_common_name();
    names.filter_map(|name| name.as_str().ok().map(str::to_owned)).collect()
}

fn load(files: &PeerTlsFiles) -> Result<(TlsAcceptor, TlsConnector)> {
    let roots = Arc::new(read_ca_certificates(&files.trusted_ca)?);
    let crl = files.crl.as_deref().map(read_revocations).transpose()?;
    let server = server_config(files, roots.clone(), crl.clone())?;
    let client = client_config(files, roots, crl)?;
    Ok((TlsAcceptor::from(Arc::new(server)), TlsConnector::from(Arc::new(client))))
}

fn server_config(
    files: &PeerTlsFiles,
    roots: Arc<RootCertStore>,
    crl: Option<CertificateRevocationListDer<'static>>,
) -> Result<ServerConfig> {
    let provider = Arc::new(ring::default_provider());
    // As in etcd, certificates that the list does not mention are accepted.
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
        .with_crls(crl)
        .allow_unknown_revocation_status()
        .build()
        .with_context(|| format!("use the CA in {}", files.trusted_ca.display()))?;
    let (chain, key) = read_key_pair(&files.cert, &files.key)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .expect("the provider has TLS 1.3")
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .with_context(|| format!("use the certificate in {}", files.cert.display()))?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    // A resumed session would not verify the certificate again.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn client_config(
    files: &PeerTlsFiles,
    roots: Arc<RootCertStore>,
    crl: Option<CertificateRevocationListDer<'static>>,
) -> Result<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider.clone())
        .with_crls(crl)
        .allow_unknown_revocation_status()
        .build()
        .with_context(|| format!("use the CA in {}", files.trusted_ca.display()))?;
    let (cert, key) = match &files.client_cert {
        Some((cert, key)) => (cert, key),
        None => (&files.cert, &files.key),
    };
    let (chain, private_key) = read_key_pair(cert, key)?;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .expect("the provider has TLS 1.3")
        .with_webpki_verifier(verifier)
        .with_client_auth_cert(chain, private_key)
        .with_context(|| format!("use the certificate in {}", cert.display()))?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Returns the files that are configured.
fn paths(files: &PeerTlsFiles) -> Vec<PathBuf> {
    let PeerTlsFiles { cert, key, client_cert, trusted_ca, crl, .. } = files;
    let client = client_cert.iter().flat_map(|(cert, key)| [cert, key]);
    [cert, key, trusted_ca].into_iter().chain(crl).chain(client).cloned().collect()
}
