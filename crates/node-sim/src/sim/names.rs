//! Names of nodes that are made from their number.

use std::fmt;
use std::str::FromStr;

/// A format of names as in C: a text with one `%d` or `%0Nd`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameFormat {
    prefix: String,
    width: usize,
    suffix: String,
}

impl NameFormat {
    /// The name with a number.
    pub fn name(&self, number: u32) -> String {
        let NameFormat { prefix, width, suffix } = self;
        format!("{prefix}{number:0width$}{suffix}")
    }

    /// The number of a name, if it was made with this format.
    pub fn number(&self, name: &str) -> Option<u32> {
        let digits = name.strip_prefix(&*self.prefix)?.strip_suffix(&*self.suffix)?;
        let number = digits.parse().ok()?;
        (self.name(number) == name).then_some(number)
    }
}

impl FromStr for NameFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<NameFormat, String> {
        let error = || format!("{text:?} needs one %d or %0Nd, such as node-%06d");
        let (prefix, rest) = text.split_once('%').ok_or_else(error)?;
        let (width, suffix) = rest.split_once('d').ok_or_else(error)?;
        let width = match width {
            "" => 0,
            width => width.parse().ok().filter(|width| *width <= 20).ok_or_else(error)?,
        };
        let format = NameFormat { prefix: prefix.into(), width, suffix: suffix.into() };
        let allowed = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.'
        };
        let name = format.name(0);
        let ends = name.starts_with(['-', '.']) || name.ends_with(['-', '.']);
        match name.bytes().all(allowed) && !ends && name.len() <= 63 {
            true => Ok(format),
            false => Err(format!("{text:?} makes names such as {name:?}, which nodes cannot have")),
        }
    }
}

impl fmt::Display for NameFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%0{}d{}", self.prefix, self.width, self.suffix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_numbers() {
        for (format, number, name) in [
            ("node-%06d", 12, "node-000012"),
            ("n%d", 12, "n12"),
            ("a%03d.example", 1234, "a1234.example"),
        ] {
            let format: NameFormat = format.parse().unwrap();
            assert_eq!(format.name(number), name);
            assert_eq!(format.number(name), Some(number));
        }
        let format: NameFormat = "node-%06d".parse().unwrap();
        for name in ["node-12", "node-", "node-00001x", "other-000012", "node-+00012"] {
            assert_eq!(format.number(name), None, "{name}");
        }
    }

    #[test]
    fn formats_that_make_no_names_are_rejected() {
        for format in ["node", "node-%s", "Node-%d", "node_%d", "%d-", "a%d%d", "%099d"] {
            assert!(format.parse::<NameFormat>().is_err(), "{format}");
        }
    }
}
