//! TLS between members. Both sides present a certificate of the same CA. Changed files apply from
//! the next handshake on, as on the listeners for clients.
//!
//! A CA may have signed certificates of clients too. Therefore a certificate that its CA vouches
//! for is not enough: it must be valid for the peer URLs that its owner claims
//! ([`PeerTlsFiles::skip_client_san_verification`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use parking_lot::Mutex;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName};
use sockets::{FileStamp, read_ca_certificates, read_certificates};
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
    current: Mutex<Current>,
}

#[derive(Clone)]
struct Current {
    acceptor: TlsAcceptor,
    connector: TlsConnector,
    /// The stamps of the files before the last attempt to read them, which may have failed.
    stamps: Vec<Option<FileStamp>>,
}

impl PeerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// If a file cannot be read or used; the error names it.
    pub fn new(files: PeerTlsFiles) -> Result<PeerTls> {
        let stamps = stamps(&files);
        let (acceptor, connector) = load(&files)?;
        Ok(PeerTls { files, current: Mutex::new(Current { acceptor, connector, stamps }) })
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.current().acceptor
    }

    pub(crate) fn connector(&self) -> TlsConnector {
        self.current().connector
    }

    /// Reads the files again if they have changed. If they cannot be used, for example because only
    /// one of them has been replaced so far, the previous ones stay.
    fn current(&self) -> Current {
        let stamps = stamps(&self.files);
        let mut current = self.current.lock();
        if stamps != current.stamps {
            current.stamps = stamps;
            match load(&self.files) {
                Ok((acceptor, connector)) => {
                    tracing::info!("reloaded the certificates for peers");
                    (current.acceptor, current.connector) = (acceptor, connector);
                }
                Err(error) => tracing::warn!(
                    error = format!("{error:#}"),
                    "failed to reload the certificates for peers, keeping the previous ones"
                ),
            }
        }
        current.clone()
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
    let (chain, key) = read_pair(&files.cert, &files.key)?;
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
    let (chain, private_key) = read_pair(cert, key)?;
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

type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn read_pair(cert: &Path, key: &Path) -> Result<Pair> {
    let private_key = PrivateKeyDer::from_pem_file(key)
        .with_context(|| format!("read the private key in {}", key.display()))?;
    Ok((read_certificates(cert)?, private_key))
}

/// Reads the list of revoked certificates in PEM or DER format.
fn read_revocations(path: &Path) -> Result<CertificateRevocationListDer<'static>> {
    let content = std::fs::read(path)
        .with_context(|| format!("read the revocations in {}", path.display()))?;
    Ok(CertificateRevocationListDer::from_pem_slice(&content).unwrap_or_else(|_| content.into()))
}

/// Returns the stamp of each file; `None` for a file that is missing or not configured.
fn stamps(files: &PeerTlsFiles) -> Vec<Option<FileStamp>> {
    let (client_cert, client_key) =
        files.client_cert.iter().map(|(a, b)| (a, b)).unzip::<_, _, Vec<_>, Vec<_>>();
    [Some(&files.cert), Some(&files.key), Some(&files.trusted_ca), files.crl.as_ref()]
        .into_iter()
        .chain(client_cert.into_iter().map(Some))
        .chain(client_key.into_iter().map(Some))
        .map(|path| FileStamp::of(path?))
        .collect()
}
