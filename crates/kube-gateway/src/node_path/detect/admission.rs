//! Whether webhooks and admission policies could see the renewal of a node's Lease.
//!
//! The rules are matched as by kube-apiserver
//! (`k8s.io/apiserver/pkg/admission/plugin/webhook/predicates/rules` and `.../policy/matching`). What
//! depends on the object (object selectors, match conditions, names) could match. So could a policy
//! without a binding, and one whose bindings restrict it further: bindings are not read, because a
//! policy for Leases without one is about to get one. What cannot be parsed matches.

use serde::Deserialize;
use serde_json::Value;

use super::reason::{Reason, Rule};
use super::selector::{Labels, Selector};

/// The kinds of objects that decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// ValidatingWebhookConfiguration.
    ValidatingWebhooks,
    /// MutatingWebhookConfiguration.
    MutatingWebhooks,
    /// ValidatingAdmissionPolicy.
    ValidatingPolicies,
    /// MutatingAdmissionPolicy.
    MutatingPolicies,
    /// The namespace of the Leases.
    Namespace,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 5] = [
        Kind::ValidatingWebhooks,
        Kind::MutatingWebhooks,
        Kind::ValidatingPolicies,
        Kind::MutatingPolicies,
        Kind::Namespace,
    ];

    /// Returns the name of the kind in Kubernetes.
    pub fn name(self) -> &'static str {
        match self {
            Kind::ValidatingWebhooks => "ValidatingWebhookConfiguration",
            Kind::MutatingWebhooks => "MutatingWebhookConfiguration",
            Kind::ValidatingPolicies => "ValidatingAdmissionPolicy",
            Kind::MutatingPolicies => "MutatingAdmissionPolicy",
            Kind::Namespace => "Namespace",
        }
    }

    /// Returns the path of the objects, with the start of a query.
    pub fn path(self) -> &'static str {
        match self {
            Kind::ValidatingWebhooks => {
                "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations?"
            }
            Kind::MutatingWebhooks => {
                "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations?"
            }
            Kind::ValidatingPolicies => {
                "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies?"
            }
            Kind::MutatingPolicies => {
                "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies?"
            }
            Kind::Namespace => "/api/v1/namespaces?fieldSelector=metadata.name%3Dkube-node-lease&",
        }
    }
}

/// `RuleWithOperations`, and the names of a policy's rule.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct ResourceRule {
    operations: Vec<String>,
    api_groups: Vec<String>,
    api_versions: Vec<String>,
    resources: Vec<String>,
    scope: Option<String>,
    resource_names: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Webhook {
    name: String,
    rules: Vec<ResourceRule>,
    match_policy: Option<String>,
    namespace_selector: Selector,
}

/// `MatchResources` of a policy.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct MatchResources {
    resource_rules: Vec<ResourceRule>,
    exclude_resource_rules: Vec<ResourceRule>,
    match_policy: Option<String>,
    namespace_selector: Selector,
}

/// Returns why an object of a kind forbids the node path. `labels` are those of the namespace.
pub fn reason(kind: Kind, name: &str, object: &Value, labels: &Labels) -> Option<Reason> {
    let described = format!("{} {name}", kind.name());
    match kind {
        Kind::ValidatingWebhooks | Kind::MutatingWebhooks => {
            let webhook = matching_webhook(object, labels)?;
            Some(Reason::new(Rule::Webhook, format!("{described}, webhook {webhook}")))
        }
        Kind::ValidatingPolicies | Kind::MutatingPolicies => {
            policy_matches(object, labels).then(|| Reason::new(Rule::AdmissionPolicy, described))
        }
        Kind::Namespace => {
            let deleted = !object["metadata"]["deletionTimestamp"].is_null();
            deleted.then(|| Reason::new(Rule::Namespace, format!("{described} is being deleted")))
        }
    }
}

/// Returns the labels of a namespace.
pub fn labels(namespace: &Value) -> Labels {
    Labels::deserialize(&namespace["metadata"]["labels"]).unwrap_or_default()
}

