//! Numbers of bytes as Kubernetes writes them.

use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// A number of bytes, written as in Kubernetes: `65536`, `64Ki`, `512Mi`, `2Gi`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let shift = match &text[digits..] {
            "" => Some(0),
            "Ki" => Some(10),
            "Mi" => Some(20),
            "Gi" => Some(30),
            _ => None,
        };
        let number = text[..digits].parse::<u64>().ok();
        let bytes =
            number.zip(shift).and_then(|(number, shift)| number.checked_mul(1_u64 << shift));
        bytes.map(Size).ok_or_else(|| format!("{text:?} is not a size such as 64Ki, 512Mi or 2Gi"))
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        // A plain number is a number in YAML.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(bytes) => Ok(Size(bytes)),
            Written::Text(text) => text.parse().map_err(D::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_binary() {
        for (text, bytes) in [("0", 0), ("7", 7), ("64Ki", 64 << 10), ("2Gi", 2 << 30)] {
            assert_eq!(text.parse(), Ok(Size(bytes)));
        }
        for text in ["", "Mi", "1.5Gi", "-1", "5M", "99999999999Gi"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
