//! JSON web tokens: signed text with the name of the user.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use grpc::Status;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey, EncodingKey, Header, Validation, crypto,
};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use super::options::JwtOptions;

/// Maximum number of verified tokens that are remembered. Then all are forgotten, and verified again.
const MAX_VERIFIED: usize = 10_000;

/// Issues and verifies JSON web tokens.
pub(super) struct Jwt {
    method: Algorithm,
    ttl: Duration,
    /// `None` if only another server has the private key.
    signing_key: Option<EncodingKey>,
    verifying_key: DecodingKey,
    validation: Validation,
    /// Tokens with a valid signature. A client sends the same token with each request, and
    /// verifying it takes longer than most requests.
    verified: RwLock<HashMap<String, Verified>>,
}

/// What a token with a valid signature says.
#[derive(Clone)]
struct Verified {
    user: Arc<str>,
    revision: u64,
    /// The time at which the token expires, in seconds since 1970; `None` if it does not.
    expires: Option<f64>,
}

/// The content of a token that this server issues.
#[derive(Serialize)]
struct NewClaims<'a> {
    username: &'a str,
    revision: u64,
    exp: u64,
}

/// The content of a token that a client sends.
#[derive(Deserialize)]
struct Claims {
    username: String,
    revision: f64,
    exp: Option<f64>,
}

impl Jwt {
    /// Reads the keys.
    ///
    /// # Errors
    /// Returns one line if a key is missing or cannot be used.
    pub(super) fn load(options: &JwtOptions) -> Result<Self, String> {
        let method = options.method;
        let private = options.private_key.as_deref().map(read).transpose()?;
        let public = options.public_key.as_deref().map(read).transpose()?;
        let (signing_key, verifying_key) = match (private, public) {
            (Some(secret), _) if is_symmetric(method) => {
                (Some(EncodingKey::from_secret(&secret)), DecodingKey::from_secret(&secret))
            }
            (None, _) if is_symmetric(method) => {
                return Err(format!("sign-method {method:?} needs priv-key"));
            }
            (None, None) => return Err("jwt needs priv-key or pub-key".into()),
            (None, Some(public)) => (None, parse_public(method, &public)?),
            (Some(private), public) => {
                let signing = parse_private(method, &private)?;
                let verifying = match public {
                    None => derive_public(method, &signing)?,
                    Some(public) => parse_public(method, &public)?,
                };
                check_pair(method, &signing, &verifying)?;
                (Some(signing), verifying)
            }
        };
        let mut validation = Validation::new(method);
        validation.leeway = 0;
        validation.validate_nbf = true;
        validation.validate_aud = false;
        validation.required_spec_claims.clear();
        let (ttl, verified) = (options.ttl, RwLock::default());
        Ok(Jwt { method, ttl, signing_key, verifying_key, validation, verified })
    }

    /// Issues a token.
    ///
    /// # Errors
    /// If the server has no private key.
    pub(super) fn issue(&self, username: &str, revision: u64) -> Result<String, Status> {
        let Some(key) = &self.signing_key else {
            let text = "auth: token signing attempted with verify-only key";
            return Err(Status::unknown(text));
        };
        let exp = (unix_time() + self.ttl).as_secs();
        let claims = NewClaims { username, revision, exp };
        jsonwebtoken::encode(&Header::new(self.method), &claims, key)
            .map_err(|error| Status::unknown(format!("auth: the token cannot be signed: {error}")))
    }

    /// Returns the user and the revision in a valid token.
    pub(super) fn user_of(&self, token: &str) -> Option<(Arc<str>, u64)> {
        let known = self.verified.read().get(token).cloned();
        let verified = known.or_else(|| self.verify(token))?;
        let now = unix_time().as_secs_f64();
        let valid = verified.expires.is_none_or(|expires| now < expires);
        valid.then_some((verified.user, verified.revision))
    }

