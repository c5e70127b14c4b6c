//! Opens connections to an endpoint, with TLS if its URL says so.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use url::Url;

/// The files of the TLS configuration.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    /// CA certificate that verifies the server's certificate; required for https.
    pub ca: Option<PathBuf>,
    /// Client certificate.
    pub cert: Option<PathBuf>,
    /// Private key of the client certificate.
    pub key: Option<PathBuf>,
}

/// A connection, with or without TLS.
pub trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// What a connection leads to.
pub struct Target {
    /// `http` or `https`.
    pub scheme: String,
    /// The host and the port.
    pub authority: String,
}

impl Target {
    /// The URL without a path.
    pub fn base_url(&self) -> String {
        format!("{}://{}", self.scheme, self.authority)
    }
}

/// Connects to an endpoint, a URL or a host with a port.
///
/// # Errors
/// If the endpoint is not valid or does not answer, or a file cannot be read.
pub async fn dial(endpoint: &str, files: &TlsFiles) -> Result<(Box<dyn Io>, Target)> {
    let endpoint = match endpoint.contains("://") {
        true => endpoint.to_owned(),
        false => format!("http://{endpoint}"),
    };
    let url = Url::parse(&endpoint).context("not a URL such as http://127.0.0.1:2379")?;
    let (host, port) = match (url.host_str(), url.port_or_known_default()) {
        (Some(host), Some(port)) => (host, port),
        _ => bail!("the URL has no host or port"),
    };
    let tcp = TcpStream::connect((host, port)).await?;
    tcp.set_nodelay(true)?;
    let io: Box<dyn Io> = match url.scheme() {
        "http" => Box::new(tcp),
        "https" => {
            let name = ServerName::try_from(host.to_owned())?;
            let connector = TlsConnector::from(Arc::new(tls_config(files)?));
            Box::new(connector.connect(name, tcp).await?)
        }
        other => bail!("scheme {other} is not supported; use http or https"),
    };
    Ok((io, Target { scheme: url.scheme().to_owned(), authority: format!("{host}:{port}") }))
}

fn tls_config(files: &TlsFiles) -> Result<ClientConfig> {
    let Some(ca) = &files.ca else { bail!("https requires a CA certificate") };
    let mut roots = RootCertStore::empty();
    for certificate in
        CertificateDer::pem_file_iter(ca).with_context(|| ca.display().to_string())?
    {
        roots.add(certificate?)?;
    }
    let builder = ClientConfig::builder().with_root_certificates(roots);
    let mut config = match (&files.cert, &files.key) {
        (Some(cert), Some(key)) => {
            let chain = CertificateDer::pem_file_iter(cert)?.collect::<Result<_, _>>()?;
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key)?)?
        }
        _ => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}
