//! The kubeconfig file: the server and the identity of its current context.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio_rustls::rustls::RootCertStore;

use crate::client::{ClientCertificate, Endpoint, client_config};

/// What a kubeconfig says about the server and the client.
pub struct Kubeconfig {
    /// Host and port of the server.
    pub address: String,
    /// The name in the server's certificate.
    pub server_name: ServerName<'static>,
    /// The CA of the server.
    pub roots: RootCertStore,
    /// The certificate of the client with its key, if it has one.
    pub certificate: Option<ClientCertificate>,
    /// The token of the client, if it has one.
    pub token: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct File {
    current_context: String,
    #[serde(default)]
    clusters: Vec<NamedCluster>,
    #[serde(default)]
    users: Vec<NamedUser>,
    #[serde(default)]
    contexts: Vec<NamedContext>,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    user: User,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
    tls_server_name: Option<String>,
    #[serde(default)]
    insecure_skip_tls_verify: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    exec: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Context {
    cluster: String,
    user: String,
}

impl Kubeconfig {
    /// Reads a file, and the files that it names.
    ///
    /// # Errors
    /// If a file cannot be read, or the current context has something that is not supported.
    pub fn read(path: &Path) -> Result<Kubeconfig> {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        let folder = path.parent().unwrap_or(Path::new("."));
        parse(&text, folder).with_context(|| path.display().to_string())
    }

    /// Replaces the server by another one with the same CA: host and port, or a URL.
    ///
    /// # Errors
    /// If the text is neither.
    pub fn set_server(&mut self, server: &str) -> Result<()> {
        let url =
            if server.contains("://") { server.to_owned() } else { format!("https://{server}") };
        self.address = address(&url)?;
        self.server_name = server_name(&self.address)?;
        Ok(())
    }

    /// The endpoint of the user of the kubeconfig.
    ///
    /// # Errors
    /// If the certificate cannot be used.
    pub fn endpoint(&self) -> Result<Endpoint> {
        let certificate =
            self.certificate.as_ref().map(|(chain, key)| (chain.clone(), key.clone_key()));
        let tls = client_config(self.roots.clone().into(), certificate)?;
        let (address, name) = (self.address.clone(), self.server_name.clone());
        let mut endpoint = Endpoint::new(address, name, tls);
        endpoint.fields.authorization = self.token.as_ref().map(|token| format!("Bearer {token}"));
        Ok(endpoint)
    }
}

fn parse(text: &str, folder: &Path) -> Result<Kubeconfig> {
    let file: File = serde_saphyr::from_str(text).map_err(|error| {
        // The first line has the position and the reason; the others print the source.
        let message = error.to_string();
        anyhow::anyhow!("{}", message.lines().next().unwrap_or_default().to_owned())
    })?;
    let name = &file.current_context;
    let context = file.contexts.iter().find(|it| it.name == *name);
    let context = &context.with_context(|| format!("there is no context {name:?}"))?.context;
    let cluster = file.clusters.iter().find(|it| it.name == context.cluster);
    let cluster = cluster.with_context(|| format!("there is no cluster {:?}", context.cluster))?;
    let user = file.users.iter().find(|it| it.name == context.user);
    let user = user.with_context(|| format!("there is no user {:?}", context.user))?;
    let (cluster, user) = (&cluster.cluster, &user.user);
    ensure!(!cluster.insecure_skip_tls_verify, "insecure-skip-tls-verify is not supported");
    ensure!(user.exec.is_none(), "user {:?}: exec is not supported", context.user);
    let address = address(&cluster.server)?;
    let server_name = server_name(cluster.tls_server_name.as_deref().unwrap_or(&address))?;
    let authority =
        content(&cluster.certificate_authority_data, &cluster.certificate_authority, folder)?;
    let authority = authority.context("the cluster has no certificate-authority")?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&authority)? {
        roots.add(certificate).context("use the certificate authority")?;
    }
    let (certificate, token) = (certificate(user, folder)?, token(user, folder)?);
    Ok(Kubeconfig { address, server_name, roots, certificate, token })
}

/// Host and port of a URL.
fn address(server: &str) -> Result<String> {
    let Some(rest) = server.strip_prefix("https://") else {
        bail!("server {server:?}: must begin with https://");
    };
    let address = rest.trim_end_matches('/');
    ensure!(!address.contains('/'), "server {server:?}: must not have a path");
    let has_port = address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    Ok(if has_port { address.to_owned() } else { format!("{address}:443") })
}

/// The name in the certificate of a server, from its host or from host and port.
fn server_name(address: &str) -> Result<ServerName<'static>> {
    let host = match address.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok() => host,
        _ => address,
    };
    let host = host.trim_matches(['[', ']']);
    ServerName::try_from(host.to_owned()).context("the name of the server")
}

