//! The client of one connection.

use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Result;
use arc_swap::ArcSwap;
use http::header::{AUTHORIZATION, HeaderMap, SEC_WEBSOCKET_PROTOCOL};
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;

use super::certificate::User;
use super::fields::{FieldNames, IdentityFields};
use super::verify::ClientCa;

/// Prefix of the WebSocket protocol in which a browser sends a bearer token.
const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// What identifies the sender of a request.
#[derive(Clone, Debug)]
pub enum Credential {
    /// A valid certificate: the API server learns its user from these fields.
    Certificate(Arc<IdentityFields>),
    /// No certificate: the fields of the request decide.
    Request,
    /// A certificate that is not valid, and nothing else that could identify the sender.
    Rejected,
}

/// The client of a connection: its certificates, and what they were found to be.
pub struct Peer {
    chain: Vec<CertificateDer<'static>>,
    names: Arc<FieldNames>,
    ca: Arc<ArcSwap<ClientCa>>,
    verified: Mutex<Option<Verified>>,
}

/// The result of a verification.
struct Verified {
    /// The CA against which the chain was verified. A reload replaces the CA.
    ca: Arc<ClientCa>,
    /// The second from which on the chain must be verified again.
    until: i64,
    credential: Credential,
}

impl Peer {
    /// Creates a client with the chain of its TLS handshake, which may be empty.
    pub fn new(
        chain: Vec<CertificateDer<'static>>,
        names: Arc<FieldNames>,
        ca: Arc<ArcSwap<ClientCa>>,
    ) -> Peer {
        Peer { chain, names, ca, verified: Mutex::new(None) }
    }

    /// Returns what identifies the sender of a request with these fields. As in kube-apiserver, a
    /// request with a rejected certificate is judged by its bearer token, and is never anonymous.
    pub fn credential(&self, fields: &HeaderMap) -> Credential {
        match self.certificate_credential() {
            Credential::Rejected if has_token(fields) => Credential::Request,
            credential => credential,
        }
    }

    fn certificate_credential(&self) -> Credential {
        if self.chain.is_empty() {
            return Credential::Request;
        }
        let (ca, now) = (self.ca.load(), SystemTime::now());
        let mut verified = self.verified.lock();
        if let Some(last) = verified.as_ref()
            && Arc::ptr_eq(&last.ca, &ca)
            && unix_seconds(now) <= last.until
        {
            return last.credential.clone();
        }
        let (until, credential) = self.verify(&ca, now).unwrap_or_else(|error| {
            tracing::debug!(error = format!("{error:#}"), "client certificate rejected");
            // A certificate that is not valid yet can become valid.
            (unix_seconds(now), Credential::Rejected)
        });
        *verified = Some(Verified { ca: ca.clone(), until, credential: credential.clone() });
        credential
    }

    fn verify(&self, ca: &ClientCa, now: SystemTime) -> Result<(i64, Credential)> {
        let until = ca.verify(&self.chain, now)?;
        let user = User::from_certificate(&self.chain[0])?;
        Ok((until, Credential::Certificate(Arc::new(self.names.encode(&user)?))))
    }
}

fn unix_seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// Whether the request has a bearer token that kube-apiserver would read.
fn has_token(fields: &HeaderMap) -> bool {
    let bearer = fields.get(AUTHORIZATION).is_some_and(|value| {
        let mut words = value.as_bytes().trim_ascii().splitn(3, |byte| *byte == b' ');
        let scheme = words.next().unwrap_or_default();
        scheme.eq_ignore_ascii_case(b"bearer") && words.next().is_some_and(|word| !word.is_empty())
    });
    let protocols = fields.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
    bearer
        || protocols
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|protocol| protocol.trim().starts_with(TOKEN_PROTOCOL))
}
