//! How clients prove who they are: passwords, tokens, and the common names of certificates.
//!
//! Users and roles are in the store (crate `auth`). Tokens are only known to this process: a
//! restart makes simple tokens invalid, as in etcd.

mod jwt;
mod options;
pub mod password;
mod simple;

use std::time::Instant;

use auth::{Caller, Error};
use grpc::{Admission, Status};

pub use self::options::TokenOptions;

use self::jwt::Jwt;
use self::simple::SimpleTokens;
use crate::config::Config;

/// Checks who a client is, and issues tokens.
pub struct Credentials {
    tokens: Tokens,
    bcrypt_cost: u32,
}

/// The tokens of `--auth-token`.
enum Tokens {
    Simple(SimpleTokens),
    Jwt(Box<Jwt>),
    /// With an empty flag, there are no tokens: clients need certificates.
    None,
}

impl Credentials {
    /// Reads the keys of `--auth-token`.
    ///
    /// # Errors
    /// Returns one line if a key is missing or cannot be used.
    pub fn new(config: &Config) -> Result<Self, String> {
        let tokens = match &config.auth_token {
            TokenOptions::Simple => Tokens::Simple(SimpleTokens::new(config.auth_token_ttl())),
            TokenOptions::Jwt(options) => {
                let jwt = Jwt::load(options).map_err(|error| format!("--auth-token: {error}"))?;
                Tokens::Jwt(Box::new(jwt))
            }
            TokenOptions::None => Tokens::None,
        };
        Ok(Credentials { tokens, bcrypt_cost: password::checked_cost(config.bcrypt_cost) })
    }

    /// Whether other processes do not accept the tokens.
    pub fn are_local(&self) -> bool {
        matches!(self.tokens, Tokens::Simple(_))
    }

    /// The cost of new password hashes.
    pub fn bcrypt_cost(&self) -> u32 {
        self.bcrypt_cost
    }

    /// Returns who has sent a call: the user of its token, or else the name in the certificate.
    /// `revision` is the current one of the auth store.
    ///
    /// # Errors
    /// If the token is invalid.
    pub fn caller(&self, call: &Admission, revision: u64) -> Result<Caller, Error> {
        if let Some(token) = call.token() {
            return self.user_of_token(token, revision).ok_or(Error::InvalidToken);
        }
        Ok(match call.client_name() {
            Some(name) => Caller::User { name: name.clone(), revision },
            None => Caller::Anonymous,
        })
    }

    fn user_of_token(&self, token: &str, revision: u64) -> Option<Caller> {
        let (name, revision) = match &self.tokens {
            Tokens::Simple(simple) => (simple.user_of(token, Instant::now())?, revision),
            Tokens::Jwt(jwt) => jwt.user_of(token)?,
            Tokens::None => return None,
        };
        Some(Caller::User { name, revision })
    }

    /// Issues a token for a user who has proved the password. `revision` is that of the auth store
    /// at which the password was right, `number` becomes a part of a simple token.
    ///
    /// # Errors
    /// If no tokens can be issued.
    pub fn issue(&self, user: &str, revision: u64, number: i64) -> Result<String, Status> {
        match &self.tokens {
            Tokens::Simple(simple) => Ok(simple.issue(user, number, Instant::now())),
            Tokens::Jwt(jwt) => jwt.issue(user, revision),
            Tokens::None => Err(Status::invalid_argument(Error::AuthFailed.to_string())),
        }
    }

    /// Makes a simple token invalid. A JWT expires.
    pub fn forget(&self, token: &str) {
        if let Tokens::Simple(simple) = &self.tokens {
            simple.forget(token);
        }
    }

    /// Makes all simple tokens of a user invalid. A JWT becomes invalid because the revision of the
    /// auth store has changed.
    pub fn forget_user(&self, user: &str) {
        if let Tokens::Simple(simple) = &self.tokens {
            simple.forget_user(user);
        }
    }

    /// Makes all simple tokens invalid.
    pub fn forget_all(&self) {
        if let Tokens::Simple(simple) = &self.tokens {
            simple.forget_all();
        }
    }
}
