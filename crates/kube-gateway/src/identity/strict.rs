//! What Go's `crypto/x509` refuses while it reads a certificate, and other libraries accept.

use std::collections::HashSet;

use anyhow::{Context, Result, ensure};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

/// Reads a certificate as Go reads it.
///
/// # Errors
/// If the certificate has a negative serial number, the same extension twice, or a known extension
/// that is damaged.
pub fn read(der: &[u8]) -> Result<X509Certificate<'_>> {
    let (_, certificate) = X509Certificate::from_der(der).context("parse the certificate")?;
    let negative = certificate.raw_serial().first().is_some_and(|byte| byte & 0x80 != 0);
    ensure!(!negative, "the serial number is negative");
    let mut seen = HashSet::new();
    for extension in certificate.extensions() {
        ensure!(seen.insert(&extension.oid), "the extension {} is there twice", extension.oid);
        let valid = match extension.parsed_extension() {
            ParsedExtension::ParseError { .. } => false,
            ParsedExtension::SubjectAlternativeName(names) => {
                names.general_names.iter().all(is_valid_name)
            }
            _ => true,
        };
        ensure!(valid, "the extension {} is damaged", extension.oid);
    }
    Ok(certificate)
}

fn is_valid_name(name: &GeneralName<'_>) -> bool {
    match name {
        GeneralName::DNSName(text) | GeneralName::RFC822Name(text) | GeneralName::URI(text) => {
            text.is_ascii()
        }
        GeneralName::IPAddress(address) => matches!(address.len(), 4 | 16),
        GeneralName::Invalid(..) => false,
        _ => true,
    }
}

/// Whether a certificate may sign others: one without a key usage may.
pub fn may_sign(certificate: &X509Certificate<'_>) -> bool {
    let usage = certificate.key_usage().ok().flatten();
    usage.is_none_or(|usage| usage.value.key_cert_sign())
}
