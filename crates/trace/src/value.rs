//! Values of requests, and how much of each value a trace contains.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::key;

/// What a trace contains of each value.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Values {
    /// Nothing.
    None,
    /// The size.
    #[default]
    Sizes,
    /// The size and the bytes.
    Full,
}

impl FromStr for Values {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Values::None),
            "sizes" => Ok(Values::Sizes),
            "full" => Ok(Values::Full),
            _ => Err("must be none, sizes or full".into()),
        }
    }
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Values::None => "none",
            Values::Sizes => "sizes",
            Values::Full => "full",
        })
    }
}

/// A value of a request, as far as the trace contains it.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct Value {
    /// The size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "checked_size")]
    pub bytes: Option<u64>,
    /// The bytes in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
}

/// The maximum size of a value in a trace, in bytes. A replay allocates values of the
/// recorded sizes, so a size in a damaged trace must not exhaust the memory. etcd accepts
/// requests of up to 1.5 MiB by default.
pub const MAX_VALUE_BYTES: u64 = 64 << 20;

/// Deserializes a size of at most [`MAX_VALUE_BYTES`].
fn checked_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    match Option::<u64>::deserialize(deserializer)? {
        Some(bytes) if bytes > MAX_VALUE_BYTES => Err(D::Error::custom(format_args!(
            "a value of {bytes} bytes exceeds the maximum of {MAX_VALUE_BYTES}"
        ))),
        size => Ok(size),
    }
}

impl Value {
    /// Creates a record of `value`: what `values` requires of it.
    pub fn record(value: &[u8], values: Values) -> Value {
        Value {
            bytes: (values != Values::None).then_some(value.len() as u64),
            base64: (values == Values::Full).then(|| key::encode_base64(value)),
        }
    }

    /// The value to send in a replay: the recorded bytes, or dots in the recorded number, or
    /// nothing if not even the size is recorded.
    pub fn for_replay(&self) -> Bytes {
        match (&self.base64, self.bytes) {
            (Some(text), _) => key::decode_base64(text).unwrap_or_default(),
            (None, Some(bytes)) => vec![b'.'; bytes as usize].into(),
            (None, None) => Bytes::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_large_values_are_rejected() {
        let of_size =
            |bytes: u64| serde_json::from_str::<Value>(&format!(r#"{{"bytes":{bytes}}}"#));
        assert_eq!(of_size(3).unwrap().for_replay(), "...");
        assert_eq!(serde_json::from_str::<Value>("{}").unwrap().for_replay(), "");
        assert!(of_size(MAX_VALUE_BYTES).is_ok());
        let error = of_size(MAX_VALUE_BYTES + 1).unwrap_err().to_string();
        assert!(
            error.starts_with("a value of 67108865 bytes exceeds the maximum of 67108864"),
            "{error}"
        );
    }
}
