//! The user that a client certificate names, read as kube-apiserver reads it
//! (`x509.CommonNameUserConversion` in k8s.io/apiserver).

use std::fmt::Write as _;

use anyhow::{Context, Result, bail, ensure};
use ring::digest::{SHA256, digest};
use x509_parser::certificate::X509Certificate;
use x509_parser::der_parser::asn1_rs::Tag;
use x509_parser::der_parser::{Oid, oid};
use x509_parser::prelude::FromDer;
use x509_parser::x509::AttributeTypeAndValue;

const COMMON_NAME: Oid<'static> = oid!(2.5.4.3);
const ORGANIZATION: Oid<'static> = oid!(2.5.4.10);
/// Kubernetes' attribute for the UID of a user.
const USER_UID: Oid<'static> = oid!(1.3.6.1.4.1.57683.2);

/// A user as kube-apiserver derives it from a client certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The last common name of the subject.
    pub name: String,
    /// The UID, if the subject has one.
    pub uid: Option<String>,
    /// The organizations of the subject, in their order.
    pub groups: Vec<String>,
    /// The value of the extra field `authentication.kubernetes.io/credential-id`.
    pub credential_id: String,
}

impl User {
    /// Reads the user from a certificate in DER.
    ///
    /// # Errors
    /// If kube-apiserver would reject the certificate, or if a header field cannot carry one of
    /// the names unchanged.
    pub fn from_certificate(der: &[u8]) -> Result<User> {
        let (_, certificate) = X509Certificate::from_der(der).context("parse the certificate")?;
        // Go keeps the last common name if there are several.
        let name = texts(&certificate, &COMMON_NAME)?.pop().unwrap_or_default();
        ensure!(!name.is_empty(), "the certificate has no common name");
        let mut uids = texts(&certificate, &USER_UID)?;
        ensure!(uids.len() <= 1, "the certificate has {} UIDs, expected at most one", uids.len());
        let uid = uids.pop();
        ensure!(uid.as_deref() != Some(""), "the UID of the certificate is empty");
        let groups = texts(&certificate, &ORGANIZATION)?;
        for text in [&name].into_iter().chain(&uid).chain(&groups) {
            check_field_value(text)?;
        }
        Ok(User { name, uid, groups, credential_id: credential_id(der) })
    }
}

/// Returns all values of an attribute of the subject.
fn texts(certificate: &X509Certificate<'_>, attribute: &Oid<'_>) -> Result<Vec<String>> {
    certificate.subject().iter_by_oid(attribute).map(text).collect()
}

/// Decodes the string types that Go's `crypto/x509` decodes, with the same rules.
fn text(attribute: &AttributeTypeAndValue<'_>) -> Result<String> {
    let value = attribute.attr_value();
    let bytes = value.data;
    let only = |kind: &str, allowed: fn(u8) -> bool| {
        ensure!(bytes.iter().copied().all(allowed), "a name is not a valid {kind}");
        Ok(())
    };
    match value.tag() {
        Tag::Utf8String => {}
        Tag::PrintableString => only("PrintableString", is_printable)?,
        Tag::Ia5String => only("IA5String", |byte| byte.is_ascii())?,
        Tag::NumericString => only("NumericString", |byte| byte.is_ascii_digit() || byte == b' ')?,
        // Go reads each byte of a T61String as a character of Latin-1.
        Tag::T61String => return Ok(bytes.iter().copied().map(char::from).collect()),
        Tag::BmpString => return bmp_text(bytes),
        tag => bail!("a name has the unsupported type {tag}"),
    }
    let text = std::str::from_utf8(bytes).context("a name is not valid UTF-8")?;
    Ok(text.to_owned())
}

/// The characters of a PrintableString, and the two more that Go tolerates.
fn is_printable(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b" '()+,-./:=?*&".contains(&byte)
}

/// Decodes a BMPString, without the zero at its end, if there is one. Surrogates and the characters
/// that Unicode reserves are no text.
fn bmp_text(bytes: &[u8]) -> Result<String> {
    ensure!(bytes.len().is_multiple_of(2), "a BMPString has an odd length");
    let bytes = bytes.strip_suffix(&[0, 0]).unwrap_or(bytes);
    let character = |pair: &[u8]| {
        let unit = u16::from_be_bytes([pair[0], pair[1]]);
        let reserved = matches!(unit, 0xfdd0..=0xfdef | 0xfffe | 0xffff);
        char::from_u32(unit.into()).filter(|_| !reserved)
    };
    let text: Option<String> = bytes.chunks_exact(2).map(character).collect();
    text.context("a BMPString has an invalid character")
}

/// Refuses text that an HTTP header field would change on its way: `"system:masters "` would arrive
/// as the privileged group.
fn check_field_value(text: &str) -> Result<()> {
    let blank = |c: char| c == ' ' || c == '\t';
    ensure!(
        !text.starts_with(blank) && !text.ends_with(blank),
        "the name {text:?} begins or ends with a blank"
    );
    ensure!(
        !text.chars().any(|c| c.is_ascii_control()),
        "the name {text:?} has control characters"
    );
    Ok(())
}

fn credential_id(der: &[u8]) -> String {
    let mut id = String::from("X509SHA256=");
    for byte in digest(&SHA256, der).as_ref() {
        let _ = write!(id, "{byte:02x}");
    }
    id
}