/// Returns the name of the first webhook that could see a renewal.
fn matching_webhook(configuration: &Value, labels: &Labels) -> Option<String> {
    let webhooks = match &configuration["webhooks"] {
        Value::Null => return None,
        Value::Array(webhooks) => webhooks,
        _ => return Some("(not readable)".into()),
    };
    webhooks.iter().find_map(|webhook| {
        let name = webhook["name"].as_str().unwrap_or("(without a name)");
        let matches = Webhook::deserialize(webhook).is_ok_and(|webhook| !webhook.matches(labels));
        (!matches).then(|| name.to_owned())
    })
}

impl Webhook {
    fn matches(&self, labels: &Labels) -> bool {
        let exact = is_exact(self.match_policy.as_deref());
        self.namespace_selector.selects(labels) && self.rules.iter().any(|rule| rule.matches(exact))
    }
}

fn policy_matches(policy: &Value, labels: &Labels) -> bool {
    let Ok(constraints) = MatchResources::deserialize(&policy["spec"]["matchConstraints"]) else {
        return true;
    };
    let exact = is_exact(constraints.match_policy.as_deref());
    // An exclusion counts only if it certainly applies.
    let is_excluded = |rule: &ResourceRule| rule.resource_names.is_empty() && rule.matches(true);
    let MatchResources { resource_rules: rules, exclude_resource_rules: excluded, .. } =
        &constraints;
    constraints.namespace_selector.selects(labels)
        && !excluded.iter().any(is_excluded)
        // As in kube-apiserver, a policy without rules sees everything, unlike a webhook.
        && (rules.is_empty() || rules.iter().any(|rule| rule.matches(exact)))
}

/// Whether equivalent resources do not match. The API's default is that they do.
fn is_exact(match_policy: Option<&str>) -> bool {
    match_policy == Some("Exact")
}

impl ResourceRule {
    /// Whether the rule matches an update of `leases` of `coordination.k8s.io/v1` in a namespace.
    /// Unless the version must be exact, every other version of the group is equivalent.
    fn matches(&self, exact: bool) -> bool {
        let has = |items: &[String], wanted: &str| items.iter().any(|i| i == "*" || i == wanted);
        let scope = self.scope.as_deref().unwrap_or("*");
        scope != "Cluster"
            && has(&self.operations, "UPDATE")
            && has(&self.api_groups, "coordination.k8s.io")
            && (!exact || has(&self.api_versions, "v1"))
            && self.resources.iter().any(|resource| is_leases(resource))
    }
}

