//! Client certificates that expire between two connections.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use sockets::{Acceptor, TlsFiles, tls_acceptor};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};

/// How long the certificate of the client is valid in the first attempt.
const VALIDITY: Duration = Duration::from_secs(2);
/// How long it is valid in the last attempt.
const MAX_VALIDITY: Duration = Duration::from_secs(128);

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    tls: TlsFiles,
}

/// A server's acceptor, and a client that resumes sessions with a certificate that is valid for a
/// time.
fn server_and_client(
    dir: &Path,
    version: &'static SupportedProtocolVersion,
    validity: Duration,
) -> (Acceptor, TlsConnector) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let server = CertificateParams::new(vec!["server".to_owned()]).unwrap();
    let certificate = server.signed_by(&key, &ca).unwrap();
    let files = [("ca", ca.pem()), ("cert", certificate.pem()), ("key", key.serialize_pem())];
    let paths = files.map(|(name, content)| {
        std::fs::write(dir.join(name), content).unwrap();
        dir.join(name).to_str().unwrap().to_owned()
    });
    let [ca_file, cert_file, key_file] = &paths;
    let flags = ["server", "--trusted-ca-file", ca_file, "--cert-file", cert_file];
    let flags = Flags::parse_from(flags.iter().chain(&["--key-file", key_file]));
    let acceptor = tls_acceptor(&flags.tls).unwrap().unwrap();

    let key = KeyPair::generate().unwrap();
    let mut client = CertificateParams::new(vec!["client".to_owned()]).unwrap();
    let end = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + validity;
    client.not_after = date_time_ymd(1970, 1, 1) + end;
    let certificate = CertificateDer::from(client.signed_by(&key, &ca).unwrap());
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(ca.der().to_vec())).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![certificate.into_owned()], key)
        .unwrap();
    (acceptor, TlsConnector::from(Arc::new(config)))
}

/// Connects, and exchanges a byte in both directions.
async fn exchange(acceptor: &Acceptor, connector: &TlsConnector) -> std::io::Result<()> {
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let client = async {
        let name = ServerName::try_from("server").unwrap();
        let mut io = connector.connect(name, ours).await?;
        io.write_all(b"a").await?;
        io.read_u8().await
    };
    let server = async {
        let mut io = acceptor.accept(theirs).await?;
        io.read_u8().await?;
        io.write_all(b"b").await?;
        io.flush().await
    };
    let (client, server) = tokio::join!(client, server);
    server.and(client.map(drop))
}

/// As in etcd, which verifies the certificate of a resumed session again.
#[tokio::test]
async fn an_expired_certificate_is_refused_though_its_session_could_be_resumed() {
    for version in [&TLS12, &TLS13] {
        // On a busy machine, the certificate may expire before it was used twice.
        let mut validity = VALIDITY;
        while !expires_after_its_use(version, validity).await {
            validity *= 2;
            assert!(validity <= MAX_VALIDITY, "{:?}: it expires too early", version.version);
        }
    }
}

/// Uses a certificate twice, and once more after it has expired. Returns false if it expires before
/// it was used twice.
async fn expires_after_its_use(
    version: &'static SupportedProtocolVersion,
    validity: Duration,
) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let (acceptor, connector) = server_and_client(dir.path(), version, validity);
    let start = Instant::now();
    for _ in 0..2 {
        let result = exchange(&acceptor, &connector).await;
        // Certificates have whole seconds.
        if result.is_err() && start.elapsed() + Duration::from_secs(1) > validity {
            return false;
        }
        result.unwrap();
    }
    tokio::time::sleep(validity + Duration::from_secs(1)).await;
    let error = exchange(&acceptor, &connector).await.unwrap_err().to_string();
    assert!(error.to_lowercase().contains("expired"), "{:?}: {error}", version.version);
    true
}
