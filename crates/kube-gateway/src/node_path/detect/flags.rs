//! Whether the flags of an API server, as its page `/flagz` shows them, allow the node path.

use std::collections::{BTreeMap, BTreeSet};

use super::reason::{Reason, Rule};

/// Flags and their values.
pub type Flags = BTreeMap<String, String>;

/// What the operator declares, and where the gateway expects the Leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The audit policy has the level None for renewals of Leases.
    pub audit_level_none: bool,
    /// Reads of nodes are not served, or the audit policy has the level None for them.
    pub read_audit_level_none: bool,
    /// The prefix of all keys, as `--etcd-prefix`.
    pub etcd_prefix: String,
    /// The URLs of the store to which the gateway writes Leases.
    pub store_endpoints: Vec<String>,
}

/// The encoding that the gateway writes.
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// The admission plugins of Kubernetes 1.37 that do nothing when a Lease is updated, or whose objects
/// are watched. NodeRestriction demands no more of a Lease than the Node authorizer. Every other
/// plugin is a reason: AlwaysDeny, and those of API servers that somebody extended.
const HARMLESS_PLUGINS: [&str; 38] = [
    "AlwaysAdmit",
    "AlwaysPullImages",
    "CertificateApproval",
    "CertificateSigning",
    "CertificateSubjectRestriction",
    "ClusterTrustBundleAttest",
    "DefaultIngressClass",
    "DefaultStorageClass",
    "DefaultTolerationSeconds",
    "DenyServiceExternalIPs",
    "EventRateLimit",
    "ExtendedResourceToleration",
    "ImagePolicyWebhook",
    "LimitPodHardAntiAffinityTopology",
    "LimitRanger",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionWebhook",
    "NamespaceAutoProvision",
    "NamespaceExists",
    "NamespaceLifecycle",
    "NodeDeclaredFeatureValidator",
    "NodeRestriction",
    "OwnerReferencesPermissionEnforcement",
    "PersistentVolumeClaimResize",
    "PodGroupProtection",
    "PodNodeSelector",
    "PodResizeValidator",
    "PodSecurity",
    "PodTolerationRestriction",
    "PodTopologyLabels",
    "Priority",
    "ResourceQuota",
    "RuntimeClass",
    "ServiceAccount",
    "StorageObjectInUseProtection",
    "TaintNodesByCondition",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionWebhook",
];

/// Returns why the flags of the API server `server` forbid the node path.
pub fn reasons(server: &str, flags: &Flags, expected: &Expected) -> Vec<Reason> {
    let mut found = Found { server, flags, reasons: Vec::new() };
    found.must_be_empty("admission-control-config-file", Rule::AdmissionConfig);
    found.must_be_empty("authorization-config", Rule::Authorization);
    found.must_be_empty("encryption-provider-config", Rule::Encryption);
    if !expected.audit_level_none {
        found.must_be_empty("audit-policy-file", Rule::Audit);
    }
    if !expected.read_audit_level_none {
        found.must_be_empty("audit-policy-file", Rule::ReadAudit);
    }
    found.must_be("storage-media-type", Rule::Storage, |value| value == PROTOBUF);
    let prefix = normal_prefix(&expected.etcd_prefix);
    found.must_be("etcd-prefix", Rule::Storage, |value| normal_prefix(value) == prefix);
    found.must_be("etcd-servers-overrides", Rule::Storage, |value| {
        items(value).all(|item| leads_to(item, &expected.store_endpoints))
    });
    found.must_be("authorization-mode", Rule::Authorization, |value| node_decides(items(value)));
    // Admission plugins can also be named by a deprecated flag.
    for flag in ["enable-admission-plugins", "admission-control"] {
        if flags.contains_key(flag) || flag == "enable-admission-plugins" {
            found.must_be(flag, Rule::AdmissionPlugin, |value| {
                items(value).all(|plugin| HARMLESS_PLUGINS.contains(&plugin))
            });
        }
    }
    found.reasons
}

struct Found<'a> {
    server: &'a str,
    flags: &'a Flags,
    reasons: Vec<Reason>,
}

impl Found<'_> {
    fn must_be_empty(&mut self, flag: &str, rule: Rule) {
        self.must_be(flag, rule, str::is_empty);
    }

    /// Adds a reason unless the value of a flag is allowed. A flag that is absent is a reason too:
    /// without it nothing is known.
    fn must_be(&mut self, flag: &str, rule: Rule, allowed: impl Fn(&str) -> bool) {
        let server = self.server;
        match self.flags.get(flag) {
            Some(value) if allowed(value) => {}
            Some(value) => {
                self.reasons.push(Reason::new(rule, format!("{server}: --{flag}={value}")));
            }
            None => {
                let object = format!("{server}: /flagz does not show --{flag}");
                self.reasons.push(Reason::new(rule, object));
            }
        }
    }
}

/// Returns the items of a list as pflag prints it: `[a,b]`.
fn items(value: &str) -> impl Iterator<Item = &str> {
    let inner = value.strip_prefix('[').and_then(|value| value.strip_suffix(']')).unwrap_or(value);
    inner.split([',', ' ']).map(|item| item.trim_matches('"')).filter(|item| !item.is_empty())
}

/// Whether the Node authorizer decides before anything that may refuse. Node, RBAC, ABAC and
/// AlwaysAllow only allow, so that their order does not matter.
fn node_decides<'a>(mut modes: impl Iterator<Item = &'a str>) -> bool {
    modes
        .find(|mode| !matches!(*mode, "RBAC" | "ABAC" | "AlwaysAllow"))
        .is_some_and(|first| first == "Node")
}

