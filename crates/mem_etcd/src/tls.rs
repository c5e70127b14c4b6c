//! TLS of the client listeners.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::config::TlsFiles;

/// Reads the certificates, if there are any.
pub fn acceptor(files: &TlsFiles) -> Result<Option<TlsAcceptor>> {
    let (Some(cert), Some(key)) = (&files.cert_file, &files.key_file) else { return Ok(None) };
    let chain = certificates(cert)?;
    let key = PrivateKeyDer::from_pem_file(key)
        .with_context(|| format!("read the private key in {}", key.display()))?;
    let builder = ServerConfig::builder();
    let builder = match &files.trusted_ca_file {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let verifier = WebPkiClientVerifier::builder(Arc::new(roots(ca)?))
                .build()
                .with_context(|| format!("use the CA in {}", ca.display()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .with_context(|| format!("use the certificate in {}", cert.display()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}

fn roots(path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).with_context(|| format!("use the CA in {}", path.display()))?;
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .with_context(|| format!("read the certificates in {}", path.display()))?;
    ensure!(!certificates.is_empty(), "{} holds no certificate in PEM form", path.display());
    Ok(certificates)
}
