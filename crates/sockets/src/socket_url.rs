//! URLs of sockets: `http`, `https`, `unix` and `unixs`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use url::Url;

/// The address of a socket to listen on or to connect to, parsed from its URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketUrl {
    /// TCP, from a URL with the scheme `http` or `https`.
    Tcp {
        /// Host and port, separated by a colon.
        address: String,
        /// Whether clients must use TLS.
        tls: bool,
    },
    /// A Unix socket, from a URL with the scheme `unix` or `unixs`.
    Unix {
        /// Path of the socket.
        path: PathBuf,
        /// Whether clients must use TLS.
        tls: bool,
    },
}

impl SocketUrl {
    /// Whether clients must use TLS.
    pub fn uses_tls(&self) -> bool {
        match self {
            SocketUrl::Tcp { tls, .. } | SocketUrl::Unix { tls, .. } => *tls,
        }
    }
}

impl FromStr for SocketUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (scheme, rest) =
            text.split_once("://").ok_or("is not a URL such as http://127.0.0.1:2379")?;
        match scheme {
            "http" | "https" => {
                let url = Url::parse(text).map_err(|error| error.to_string())?;
                if !matches!(url.path(), "" | "/") {
                    return Err("must not have a path".into());
                }
                let host = url.host_str().ok_or("has no host")?;
                let port = url.port().ok_or("has no port")?;
                Ok(SocketUrl::Tcp { address: format!("{host}:{port}"), tls: scheme == "https" })
            }
            "unix" | "unixs" if !rest.is_empty() => {
                Ok(SocketUrl::Unix { path: PathBuf::from(rest), tls: scheme == "unixs" })
            }
            "unix" | "unixs" => Err("has no path".into()),
            _ => Err("must begin with http://, https://, unix:// or unixs://".into()),
        }
    }
}

impl fmt::Display for SocketUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SocketUrl::Tcp { address, tls } => {
                write!(f, "{}://{address}", if *tls { "https" } else { "http" })
            }
            SocketUrl::Unix { path, tls } => {
                write!(f, "{}://{}", if *tls { "unixs" } else { "unix" }, path.display())
            }
        }
    }
}
