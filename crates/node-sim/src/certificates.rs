//! Client certificates of nodes, signed by the CA that the API server trusts.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::client::ClientCertificate;

/// The group of all nodes.
const GROUP: &str = "system:nodes";

/// Issues the certificates of nodes.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// All nodes have this key. It saves the time to make one for each node; the certificates differ.
    key: KeyPair,
}

impl Authority {
    /// Reads a CA as kube-controller-manager does for `--cluster-signing-cert-file`.
    ///
    /// # Errors
    /// If a file cannot be read or used.
    pub fn read(certificate: &Path, key: &Path) -> Result<Authority> {
        let pem =
            fs::read(certificate).with_context(|| format!("read {}", certificate.display()))?;
        let der = CertificateDer::from_pem_slice(&pem)
            .with_context(|| format!("read the certificate in {}", certificate.display()))?;
        let private = PrivateKeyDer::from_pem_file(key)
            .with_context(|| format!("read the private key in {}", key.display()))?;
        let private =
            key_pair(&private).with_context(|| format!("use the key in {}", key.display()))?;
        let issuer = Issuer::from_ca_cert_der(&der, private)
            .with_context(|| format!("use the CA in {}", certificate.display()))?;
        Ok(Authority { issuer, key: KeyPair::generate().context("generate a key")? })
    }

    /// Issues the certificate of a node: the user `system:node:NAME` in the group `system:nodes`.
    ///
    /// # Errors
    /// If the certificate cannot be signed.
    pub fn issue(&self, node: &str) -> Result<ClientCertificate> {
        let mut params = CertificateParams::default();
        let mut name = DistinguishedName::new();
        name.push(DnType::OrganizationName, GROUP);
        name.push(DnType::CommonName, format!("system:node:{node}"));
        params.distinguished_name = name;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate =
            params.signed_by(&self.key, &self.issuer).context("sign a certificate")?;
        let key = PrivatePkcs8KeyDer::from(self.key.serialize_der());
        Ok((vec![certificate.der().clone()], key.into()))
    }
}

/// Reads a key. rcgen with ring reads PKCS#8 only, but kubeadm writes RSA keys as PKCS#1 and EC keys as
/// SEC1.
fn key_pair(key: &PrivateKeyDer<'static>) -> Result<KeyPair> {
    let wrapped = match key {
        PrivateKeyDer::Pkcs1(key) => pkcs8(RSA, key.secret_pkcs1_der()),
        PrivateKeyDer::Sec1(key) => {
            let key = key.secret_sec1_der();
            let curve = [P256, P384].into_iter().find(|curve| contains(key, curve));
            pkcs8(&[EC, curve.context("the curve is neither P-256 nor P-384")?].concat(), key)
        }
        key => key.secret_der().to_vec(),
    };
    KeyPair::try_from(wrapped).context("supported are RSA, EC and Ed25519 keys")
}

/// Identifiers of algorithms and curves in DER: rsaEncryption with its empty parameters, ecPublicKey, and
/// the curves.
const RSA: &[u8] = &[0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];
const EC: &[u8] = &[0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const P256: &[u8] = &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const P384: &[u8] = &[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x22];
/// The version of PKCS#8 in DER.
const VERSION: &[u8] = &[0x02, 0x01, 0x00];
/// Tags of DER.
const OCTET_STRING: u8 = 0x04;
const SEQUENCE: u8 = 0x30;

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Wraps a key as PKCS#8 (RFC 5208).
fn pkcs8(algorithm: &[u8], key: &[u8]) -> Vec<u8> {
    let parts = [VERSION, &der(SEQUENCE, algorithm), &der(OCTET_STRING, key)];
    der(SEQUENCE, &parts.concat())
}

/// Encodes a value of less than 64 KiB with its tag and its length.
fn der(tag: u8, value: &[u8]) -> Vec<u8> {
    let length = (value.len() as u16).to_be_bytes();
    let head: &[u8] = match value.len() {
        0..0x80 => &[tag, length[1]],
        0x80..0x100 => &[tag, 0x81, length[1]],
        _ => &[tag, 0x82, length[0], length[1]],
    };
    [head, value].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_names_the_node_and_its_group() {
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = (folder.path().join("ca.crt"), folder.path().join("ca.key"));
        let pair = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        fs::write(&certificate, params.self_signed(&pair).unwrap().pem()).unwrap();
        fs::write(&key, pair.serialize_pem()).unwrap();
        let authority = Authority::read(&certificate, &key).unwrap();
        let (chain, _) = authority.issue("node-1").unwrap();
        let contains = |text: &str| chain[0].windows(text.len()).any(|it| it == text.as_bytes());
        assert!(contains("system:node:node-1") && contains("system:nodes"));
        assert!(Authority::read(&key, &certificate).is_err());
    }

    /// The key in the OCTET STRING at the end of a PKCS#8 key of P-256.
    fn sec1(key: &KeyPair) -> PrivateKeyDer<'static> {
        let pkcs8 = key.serialize_der();
        let start = [&der(SEQUENCE, &[EC, P256].concat())[..], &[OCTET_STRING]].concat();
        let at = pkcs8.windows(start.len()).position(|it| it == start).unwrap() + start.len();
        let sec1 = &pkcs8[at + 1..at + 1 + usize::from(pkcs8[at])];
        // Go also writes the curve into the key, before the public key with the tag 0xa1.
        // It is a bit string of 66 bytes.
        let field = [0xa1, 0x44, 0x03, 0x42];
        let public = sec1.windows(field.len()).position(|it| it == field).unwrap();
        let content = [&sec1[2..public], &der(0xa0, P256), &sec1[public..]].concat();
        PrivateKeyDer::Sec1(der(SEQUENCE, &content).into())
    }

    #[test]
    fn keys_are_read_in_the_forms_that_kubeadm_writes() {
        let key = KeyPair::generate().unwrap();
        let read = key_pair(&sec1(&key)).unwrap();
        assert_eq!(read.public_key_raw(), key.public_key_raw());
        let other = PrivateKeyDer::Sec1(der(SEQUENCE, b"other").into());
        assert!(key_pair(&other).is_err());
        assert_eq!(der(4, &[0; 0x7f])[..2], [4, 0x7f]);
        assert_eq!(der(4, &[0; 0x80])[..3], [4, 0x81, 0x80]);
        assert_eq!(der(4, &[0; 0x123])[..4], [4, 0x82, 0x01, 0x23]);
    }
}
