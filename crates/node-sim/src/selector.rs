//! Label selectors with equality, as in `kubectl -l`.

use std::collections::BTreeMap;
use std::str::FromStr;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// A label selector. The empty one selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    requirements: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    Equal(String, String),
    NotEqual(String, String),
    Exists(String),
    Missing(String),
}

impl Selector {
    /// Whether the selector selects an object with these labels.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.requirements.iter().all(|requirement| match requirement {
            Requirement::Equal(key, value) => labels.get(key) == Some(value),
            Requirement::NotEqual(key, value) => labels.get(key) != Some(value),
            Requirement::Exists(key) => labels.contains_key(key),
            Requirement::Missing(key) => !labels.contains_key(key),
        })
    }
}

impl FromStr for Selector {
    type Err = String;

    fn from_str(text: &str) -> Result<Selector, String> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let requirements = parts.map(requirement).collect::<Result<_, _>>()?;
        Ok(Selector { requirements })
    }
}

fn requirement(text: &str) -> Result<Requirement, String> {
    let key = |key: &str| {
        let key = key.trim();
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
        match !key.is_empty() && key.bytes().all(allowed) {
            true => Ok(key.to_owned()),
            false => Err(format!("{text:?} is not KEY=VALUE, KEY!=VALUE, KEY or !KEY")),
        }
    };
    if let Some((name, value)) = text.split_once("!=") {
        return Ok(Requirement::NotEqual(key(name)?, value.trim().to_owned()));
    }
    if let Some((name, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return Ok(Requirement::Equal(key(name)?, value.trim().to_owned()));
    }
    match text.strip_prefix('!') {
        Some(name) => Ok(Requirement::Missing(key(name)?)),
        None => Ok(Requirement::Exists(key(text)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_select_as_kubectl_does() {
        let labels = Labels::from([("a".into(), "1".into()), ("b/c".into(), String::new())]);
        for (text, expected) in [
            ("", true),
            ("a=1", true),
            ("a==1,b/c=", true),
            ("a=2", false),
            ("a!=2,x!=1", true),
            ("a!=1", false),
            ("a, b/c", true),
            ("x", false),
            ("!x", true),
            ("!a", false),
        ] {
            assert_eq!(text.parse::<Selector>().unwrap().matches(&labels), expected, "{text}");
        }
        for text in ["=1", "a in (b)", "!", "a b"] {
            assert!(text.parse::<Selector>().is_err(), "{text}");
        }
    }
}
