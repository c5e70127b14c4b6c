//! Verifies client certificates against the cluster's client CA.

use std::time::SystemTime;

use anyhow::{Context, Result, ensure};
use rustls_pki_types::{CertificateDer, TrustAnchor, UnixTime};
use webpki::{
    EndEntityCert, Error, ExtendedKeyUsageValidator, KeyPurposeIdIter, KeyUsage,
    RequiredEkuNotFoundContext,
};
use x509_parser::certificate::X509Certificate;

use super::strict;

/// The certificates of the client CA.
pub struct ClientCa {
    roots: Vec<Root>,
}

/// A CA certificate and its validity. A trust anchor has no validity, but Go checks it, so that an
/// expired CA accepts nobody.
struct Root {
    anchor: TrustAnchor<'static>,
    validity: Validity,
    may_sign: bool,
}

/// Seconds since 1970, both included.
#[derive(Clone, Copy, Debug)]
struct Validity {
    not_before: i64,
    not_after: i64,
}

impl ClientCa {
    /// Creates the CA from its certificates.
    ///
    /// # Errors
    /// If one of them is not a certificate.
    pub fn new(certificates: &[CertificateDer<'_>]) -> Result<ClientCa> {
        let root = |certificate| {
            let anchor = webpki::anchor_from_trusted_cert(certificate).context("use the CA")?;
            let certificate = strict::read(certificate)?;
            Ok(Root {
                anchor: anchor.to_owned(),
                validity: Validity::of(&certificate),
                may_sign: strict::may_sign(&certificate),
            })
        };
        Ok(ClientCa { roots: certificates.iter().map(root).collect::<Result<_>>()? })
    }

    /// Verifies a chain, its first certificate being the client's, for the use by a client at
    /// `now`. Returns the second after which the chain is no longer valid.
    ///
    /// # Errors
    /// If kube-apiserver would reject the chain, and for a few certificates that only Go accepts
    /// (docs/kube-gateway.md lists them).
    pub fn verify(&self, chain: &[CertificateDer<'_>], now: SystemTime) -> Result<i64> {
        let (leaf, intermediates) = chain.split_first().context("no certificate")?;
        let now = now.duration_since(SystemTime::UNIX_EPOCH).context("read the clock")?;
        let second = i64::try_from(now.as_secs()).context("read the clock")?;
        // Go refuses the handshake if it cannot read one of the certificates.
        for certificate in chain {
            strict::read(certificate)?;
        }
        let usable = |root: &&Root| root.may_sign && root.validity.contains(second);
        let valid = self.roots.iter().filter(usable);
        let anchors: Vec<_> = valid.map(|root| root.anchor.clone()).collect();
        ensure!(!anchors.is_empty(), "no certificate of the client CA is valid now");
        let leaf = EndEntityCert::try_from(leaf).context("parse the certificate")?;
        let path = leaf.verify_for_usage(
            webpki::ALL_VERIFICATION_ALGS,
            &anchors,
            intermediates,
            UnixTime::since_unix_epoch(now),
            ForClients,
            None,
            None,
        )?;
        let root = self.roots.iter().find(|root| root.anchor == *path.anchor());
        let mut not_after = root.context("the anchor is a root")?.validity.not_after;
        let end_entity = path.end_entity().der();
        not_after = not_after.min(Validity::of(&strict::read(&end_entity)?).not_after);
        for der in path.intermediate_certificates().map(|certificate| certificate.der()) {
            let issuer = strict::read(&der)?;
            ensure!(strict::may_sign(&issuer), "an issuer has a key usage without signatures");
            not_after = not_after.min(Validity::of(&issuer).not_after);
        }
        Ok(not_after)
    }
}

/// Accepts what Go accepts for a client: no list of uses, or one with "client authentication" or
/// "any".
struct ForClients;

/// The object identifier of the use "any" (RFC 5280).
const ANY_USE: [usize; 5] = [2, 5, 29, 37, 0];

impl ExtendedKeyUsageValidator for ForClients {
    fn validate(&self, uses: KeyPurposeIdIter<'_, '_>) -> Result<(), Error> {
        let client = KeyUsage::client_auth();
        let mut present = Vec::new();
        for accepted in uses {
            let accepted = accepted?.to_decoded_oid();
            if accepted == ANY_USE || accepted.iter().copied().eq(client.oid_values()) {
                return Ok(());
            }
            present.push(accepted);
        }
        if present.is_empty() {
            return Ok(());
        }
        let context = RequiredEkuNotFoundContext { required: client, present };
        Err(Error::RequiredEkuNotFoundContext(context))
    }
}

impl Validity {
    fn of(certificate: &X509Certificate<'_>) -> Validity {
        let validity = certificate.validity();
        let (not_before, not_after) = (validity.not_before, validity.not_after);
        Validity { not_before: not_before.timestamp(), not_after: not_after.timestamp() }
    }

    fn contains(self, second: i64) -> bool {
        (self.not_before..=self.not_after).contains(&second)
    }
}