    fn verify(&self, token: &str) -> Option<Verified> {
        let data =
            jsonwebtoken::decode::<Claims>(token, &self.verifying_key, &self.validation).ok()?;
        let Claims { username, revision, exp } = data.claims;
        let verified = Verified { user: username.into(), revision: revision as u64, expires: exp };
        let mut known = self.verified.write();
        if known.len() >= MAX_VERIFIED {
            known.clear();
        }
        known.insert(token.to_owned(), verified.clone());
        Some(verified)
    }
}

fn is_symmetric(method: Algorithm) -> bool {
    method.family() == AlgorithmFamily::Hmac
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

fn parse_private(method: Algorithm, pem: &[u8]) -> Result<EncodingKey, String> {
    let key = match method.family() {
        AlgorithmFamily::Rsa => EncodingKey::from_rsa_pem(pem),
        AlgorithmFamily::Ed => EncodingKey::from_ed_pem(pem),
        AlgorithmFamily::Ec => match sec1_key(pem) {
            Some(sec1) => Ok(EncodingKey::from_ec_der(&wrap_sec1(method, &sec1))),
            None => EncodingKey::from_ec_pem(pem),
        },
        AlgorithmFamily::Hmac => Ok(EncodingKey::from_secret(pem)),
    };
    key.map_err(|error| format!("priv-key is no PEM file with a key for {method:?}: {error}"))
}

fn parse_public(method: Algorithm, pem: &[u8]) -> Result<DecodingKey, String> {
    let key = match method.family() {
        AlgorithmFamily::Rsa => DecodingKey::from_rsa_pem(pem),
        AlgorithmFamily::Ed => DecodingKey::from_ed_pem(pem),
        AlgorithmFamily::Ec => DecodingKey::from_ec_pem(pem),
        AlgorithmFamily::Hmac => Ok(DecodingKey::from_secret(pem)),
    };
    key.map_err(|error| format!("pub-key is no PEM file with a key for {method:?}: {error}"))
}

fn derive_public(method: Algorithm, private: &EncodingKey) -> Result<DecodingKey, String> {
    Jwk::from_encoding_key(private, method)
        .and_then(|jwk| DecodingKey::from_jwk(&jwk))
        .map_err(|error| format!("priv-key cannot be used for {method:?}: {error}"))
}

/// Fails unless a signature of the private key is valid for the public one.
fn check_pair(
    method: Algorithm,
    private: &EncodingKey,
    public: &DecodingKey,
) -> Result<(), String> {
    const MESSAGE: &[u8] = b"mem_etcd";
    let signature = crypto::sign(MESSAGE, private, method)
        .map_err(|error| format!("priv-key cannot be used for {method:?}: {error}"))?;
    match crypto::verify(&signature, MESSAGE, public, method) {
        Ok(true) => Ok(()),
        Ok(false) | Err(_) => Err("pub-key does not belong to priv-key".into()),
    }
}

/// Returns the content of a PEM file with a private key in the format SEC 1, which `openssl ec`
/// writes.
fn sec1_key(pem: &[u8]) -> Option<Vec<u8>> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem).ok()?;
    (pem.label == "EC PRIVATE KEY").then_some(pem.contents)
}

/// Wraps a private key in the format SEC 1 as PKCS #8, which names the curve.
fn wrap_sec1(method: Algorithm, key: &[u8]) -> Vec<u8> {
    /// The DER encodings of the IDs of elliptic curve keys, of P-256, and of P-384.
    const EC_KEY: &[u8] = &[0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
    const P256: &[u8] = &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
    const P384: &[u8] = &[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x22];
    const VERSION: &[u8] = &[0x02, 0x01, 0x00];
    let curve = if method == Algorithm::ES384 { P384 } else { P256 };
    let ids = der(0x30, &[EC_KEY, curve].concat());
    der(0x30, &[VERSION, &ids, &der(0x04, key)].concat())
}

/// Encodes an element of DER with this tag, of less than 64 KiB.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let [high, low] = (content.len() as u16).to_be_bytes();
    let mut element = vec![tag];
    match content.len() {
        0..0x80 => element.push(low),
        0x80..0x100 => element.extend([0x81, low]),
        _ => element.extend([0x82, high, low]),
    }
    element.extend(content);
    element
}

fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
