//! Client certificates of nodes, signed by the CA that the API server trusts.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer};

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

/// kubeadm writes RSA keys as PKCS#1, which ring does not read inside of rcgen.
fn key_pair(key: &PrivateKeyDer<'static>) -> Result<KeyPair> {
    let wrapped = match key {
        PrivateKeyDer::Pkcs1(key) => PrivateKeyDer::from(pkcs8(key)),
        key => key.clone_key(),
    };
    KeyPair::try_from(&wrapped).context("supported are RSA keys, and EC and Ed25519 keys in PKCS#8")
}

/// Wraps an RSA key as PKCS#8 (RFC 5208).
fn pkcs8(key: &PrivatePkcs1KeyDer<'_>) -> PrivatePkcs8KeyDer<'static> {
    /// Version 0, and the algorithm rsaEncryption without parameters.
    const HEAD: [u8; 18] = [
        0x02, 0x01, 0x00, 0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01,
        0x01, 0x05, 0x00,
    ];
    let content = [&HEAD[..], &der(0x04, key.secret_pkcs1_der())].concat();
    PrivatePkcs8KeyDer::from(der(0x30, &content))
}

/// Encodes a value with its tag and its length of two bytes.
fn der(tag: u8, value: &[u8]) -> Vec<u8> {
    let length = (value.len() as u16).to_be_bytes();
    [&[tag, 0x82, length[0], length[1]][..], value].concat()
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
}
