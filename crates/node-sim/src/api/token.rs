//! Requests of tokens of service accounts.

use prost::Message;

use super::meta::{ObjectMeta, Time};

/// A request of a token, and the answer.
#[derive(Clone, PartialEq, Message)]
pub struct TokenRequest {
    /// The metadata.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ObjectMeta>,
    /// What is asked for.
    #[prost(message, optional, tag = "2")]
    pub spec: Option<TokenRequestSpec>,
    /// The answer.
    #[prost(message, optional, tag = "3")]
    pub status: Option<TokenRequestStatus>,
}

/// Which token is asked for.
#[derive(Clone, PartialEq, Message)]
pub struct TokenRequestSpec {
    /// For whom the token is; empty for the API server.
    #[prost(string, repeated, tag = "1")]
    pub audiences: Vec<String>,
    /// The object with which the token ends.
    #[prost(message, optional, tag = "3")]
    pub bound_object_ref: Option<BoundObjectReference>,
    /// The validity of the token.
    #[prost(int64, optional, tag = "4")]
    pub expiration_seconds: Option<i64>,
}

/// The object with which a token ends.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct BoundObjectReference {
    /// The kind.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// The API version.
    #[prost(string, tag = "2")]
    pub api_version: String,
    /// The name.
    #[prost(string, tag = "3")]
    pub name: String,
    /// The UID.
    #[prost(string, tag = "4")]
    pub uid: String,
}

/// The answer to a request. The token itself is not read.
#[derive(Clone, PartialEq, Message)]
pub struct TokenRequestStatus {
    /// When the token ends.
    #[prost(message, optional, tag = "2")]
    pub expiration_timestamp: Option<Time>,
}
