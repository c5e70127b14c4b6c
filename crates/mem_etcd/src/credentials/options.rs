//! The flag --auth-token: `simple`, or `jwt` with options.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use jsonwebtoken::Algorithm;

use crate::go_duration;

/// How long a JWT is valid by default.
const DEFAULT_JWT_TTL: Duration = Duration::from_secs(5 * 60);

/// The tokens that the server issues and accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenOptions {
    /// Simple tokens.
    Simple,
    /// JSON web tokens.
    Jwt(JwtOptions),
    /// None.
    None,
}

/// How JSON web tokens are signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtOptions {
    pub(super) method: Algorithm,
    pub(super) public_key: Option<PathBuf>,
    pub(super) private_key: Option<PathBuf>,
    pub(super) ttl: Duration,
}

impl FromStr for TokenOptions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, rest) = text.split_once(',').unwrap_or((text, ""));
        match kind {
            "simple" if rest.is_empty() => Ok(TokenOptions::Simple),
            "simple" => Err("simple tokens have no options: use --auth-token-ttl".into()),
            "jwt" => JwtOptions::parse(rest).map(TokenOptions::Jwt),
            "" if rest.is_empty() => Ok(TokenOptions::None),
            other => Err(format!("has no type {other:?}: use simple or jwt")),
        }
    }
}

impl JwtOptions {
    /// Parses the options after `jwt,`.
    fn parse(text: &str) -> Result<Self, String> {
        let (mut method, mut public_key, mut private_key, mut ttl) = (None, None, None, None);
        for option in text.split(',').filter(|_| !text.is_empty()) {
            let (name, value) = option
                .split_once('=')
                .filter(|(_, value)| !value.contains('='))
                .ok_or_else(|| format!("option {option:?} is not NAME=VALUE"))?;
            let field = match name {
                "sign-method" => &mut method,
                "pub-key" => &mut public_key,
                "priv-key" => &mut private_key,
                "ttl" => &mut ttl,
                _ => {
                    return Err(format!(
                        "has no option {name:?}: use sign-method, pub-key, priv-key or ttl"
                    ));
                }
            };
            if field.replace(value).is_some() {
                return Err(format!("option {name} is given twice"));
            }
        }
        let path = |value: Option<&str>| value.filter(|v| !v.is_empty()).map(PathBuf::from);
        Ok(JwtOptions {
            method: parse_method(method.unwrap_or_default())?,
            public_key: path(public_key),
            private_key: path(private_key),
            ttl: match ttl.filter(|ttl| !ttl.is_empty()) {
                None => DEFAULT_JWT_TTL,
                Some(ttl) => go_duration::parse(ttl)
                    .ok_or_else(|| format!("ttl {ttl:?} is not a duration such as 10m"))?,
            },
        })
    }
}

fn parse_method(name: &str) -> Result<Algorithm, String> {
    match name {
        "" => Err("jwt needs sign-method, such as sign-method=RS256".into()),
        "ES512" => Err("sign-method ES512 is not supported: use ES384 and a key for it".into()),
        name => Algorithm::from_str(name).map_err(|_| {
            format!(
                "has no sign-method {name:?}: use HS256, HS384, HS512, RS256, RS384, RS512, \
                 PS256, PS384, PS512, ES256, ES384 or EdDSA"
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_as_in_etcd() {
        assert_eq!("simple".parse(), Ok(TokenOptions::Simple));
        assert_eq!("".parse(), Ok(TokenOptions::None));
        let jwt = |text: &str| match text.parse() {
            Ok(TokenOptions::Jwt(options)) => options,
            other => panic!("{other:?}"),
        };
        let options = jwt("jwt,pub-key=a.pub,priv-key=a.key,sign-method=RS256,ttl=10m");
        let expected = JwtOptions {
            method: Algorithm::RS256,
            public_key: Some("a.pub".into()),
            private_key: Some("a.key".into()),
            ttl: Duration::from_secs(600),
        };
        assert_eq!(options, expected);
        let options = jwt("jwt,sign-method=EdDSA,pub-key=");
        assert_eq!((options.public_key, options.ttl), (None, DEFAULT_JWT_TTL));
    }

    #[test]
    fn invalid_options_are_refused() {
        for (text, expected) in [
            ("Simple", "has no type \"Simple\""),
            ("simple,ttl=5m", "use --auth-token-ttl"),
            ("jwt", "jwt needs sign-method"),
            ("jwt,sign-method=none", "has no sign-method \"none\""),
            ("jwt,sign-method=ES512", "use ES384"),
            ("jwt,sign-method", "is not NAME=VALUE"),
            ("jwt,sign-method=RS256,ttl=1=2", "is not NAME=VALUE"),
            ("jwt,sign-method=RS256,sign-method=RS256", "is given twice"),
            ("jwt,sign-method=RS256,key=a", "has no option \"key\""),
            ("jwt,sign-method=RS256,ttl=soon", "is not a duration"),
        ] {
            let error = text.parse::<TokenOptions>().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