/// The content of a file, or the same as base64 in the kubeconfig, which has priority.
fn content(
    data: &Option<String>,
    file: &Option<PathBuf>,
    folder: &Path,
) -> Result<Option<Vec<u8>>> {
    if let Some(data) = data {
        return Ok(Some(STANDARD.decode(data.trim()).context("decode base64")?));
    }
    let Some(file) = file else { return Ok(None) };
    let path = folder.join(file);
    Ok(Some(fs::read(&path).with_context(|| format!("read {}", path.display()))?))
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let list: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let list = list.context("read a certificate")?;
    ensure!(!list.is_empty(), "there is no PEM certificate");
    Ok(list)
}

fn certificate(user: &User, folder: &Path) -> Result<Option<ClientCertificate>> {
    let chain = content(&user.client_certificate_data, &user.client_certificate, folder)?;
    let key = content(&user.client_key_data, &user.client_key, folder)?;
    match (chain, key) {
        (Some(chain), Some(key)) => {
            let key = PrivateKeyDer::from_pem_slice(&key).context("read the client key")?;
            Ok(Some((certificates(&chain)?, key)))
        }
        (None, None) => Ok(None),
        _ => bail!("client-certificate and client-key must be set together"),
    }
}

fn token(user: &User, folder: &Path) -> Result<Option<String>> {
    let file = content(&None, &user.token_file, folder)?;
    let file = file.map(String::from_utf8).transpose().context("the token")?;
    Ok(user.token.clone().or(file).map(|token| token.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_have_a_host_and_a_port() {
        assert_eq!(address("https://127.0.0.1:6443").unwrap(), "127.0.0.1:6443");
        assert_eq!(address("https://host/").unwrap(), "host:443");
        assert_eq!(address("https://[::1]:1").unwrap(), "[::1]:1");
        for server in ["http://host", "https://host/path", "host:443"] {
            assert!(address(server).is_err(), "{server}");
        }
    }

    fn kubeconfig(user: &str, cluster: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts:\n- name: a\n  context:\n    \
             cluster: c\n    user: u\nclusters:\n- name: c\n  cluster:\n    server: https://127.0.0.1:1\n    \
             certificate-authority: ca.crt\n{cluster}users:\n- name: u\n  user:\n    {user}\n"
        )
    }

    fn read(user: &str, cluster: &str) -> Result<Kubeconfig> {
        let folder = tempfile::tempdir().unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["x".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        fs::write(folder.path().join("ca.crt"), certificate.pem()).unwrap();
        fs::write(folder.path().join("key"), key.serialize_pem()).unwrap();
        fs::write(folder.path().join("token"), "secret\n").unwrap();
        fs::write(folder.path().join("config"), kubeconfig(user, cluster)).unwrap();
        Kubeconfig::read(&folder.path().join("config"))
    }

    #[test]
    fn certificates_and_tokens_are_read() {
        let config = read("client-certificate: ca.crt\n    client-key: key", "").unwrap();
        assert_eq!(config.address, "127.0.0.1:1");
        assert!(config.certificate.is_some() && config.token.is_none());
        assert!(config.endpoint().unwrap().fields.authorization.is_none());
        let config = read("tokenFile: token", "").unwrap();
        assert_eq!(config.token.as_deref(), Some("secret"));
        let endpoint = config.endpoint().unwrap();
        assert_eq!(endpoint.fields.authorization.as_deref(), Some("Bearer secret"));
    }

    #[test]
    fn what_is_not_supported_is_an_error() {
        for (user, cluster) in [
            ("client-certificate: ca.crt", ""),
            ("exec: {command: x}", ""),
            ("token: x", "    insecure-skip-tls-verify: true\n"),
            ("tokenFile: missing", ""),
        ] {
            assert!(read(user, cluster).is_err(), "{user}");
        }
    }
}
