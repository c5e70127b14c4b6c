//! Chooses the gRPC methods of a client: all, or those of a client that may only touch some keys.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use grpc::Routes;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use crate::api::{self, Api, Limited};
use crate::permissions::{self, OTHERS, Permission};

/// The methods of all clients.
pub struct ClientRoutes {
    full: Arc<Routes<Api>>,
    /// The methods of limited clients, by common name. Without an entry [`OTHERS`], clients that
    /// have none may do everything.
    limited: BTreeMap<String, Arc<Routes<Limited>>>,
    /// Whether certificates name users (`--client-cert-auth`).
    names_clients: bool,
}

/// The methods of one client.
pub enum Chosen {
    /// Everything is permitted.
    Full(Arc<Routes<Api>>),
    /// Only some keys may be touched.
    Limited(Arc<Routes<Limited>>),
}

impl ClientRoutes {
    /// Creates the methods for `--client-cert-permission`. `names_clients` tells whether certificates
    /// name users.
    pub fn new(api: Arc<Api>, permissions: &[Permission], names_clients: bool) -> ClientRoutes {
        let limited = |grants| Arc::new(api::limited_routes(api.clone(), grants));
        let limited = permissions::by_name(permissions)
            .into_iter()
            .map(|(name, grants)| (name, limited(grants)))
            .collect();
        ClientRoutes { full: Arc::new(api::routes(api)), limited, names_clients }
    }

    /// Returns the user that a client with this certificate (DER) is: the common name, which may be
    /// empty.
    pub fn client_name(&self, certificate: Option<&[u8]>) -> Option<Arc<str>> {
        let certificate = certificate.filter(|_| self.names_clients)?;
        Some(last_common_name(certificate).unwrap_or_default().into())
    }

    /// Chooses the methods for a client with this certificate (DER).
    ///
    /// # Errors
    /// If some clients are limited and the certificate does not say whether this one is.
    pub fn choose(&self, certificate: Option<&[u8]>) -> Result<Chosen> {
        if self.limited.is_empty() {
            return Ok(Chosen::Full(self.full.clone()));
        }
        let name = certificate.map(common_name).transpose()?;
        let named = name.as_deref().filter(|name| *name != OTHERS);
        let limited = named.and_then(|name| self.limited.get(name));
        let limited = limited.or_else(|| self.limited.get(OTHERS));
        Ok(match limited {
            Some(routes) => Chosen::Limited(routes.clone()),
            None => Chosen::Full(self.full.clone()),
        })
    }
}

/// Returns the common name of the subject of a certificate; empty if it has none. A subject with
/// several is refused: clients that read another one than this server would be judged differently.
fn common_name(certificate: &[u8]) -> Result<String> {
    let (_, certificate) =
        X509Certificate::from_der(certificate).context("parse the certificate")?;
    let names: Vec<_> = certificate.subject().iter_common_name().collect();
    ensure!(names.len() <= 1, "the client's certificate has {} common names", names.len());
    let text = names.first().map(|name| name.as_str()).transpose();
    let text = text.context("read the common name of the client's certificate")?;
    Ok(text.unwrap_or_default().to_owned())
}

/// Returns the last common name of the subject of a certificate that is text. As Go does, etcd takes
/// this one.
fn last_common_name(certificate: &[u8]) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let names = certificate.subject().iter_common_name();
    names.filter_map(|name| name.as_str().ok()).last().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    fn certificate(names: &[&str]) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for name in names {
            params.distinguished_name.push(DnType::CommonName, *name);
        }
        params.distinguished_name.push(DnType::OrganizationName, "kube-gateway");
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn the_common_name_is_read() {
        assert_eq!(common_name(&certificate(&["kube-gateway"])).unwrap(), "kube-gateway");
        assert_eq!(common_name(&certificate(&[])).unwrap(), "");
        assert!(common_name(b"none").is_err());
        assert_eq!(last_common_name(&certificate(&["a", "b"])).as_deref(), Some("b"));
        assert_eq!(last_common_name(&certificate(&[])), None);
        assert_eq!(last_common_name(b"none"), None);
    }
}
