//! TLS with clients. As kube-apiserver does, the gateway asks for a client certificate, requires
//! none, and judges it with each request instead of in the handshake.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use arc_swap::ArcSwap;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::crypto::{
    WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::{
    DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::identity::ClientCa;

/// The files of the front.
#[derive(Clone, Debug)]
pub struct FrontFiles {
    /// The serving certificate.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The CA of the clients' certificates.
    pub client_ca: PathBuf,
    /// The front-proxy certificate, which the CA must not accept.
    pub front_proxy: PathBuf,
}

/// The current TLS configuration of the front.
pub struct FrontTls {
    files: FrontFiles,
    config: ArcSwap<ServerConfig>,
    /// The CA against which clients are verified.
    pub client_ca: Arc<ArcSwap<ClientCa>>,
}

impl FrontTls {
    /// Reads the files.
    pub fn new(files: FrontFiles) -> Result<FrontTls> {
        let (config, client_ca) = read(&files)?;
        let client_ca = Arc::new(ArcSwap::from_pointee(client_ca));
        Ok(FrontTls { files, config: ArcSwap::from_pointee(config), client_ca })
    }

    /// Reads the files again. If that fails, everything stays as it is.
    pub fn reload(&self) -> Result<()> {
        let (config, client_ca) = read(&self.files)?;
        self.config.store(Arc::new(config));
        self.client_ca.store(Arc::new(client_ca));
        Ok(())
    }

    /// The configuration of handshakes, with the current certificate.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.config.load_full()
    }
}

fn read(files: &FrontFiles) -> Result<(ServerConfig, ClientCa)> {
    let ca_certificates = sockets::read_certificates(&files.client_ca)?;
    let client_ca =
        ClientCa::new(&ca_certificates).with_context(|| files.client_ca.display().to_string())?;
    check_front_proxy(files, &client_ca)?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .with_context(|| format!("read the private key in {}", files.key.display()))?;
    let verifier = Arc::new(AnyCertificate::new(&ca_certificates)?);
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .context("choose TLS versions")?
        .with_client_cert_verifier(verifier)
        .with_single_cert(sockets::read_certificates(&files.cert)?, key)
        .with_context(|| format!("use the certificate in {}", files.cert.display()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((config, client_ca))
}

/// Refuses a client CA that accepts the front-proxy certificate: whoever has it could then be a user
/// by its name, and a client's certificate could pass for the front proxy.
fn check_front_proxy(files: &FrontFiles, client_ca: &ClientCa) -> Result<()> {
    let chain = sockets::read_certificates(&files.front_proxy)?;
    anyhow::ensure!(
        client_ca.verify(&chain, std::time::SystemTime::now()).is_err(),
        "the client CA in {} accepts the front-proxy certificate in {}; use a CA of its own for the front proxy",
        files.client_ca.display(),
        files.front_proxy.display()
    );
    Ok(())
}

/// Accepts any certificate whose private key the client has, or none.
#[derive(Debug)]
struct AnyCertificate {
    algorithms: WebPkiSupportedAlgorithms,
    /// The names of the client CA, from which clients choose a certificate.
    hints: Vec<DistinguishedName>,
}

impl AnyCertificate {
    fn new(ca: &[CertificateDer<'_>]) -> Result<AnyCertificate> {
        let hint = |der: &CertificateDer<'_>| -> Result<DistinguishedName> {
            let (_, certificate) = X509Certificate::from_der(der).context("parse the client CA")?;
            Ok(DistinguishedName::from(certificate.subject().as_raw().to_vec()))
        };
        let hints = ca.iter().map(hint).collect::<Result<_>>()?;
        Ok(AnyCertificate {
            algorithms: ring::default_provider().signature_verification_algorithms,
            hints,
        })
    }
}

impl ClientCertVerifier for AnyCertificate {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