/// Whether the resource of a rule matches `leases`. A subresource `*` matches the resource itself too.
fn is_leases(resource: &str) -> bool {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    (resource == "*" || resource == "leases") && (subresource.is_empty() || subresource == "*")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::node_path::NAMESPACE;

    const ALL: [&str; 4] = ["*", "*", "*", "*"];

    /// A rule with an operation, a group, a version and a resource.
    fn rule([operation, group, version, resource]: [&str; 4]) -> Value {
        json!({"operations": [operation], "apiGroups": [group], "apiVersions": [version],
            "resources": [resource]})
    }

    fn with(mut rule: Value, field: &str, value: Value) -> Value {
        rule[field] = value;
        rule
    }

    fn namespace_labels() -> Labels {
        labels(&json!({"metadata": {"labels": {"kubernetes.io/metadata.name": NAMESPACE}}}))
    }

    fn webhook_matches(webhook: Value) -> bool {
        let object = json!({"webhooks": [{"name": "other", "rules": []}, webhook]});
        reason(Kind::MutatingWebhooks, "x", &object, &namespace_labels()).is_some()
    }

    /// Rules, and whether they match a renewal.
    fn rules() -> Vec<(Value, bool)> {
        let lease = ["UPDATE", "coordination.k8s.io", "v1", "leases"];
        let changed = |at: usize, value| {
            let mut rule = lease;
            rule[at] = value;
            rule
        };
        let mut rules = vec![
            (with(rule(lease), "scope", json!("Namespaced")), true),
            (with(rule(lease), "scope", json!("*")), true),
            (with(rule(lease), "scope", json!("Cluster")), false),
            (with(rule(lease), "operations", json!(["CREATE", "UPDATE"])), true),
            (with(rule(lease), "resources", json!(["pods", "leases"])), true),
            (json!({}), false),
        ];
        for (fields, expected) in [
            (ALL, true),
            (lease, true),
            (changed(0, "*"), true),
            (changed(0, "CREATE"), false),
            (changed(0, "DELETE"), false),
            (changed(0, "CONNECT"), false),
            (changed(1, "*"), true),
            (changed(1, ""), false),
            (changed(1, "apps"), false),
            (changed(2, "*"), true),
            (changed(3, "*"), true),
            (changed(3, "*/*"), true),
            (changed(3, "leases/*"), true),
            (changed(3, "leases/status"), false),
            (changed(3, "*/status"), false),
            (changed(3, "pods"), false),
            (changed(3, "pods/*"), false),
        ] {
            rules.push((rule(fields), expected));
        }
        rules
    }

    #[test]
    fn rules_match_as_in_kube_apiserver() {
        for (rule, expected) in rules() {
            for exact in ["Exact", "Equivalent"] {
                let webhook = json!({"name": "w", "rules": [rule], "matchPolicy": exact});
                assert_eq!(webhook_matches(webhook), expected, "{exact} {rule}");
                let policy = json!({"spec": {"matchConstraints":
                    {"resourceRules": [rule], "matchPolicy": exact}}});
                for kind in [Kind::ValidatingPolicies, Kind::MutatingPolicies] {
                    let reason = reason(kind, "x", &policy, &namespace_labels());
                    assert_eq!(reason.is_some(), expected, "{exact} {rule}");
                }
            }
        }
    }

    #[test]
    fn another_version_matches_unless_it_must_be_exact() {
        let rule = rule(["UPDATE", "coordination.k8s.io", "v1beta1", "leases"]);
        for (policy, expected) in
            [(json!("Exact"), false), (json!("Equivalent"), true), (Value::Null, true)]
        {
            let webhook = json!({"name": "w", "rules": [rule], "matchPolicy": policy});
            assert_eq!(webhook_matches(webhook), expected, "{policy}");
        }
    }

    #[test]
    fn what_depends_on_the_object_could_match() {
        let webhook = |field: &str, value: Value| {
            with(json!({"name": "w", "rules": [rule(ALL)]}), field, value)
        };
        for (field, value, expected) in [
            ("objectSelector", json!({"matchLabels": {"a": "b"}}), true),
            ("matchConditions", json!([{"name": "never", "expression": "false"}]), true),
            ("namespaceSelector", json!({"matchLabels": {"a": "b"}}), false),
            (
                "namespaceSelector",
                json!({"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}}),
                true,
            ),
            ("namespaceSelector", json!({"matchLabels": []}), true),
            ("rules", json!("?"), true),
        ] {
            assert_eq!(webhook_matches(webhook(field, value.clone())), expected, "{field} {value}");
        }
    }

    #[test]
    fn policies_can_exclude_leases() {
        let matches = |constraints: Value| {
            let policy = json!({"spec": {"matchConstraints": constraints}});
            reason(Kind::ValidatingPolicies, "x", &policy, &namespace_labels()).is_some()
        };
        let lease = rule(["*", "coordination.k8s.io", "v1", "leases"]);
        let named = with(lease.clone(), "resourceNames", json!(["node-1"]));
        let beta = rule(["*", "coordination.k8s.io", "v1beta1", "leases"]);
        let all = rule(ALL);
        for (constraints, expected) in [
            (json!({"resourceRules": [all]}), true),
            (json!({"resourceRules": [named]}), true),
            (json!({"resourceRules": [all], "excludeResourceRules": [lease]}), false),
            (json!({"resourceRules": [all], "excludeResourceRules": [named]}), true),
            (json!({"resourceRules": [all], "excludeResourceRules": [beta]}), true),
            (
                json!({"resourceRules": [all], "namespaceSelector": {"matchLabels": {"a": "b"}}}),
                false,
            ),
            (json!({}), true),
            (Value::Null, true),
        ] {
            assert_eq!(matches(constraints.clone()), expected, "{constraints}");
        }
    }

    #[test]
    fn a_namespace_that_is_being_deleted_is_a_reason() {
        let reason = |object| reason(Kind::Namespace, NAMESPACE, &object, &Labels::new());
        assert!(reason(json!({"metadata": {"name": NAMESPACE}})).is_none());
        let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        assert_eq!(reason(deleted).unwrap().rule, Rule::Namespace);
    }
}