/// Whether an override `group/resource#servers` leaves Leases in the store `endpoints`: it is for another resource,
/// or its servers, separated by semicolons, are those endpoints in any order.
fn leads_to(item: &str, endpoints: &[String]) -> bool {
    let (resource, servers) = item.split_once('#').unwrap_or((item, ""));
    let is_other =
        resource.contains('/') && !resource.ends_with('*') && !resource.ends_with("leases");
    is_other || urls(servers.split(';')) == urls(endpoints.iter().map(String::as_str))
}

/// Returns URLs in an order that does not depend on how they were listed.
fn urls<'a>(list: impl Iterator<Item = &'a str>) -> BTreeSet<&'a str> {
    list.map(|url| url.trim_end_matches('/')).collect()
}

/// Returns a prefix as kube-apiserver uses it: with one slash before it, and none behind it.
pub fn normal_prefix(prefix: &str) -> String {
    format!("/{}", prefix.trim_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flags of an API server as kubeadm starts it.
    fn usual() -> Flags {
        [
            ("admission-control-config-file", ""),
            ("audit-policy-file", ""),
            ("authorization-config", ""),
            ("authorization-mode", "[Node,RBAC]"),
            ("enable-admission-plugins", "[NodeRestriction]"),
            ("encryption-provider-config", ""),
            ("etcd-prefix", "/registry"),
            ("etcd-servers-overrides", "[]"),
            ("storage-media-type", "application/vnd.kubernetes.protobuf"),
        ]
        .map(|(flag, value)| (flag.to_owned(), value.to_owned()))
        .into()
    }

    fn expected() -> Expected {
        let (audit_level_none, read_audit_level_none) = (false, true);
        Expected {
            audit_level_none,
            read_audit_level_none,
            etcd_prefix: "/registry".into(),
            store_endpoints: vec!["https://10.0.0.1:2379".into(), "https://10.0.0.2:2379".into()],
        }
    }

    #[test]
    fn each_flag_can_be_a_reason() {
        assert_eq!(reasons("s", &usual(), &expected()), []);
        for (flag, value, rule) in [
            ("admission-control-config-file", "/a", Some(Rule::AdmissionConfig)),
            ("audit-policy-file", "/a", Some(Rule::Audit)),
            ("authorization-config", "/a", Some(Rule::Authorization)),
            ("authorization-mode", "[]", Some(Rule::Authorization)),
            ("authorization-mode", "[RBAC]", Some(Rule::Authorization)),
            ("authorization-mode", "[AlwaysAllow]", Some(Rule::Authorization)),
            ("authorization-mode", "[Webhook,Node,RBAC]", Some(Rule::Authorization)),
            ("authorization-mode", "[RBAC,AlwaysDeny,Node]", Some(Rule::Authorization)),
            ("authorization-mode", "[Node,Webhook]", None),
            ("authorization-mode", "[RBAC,Node]", None),
            ("enable-admission-plugins", "[]", None),
            (
                "enable-admission-plugins",
                "[NodeRestriction,AlwaysDeny]",
                Some(Rule::AdmissionPlugin),
            ),
            ("enable-admission-plugins", "[Own]", Some(Rule::AdmissionPlugin)),
            ("encryption-provider-config", "/e", Some(Rule::Encryption)),
            ("etcd-prefix", "/other", Some(Rule::Storage)),
            ("etcd-prefix", "registry/", None),
            ("etcd-servers-overrides", "[/events#http://a:1;http://b:1]", None),
            (
                "etcd-servers-overrides",
                "[/events#http://a:1,coordination.k8s.io/leases#http://b:1]",
                Some(Rule::Storage),
            ),
            ("etcd-servers-overrides", "[coordination.k8s.io/*#http://b:1]", Some(Rule::Storage)),
            (
                "etcd-servers-overrides",
                "[coordination.k8s.io/leases#https://10.0.0.1:2379]",
                Some(Rule::Storage),
            ),
            (
                "etcd-servers-overrides",
                "[/pods#http://a:1,coordination.k8s.io/leases#https://10.0.0.2:2379;https://10.0.0.1:2379]",
                None,
            ),
            // The last override of a resource is the one that counts; one is enough to refuse.
            (
                "etcd-servers-overrides",
                "[coordination.k8s.io/leases#http://b:1,\
                 coordination.k8s.io/leases#https://10.0.0.1:2379;https://10.0.0.2:2379]",
                Some(Rule::Storage),
            ),
            ("storage-media-type", "application/json", Some(Rule::Storage)),
        ] {
            let mut flags = usual();
            flags.insert(flag.into(), value.into());
            let found = reasons("s", &flags, &expected());
            let rules: Vec<Rule> = found.iter().map(|reason| reason.rule).collect();
            assert_eq!(rules, Vec::from_iter(rule), "--{flag}={value}");
            assert!(found.iter().all(|reason| reason.object == format!("s: --{flag}={value}")));
        }
    }

    #[test]
    fn a_flag_that_is_not_shown_is_a_reason() {
        for flag in usual().keys() {
            let mut flags = usual();
            flags.remove(flag);
            assert_eq!(reasons("s", &flags, &expected()).len(), 1, "{flag}");
        }
    }

    #[test]
    fn the_operator_can_declare_what_is_not_audited() {
        let mut flags = usual();
        flags.insert("audit-policy-file".into(), "/a".into());
        let declared = Expected { audit_level_none: true, ..expected() };
        assert_eq!(reasons("s", &flags, &declared), []);
        let renewals_only = Expected { read_audit_level_none: false, ..declared };
        let found = reasons("s", &flags, &renewals_only);
        assert_eq!(found.iter().map(|reason| reason.rule).collect::<Vec<_>>(), [Rule::ReadAudit]);
        assert!(Rule::ReadAudit.forbids_reads() && !Rule::ReadAudit.forbids_renewals());
    }
}
