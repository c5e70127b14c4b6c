//! Peer URLs.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;

use rustls_pki_types::ServerName;
use sockets::SocketUrl;

/// The address at which a member is reached, or listens: `https://HOST:PORT`, or
/// `http://HOST:PORT` on a loopback address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerUrl {
    /// Host and port, separated by a colon.
    address: String,
    tls: bool,
}

impl PeerUrl {
    /// Whether the connection uses TLS.
    pub fn uses_tls(&self) -> bool {
        self.tls
    }

    /// Returns the host: a name or an IP address.
    pub(crate) fn host(&self) -> &str {
        let host = self.address.rsplit_once(':').map_or(&*self.address, |(host, _)| host);
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    /// Returns the name that the certificate at this URL must have.
    pub(crate) fn server_name(&self) -> io::Result<ServerName<'static>> {
        ServerName::try_from(self.host().to_owned())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
    }

    /// Resolves the host. Without TLS, only loopback addresses are returned: everybody who reaches
    /// another address could change the store.
    ///
    /// # Errors
    /// If there is no such address.
    pub(crate) async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        let mut addresses: Vec<_> = tokio::net::lookup_host(&self.address).await?.collect();
        if !self.tls {
            addresses.retain(|address| address.ip().to_canonical().is_loopback());
        }
        if addresses.is_empty() {
            let reason = match self.tls {
                true => format!("{self} has no address"),
                false => format!("{self} is not a loopback address; use https for peers"),
            };
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        Ok(addresses)
    }
}

impl FromStr for PeerUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse()? {
            SocketUrl::Tcp { address, tls } => Ok(PeerUrl { address, tls }),
            SocketUrl::Unix { .. } => Err("must begin with http:// or https://".into()),
        }
    }
}

impl fmt::Display for PeerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "https" } else { "http" }, self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed_and_printed() {
        for (text, host) in
            [("https://a.example:2380", "a.example"), ("http://127.0.0.1:1", "127.0.0.1")]
        {
            let url: PeerUrl = text.parse().unwrap();
            assert_eq!((url.to_string().as_str(), url.host()), (text, host));
        }
        let url: PeerUrl = "https://[::1]:2380".parse().unwrap();
        assert_eq!((url.host(), url.uses_tls()), ("::1", true));
        for text in ["unix:///run/a", "https://a", "a:2380", "https://a:2380/path"] {
            assert!(text.parse::<PeerUrl>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn without_tls_only_loopback_addresses_are_used() {
        let resolve = async |text: &str| text.parse::<PeerUrl>().unwrap().resolve().await;
        assert_eq!(resolve("http://127.0.0.1:2380").await.unwrap().len(), 1);
        assert_eq!(resolve("https://192.0.2.1:2380").await.unwrap().len(), 1);
        let error = resolve("http://192.0.2.1:2380").await.unwrap_err();
        assert!(error.to_string().contains("use https"), "{error}");
    }
}
