//! Label selectors, applied to the labels of the namespace.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The labels of an object.
pub type Labels = BTreeMap<String, String>;

/// `metav1.LabelSelector`. An empty one selects everything.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Selector {
    match_labels: Labels,
    match_expressions: Vec<Requirement>,
}

#[derive(Clone, Debug, Deserialize)]
struct Requirement {
    key: String,
    operator: String,
    #[serde(default)]
    values: Vec<String>,
}

impl Selector {
    /// Whether the selector selects an object with these labels.
    pub fn selects(&self, labels: &Labels) -> bool {
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|requirement| requirement.holds(labels))
    }
}

impl Requirement {
    fn holds(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match self.operator.as_str() {
            "In" => value.is_some_and(|value| self.values.contains(value)),
            // As in Kubernetes, an object without the label is selected too.
            "NotIn" => value.is_none_or(|value| !self.values.contains(value)),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            // An operator that this version does not know could select everything.
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_select_as_in_kubernetes() {
        let labels = Labels::from([("team".into(), "a".into())]);
        let expression = |operator: &str, key: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        for (selector, expected) in [
            (json!({}), true),
            (json!({"matchLabels": {"team": "a"}}), true),
            (json!({"matchLabels": {"team": "b"}}), false),
            (json!({"matchLabels": {"other": "a"}}), false),
            (expression("In", "team", &["a", "b"]), true),
            (expression("In", "team", &["b"]), false),
            (expression("In", "other", &["a"]), false),
            (expression("NotIn", "team", &["a"]), false),
            (expression("NotIn", "team", &["b"]), true),
            (expression("NotIn", "other", &["a"]), true),
            (expression("Exists", "team", &[]), true),
            (expression("Exists", "other", &[]), false),
            (expression("DoesNotExist", "team", &[]), false),
            (expression("DoesNotExist", "other", &[]), true),
            (expression("Unknown", "other", &[]), true),
        ] {
            let parsed: Selector = serde_json::from_value(selector.clone()).unwrap();
            assert_eq!(parsed.selects(&labels), expected, "{selector}");
        }
    }
}
