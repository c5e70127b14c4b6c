//! What is known about the API servers and their objects, and what follows from it.

use std::collections::BTreeMap;
use std::time::Instant;

use super::admission::{self, Kind};
use super::reason::{Reason, Rule};
use super::selector::Labels;
use super::track::Track;
use crate::node_path::NAMESPACE;

/// What is known.
#[derive(Debug, Default)]
pub struct Knowledge {
    tracks: BTreeMap<Kind, Track>,
    servers: BTreeMap<String, Examined>,
}

/// What the examination of an API server found.
#[derive(Clone, Debug)]
pub enum Examined {
    /// It could not be examined, for this reason.
    Failed(String),
    /// It told how it is configured, which is why the node path is forbidden. No reason means that it
    /// is harmless.
    Known(Vec<Reason>),
}

impl Knowledge {
    /// Returns what is known of the objects of a kind.
    pub fn track(&mut self, kind: Kind) -> &mut Track {
        self.tracks.entry(kind).or_default()
    }

    /// Notes the examination of an API server.
    pub fn examined(&mut self, server: &str, examined: Examined) {
        self.servers.insert(server.to_owned(), examined);
    }

    /// Forgets an API server that left the pool.
    pub fn forget(&mut self, server: &str) {
        self.servers.remove(server);
    }

    /// Returns all reasons not to use the node path, sorted. `in_use` are the API servers that get
    /// requests of clients.
    pub fn reasons(&self, now: Instant, in_use: &[String]) -> Vec<Reason> {
        let mut reasons = self.reasons_of_objects(now);
        if in_use.is_empty() {
            reasons.push(Reason::new(Rule::Server, "no API server is ready"));
        }
        for server in in_use {
            match self.servers.get(server) {
                Some(Examined::Known(found)) => reasons.extend_from_slice(found),
                Some(Examined::Failed(error)) => {
                    reasons.push(Reason::new(Rule::Server, format!("{server}: {error}")));
                }
                None => {
                    reasons.push(Reason::new(Rule::Server, format!("{server}: not examined yet")));
                }
            }
        }
        reasons.sort();
        reasons
    }

    fn reasons_of_objects(&self, now: Instant) -> Vec<Reason> {
        let mut reasons = Vec::new();
        let labels = self.namespace_labels();
        for kind in Kind::ALL {
            let Some(track) = self.tracks.get(&kind) else {
                reasons.push(Reason::new(Rule::Stale, format!("{}: not listed yet", kind.name())));
                continue;
            };
            if let Some(stale) = track.stale(now) {
                reasons.push(Reason::new(Rule::Stale, format!("{}: {stale}", kind.name())));
            }
            let of = |(name, object)| admission::reason(kind, name, object, &labels);
            reasons.extend(track.objects().filter_map(of));
            if kind == Kind::Namespace && track.objects().next().is_none() {
                let object = format!("there is no namespace {}", NAMESPACE);
                reasons.push(Reason::new(Rule::Namespace, object));
            }
        }
        reasons
    }

    /// Returns the labels of the namespace; none if it is not known, which is a reason anyway.
    fn namespace_labels(&self) -> Labels {
        let namespace = self.tracks.get(&Kind::Namespace);
        let object = namespace.and_then(|track| track.objects().next());
        object.map(|(_, object)| admission::labels(object)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::node_path::detect::track::{Change, List};

    const SERVER: &str = "10.0.0.1:6443";

    /// Everything is known and harmless.
    fn harmless(now: Instant) -> Knowledge {
        let mut knowledge = Knowledge::default();
        for kind in Kind::ALL {
            let namespace = json!({"metadata": {"labels": {"a": "b"}}});
            let objects = match kind {
                Kind::Namespace => vec![(NAMESPACE.to_owned(), namespace)],
                _ => vec![(
                    "x".to_owned(),
                    json!({"spec": {"matchConstraints":
                    {"namespaceSelector": {"matchLabels": {"a": "c"}}}}}),
                )],
            };
            knowledge.track(kind).watching();
            knowledge.track(kind).listed(List { version: 1, objects }, now);
        }
        knowledge.examined(SERVER, Examined::Known(vec![]));
        knowledge
    }

    fn rules(knowledge: &Knowledge, now: Instant, servers: &[&str]) -> Vec<Rule> {
        let servers: Vec<String> = servers.iter().map(|server| (*server).to_owned()).collect();
        knowledge.reasons(now, &servers).iter().map(|reason| reason.rule).collect()
    }

    fn change(kind: Kind, knowledge: &mut Knowledge, name: &str, object: Option<Value>) {
        knowledge.track(kind).changed(Change { name: name.into(), version: 9, object });
    }

    #[test]
    fn nothing_is_allowed_before_everything_is_known() {
        let now = Instant::now();
        let nothing = Knowledge::default();
        assert_eq!(rules(&nothing, now, &[]).len(), Kind::ALL.len() + 1);
        assert_eq!(rules(&harmless(now), now, &[SERVER]), []);
        assert_eq!(rules(&harmless(now), now, &[]), [Rule::Server]);
        assert_eq!(rules(&harmless(now), now, &[SERVER, "other"]), [Rule::Server]);
        let later = now + Duration::from_secs(6);
        assert_eq!(rules(&harmless(now), later, &[SERVER]), [Rule::Stale; 5]);
    }

    #[test]
    fn only_servers_in_use_matter() {
        let now = Instant::now();
        let mut knowledge = harmless(now);
        let reason = Reason::new(Rule::Audit, "--audit-policy-file");
        knowledge.examined("other", Examined::Known(vec![reason]));
        assert_eq!(rules(&knowledge, now, &[SERVER]), []);
        assert_eq!(rules(&knowledge, now, &[SERVER, "other"]), [Rule::Audit]);
        knowledge.examined("other", Examined::Failed("connection refused".into()));
        assert_eq!(rules(&knowledge, now, &[SERVER, "other"]), [Rule::Server]);
        knowledge.forget("other");
        assert_eq!(rules(&knowledge, now, &["other"]), [Rule::Server]);
    }

    #[test]
    fn labels_of_the_namespace_decide_about_policies() {
        let now = Instant::now();
        let mut knowledge = harmless(now);
        let namespace = json!({"metadata": {"labels": {"a": "c"}}});
        change(Kind::Namespace, &mut knowledge, NAMESPACE, Some(namespace));
        assert_eq!(rules(&knowledge, now, &[SERVER]), [Rule::AdmissionPolicy; 2]);
        change(Kind::Namespace, &mut knowledge, NAMESPACE, None);
        assert_eq!(rules(&knowledge, now, &[SERVER]), [Rule::Namespace]);
    }

    #[test]
    fn an_object_that_comes_and_goes_is_a_reason_in_between() {
        let now = Instant::now();
        let mut knowledge = harmless(now);
        let rule = json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"],
            "resources": ["*/*"]});
        let webhooks = json!({"webhooks": [{"name": "w", "rules": [rule]}]});
        change(Kind::ValidatingWebhooks, &mut knowledge, "v", Some(webhooks));
        let reasons = knowledge.reasons(now, &[SERVER.into()]);
        let text = "webhook: ValidatingWebhookConfiguration v, webhook w";
        assert_eq!(reasons.iter().map(Reason::to_string).collect::<Vec<_>>(), [text]);
        change(Kind::ValidatingWebhooks, &mut knowledge, "v", None);
        assert_eq!(rules(&knowledge, now, &[SERVER]), []);
    }
}
