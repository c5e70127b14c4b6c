//! Values, and how much of them a trace contains.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::key;

/// How much of each value a trace contains.
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

/// A value, or the part of it that the trace contains.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct Value {
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "size")]
    /// The size in bytes.
    pub bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    /// The bytes in base64.
    pub base64: Option<String>,
}

/// The maximum size of a value in a trace, in bytes. A replay allocates values of the
/// recorded size, so a damaged trace must not request an arbitrary one. etcd accepts
/// 1.5 MiB by default.
pub const MAX_VALUE_BYTES: u64 = 64 << 20;

fn size<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    match Option::<u64>::deserialize(from)? {
        Some(bytes) if bytes > MAX_VALUE_BYTES => Err(D::Error::custom(format_args!(
            "a value of {bytes} bytes exceeds the maximum of {MAX_VALUE_BYTES}"
        ))),
        size => Ok(size),
    }
}

impl Value {
    /// Keeps as much of `value` as `values` requires.
    pub fn keep(value: &[u8], values: Values) -> Value {
        Value {
            bytes: (values != Values::None).then_some(value.len() as u64),
            base64: (values == Values::Full).then(|| key::encode(value)),
        }
    }

    /// The value. If its bytes were not kept, a value of the same size; if the size was
    /// not kept, an empty value.
    pub fn restore(&self) -> Bytes {
        match (&self.base64, self.bytes) {
            (Some(text), _) => key::decode(text).unwrap_or_default(),
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
        let read = |bytes: u64| serde_json::from_str::<Value>(&format!(r#"{{"bytes":{bytes}}}"#));
        assert_eq!(read(3).unwrap().restore(), "...");
        assert_eq!(serde_json::from_str::<Value>("{}").unwrap().restore(), "");
        assert!(read(MAX_VALUE_BYTES).is_ok());
        let error = read(MAX_VALUE_BYTES + 1).unwrap_err().to_string();
        assert!(
            error.starts_with("a value of 67108865 bytes exceeds the maximum of 67108864"),
            "{error}"
        );
    }
}
