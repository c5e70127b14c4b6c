//! Durations as Kubernetes writes them.

use std::str::FromStr;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// A duration of at least a millisecond, written as in Kubernetes: `500ms`, `30s`, `5m`, `1h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

impl Span {
    /// A duration in seconds.
    pub const fn from_secs(seconds: u64) -> Span {
        Span(Duration::from_secs(seconds))
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Span, String> {
        parse(text).ok_or_else(|| format!("{text:?} is not a duration such as 500ms, 30s or 5m"))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

fn parse(text: &str) -> Option<Span> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..digits].parse().ok()?;
    let unit = match &text[digits..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    let milliseconds = number.checked_mul(unit).filter(|milliseconds| *milliseconds > 0)?;
    Some(Span(Duration::from_millis(milliseconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_required() {
        assert_eq!(parse("500ms"), Some(Span(Duration::from_millis(500))));
        assert_eq!(parse("2m"), Some(Span::from_secs(120)));
        for text in ["", "5", "s", "-1s", "0s", "1.5s", "99999999999999999h"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
