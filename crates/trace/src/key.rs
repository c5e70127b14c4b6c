//! Keys in JSON, and the base64 encoding of bytes.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A key. In JSON it is a string if the bytes are UTF-8, otherwise
/// `{"base64": "…"}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Key(
    /// The bytes of the key.
    pub Bytes,
);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum JsonKey<'a> {
    #[serde(borrow)]
    Text(std::borrow::Cow<'a, str>),
    Binary {
        base64: String,
    },
}

impl Key {
    /// Whether the key is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Key(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => JsonKey::Binary { base64: encode_base64(&self.0) }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match JsonKey::deserialize(deserializer)? {
            JsonKey::Text(text) => Ok(Key(text.into_owned().into_bytes().into())),
            JsonKey::Binary { base64 } => decode_base64(&base64).map(Key).map_err(D::Error::custom),
        }
    }
}

/// Encodes bytes as base64.
pub(crate) fn encode_base64(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

/// Decodes base64.
pub(crate) fn decode_base64(text: &str) -> Result<Bytes, base64::DecodeError> {
    BASE64_STANDARD.decode(text).map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_serialized_and_deserialized() {
        for (bytes, json) in [
            (&b"/registry/pods/a/b"[..], r#""/registry/pods/a/b""#),
            (b"\0", r#""\u0000""#),
            (b"\"quoted\"", r#""\"quoted\"""#),
            (b"\xff\x00", r#"{"base64":"/wA="}"#),
        ] {
            let key = Key(Bytes::from_static(bytes));
            assert_eq!(serde_json::to_string(&key).unwrap(), json);
            assert_eq!(serde_json::from_str::<Key>(json).unwrap(), key);
        }
        assert!(serde_json::from_str::<Key>(r#"{"base64":"?"}"#).is_err());
    }
}
