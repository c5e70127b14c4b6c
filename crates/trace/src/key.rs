//! Keys and values as JSON has them.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes of a key: a string where they are one, `{"base64": "…"}` otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Key(pub Bytes);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Form<'a> {
    #[serde(borrow)]
    Text(std::borrow::Cow<'a, str>),
    Binary {
        base64: String,
    },
}

impl Key {
    /// Whether there is nothing in it.
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
            Err(_) => Form::Binary { base64: encode(&self.0) }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Form::deserialize(deserializer)? {
            Form::Text(text) => Ok(Key(text.into_owned().into_bytes().into())),
            Form::Binary { base64 } => decode(&base64).map(Key).map_err(D::Error::custom),
        }
    }
}

/// Bytes as text.
pub(crate) fn encode(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

/// And back.
pub(crate) fn decode(text: &str) -> Result<Bytes, base64::DecodeError> {
    BASE64_STANDARD.decode(text).map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text_and_the_rest_survives() {
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
