//! The emergency throttle: a rate for the clients with one User-Agent.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use http::HeaderMap;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::bucket::Bucket;
use super::user_agent;
use crate::config::ThrottleRule;
use crate::request_info::RequestInfo;

/// Rules that were added while running. Further ones are refused.
const MAX_ADDED: usize = 1000;

/// All rules. Those that were added while running come first, the newest at the front, then those of
/// the configuration file. The first one that matches a request applies.
#[derive(Default)]
pub struct Throttle {
    rules: ArcSwap<Vec<Arc<Limited>>>,
    /// Serializes changes.
    changes: Mutex<()>,
}

/// Where a rule comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The configuration file.
    File,
    /// A command to the running process.
    Command,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::File => "file",
            Source::Command => "command",
        })
    }
}

/// A rule in force.
struct Limited {
    rule: ThrottleRule,
    source: Source,
    expires: Option<Instant>,
    bucket: Mutex<Bucket>,
    passed: AtomicU64,
    refused: AtomicU64,
}

/// A rule and what it did, as `kube-gateway throttle list` shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleStatus {
    /// The rule.
    pub rule: ThrottleRule,
    /// Where it comes from.
    pub source: Source,
    /// Seconds until it ends; absent if it does not.
    pub expires_in_seconds: Option<u64>,
    /// Requests that matched and passed.
    pub passed: u64,
    /// Requests that got 429.
    pub refused: u64,
}

impl Limited {
    fn new(rule: ThrottleRule, source: Source, expires: Option<Instant>, now: Instant) -> Limited {
        let bucket = Mutex::new(Bucket::new(rule.qps, rule.burst(), now));
        Limited {
            rule,
            source,
            expires,
            bucket,
            passed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

impl Throttle {
    /// Whether there are no rules, so that a request need not be looked at.
    pub fn is_empty(&self) -> bool {
        self.rules.load().is_empty()
    }

    /// Lets a request of a client that is not in `system:masters` pass.
    ///
    /// # Errors
    /// If it must not, returns the time after which it may be sent again.
    pub fn check(
        &self,
        info: &RequestInfo,
        fields: &HeaderMap,
        now: Instant,
    ) -> Result<(), Duration> {
        let rules = self.rules.load();
        if rules.is_empty() || is_heartbeat(info) {
            return Ok(());
        }
        let product = user_agent::product(fields);
        let matching = rules.iter().find(|limited| {
            user_agent::matches(&limited.rule.user_agent, product) && !limited.is_over(now)
        });
        let Some(limited) = matching else { return Ok(()) };
        let result = limited.bucket.lock().take(now);
        let counter = if result.is_ok() { &limited.passed } else { &limited.refused };
        counter.fetch_add(1, Relaxed);
        result
    }

    /// Replaces the rules of the configuration file. A rule that stays keeps its tokens.
    pub fn configure(&self, rules: &[ThrottleRule], now: Instant) {
        let _serialized = self.changes.lock();
        let current = self.rules.load();
        let mut next = self.commanded(now);
        for rule in rules {
            let same =
                |limited: &&Arc<Limited>| limited.source == Source::File && limited.rule == *rule;
            let kept = current.iter().find(same).cloned();
            next.push(
                kept.unwrap_or_else(|| {
                    Arc::new(Limited::new(rule.clone(), Source::File, None, now))
                }),
            );
        }
        self.rules.store(Arc::new(next));
    }

    /// Adds a rule, in front of all others. It replaces an added one with the same pattern. With
    /// `lasts`, it ends after that time.
    ///
    /// # Errors
    /// If there are too many.
    pub fn add(
        &self,
        rule: ThrottleRule,
        lasts: Option<Duration>,
        now: Instant,
    ) -> Result<(), String> {
        let _serialized = self.changes.lock();
        let mut next = self.commanded(now);
        next.retain(|limited| limited.rule.user_agent != rule.user_agent);
        if next.len() >= MAX_ADDED {
            return Err(format!("there are already {MAX_ADDED} added rules; delete some"));
        }
        let expires = lasts.and_then(|lasts| now.checked_add(lasts));
        next.insert(0, Arc::new(Limited::new(rule, Source::Command, expires, now)));
        next.extend(self.file_rules());
        self.rules.store(Arc::new(next));
        Ok(())
    }

    /// Deletes the added rule with this pattern.
    ///
    /// # Errors
    /// If there is none.
    pub fn delete(&self, user_agent: &str, now: Instant) -> Result<(), String> {
        let _serialized = self.changes.lock();
        let mut next = self.commanded(now);
        let before = next.len();
        next.retain(|limited| limited.rule.user_agent != user_agent);
        if next.len() == before {
            let in_file = self.file_rules().any(|limited| limited.rule.user_agent == user_agent);
            return Err(if in_file {
                format!("the rule for {user_agent:?} is in the configuration file; remove it there")
            } else {
                format!("there is no rule for {user_agent:?}; see `kube-gateway throttle list`")
            });
        }
        next.extend(self.file_rules());
        self.rules.store(Arc::new(next));
        Ok(())
    }

    /// All rules in force, in their order.
    pub fn list(&self, now: Instant) -> Vec<RuleStatus> {
        let rules = self.rules.load();
        let status = |limited: &Arc<Limited>| RuleStatus {
            rule: limited.rule.clone(),
            source: limited.source,
            expires_in_seconds: limited.expires.map(|expires| (expires - now).as_secs()),
            passed: limited.passed.load(Relaxed),
            refused: limited.refused.load(Relaxed),
        };
        rules.iter().filter(|limited| !limited.is_over(now)).map(status).collect()
    }

    fn commanded(&self, now: Instant) -> Vec<Arc<Limited>> {
        let rules = self.rules.load();
        let mut commanded: Vec<_> = rules.iter().cloned().collect();
        commanded.retain(|limited| limited.source == Source::Command && !limited.is_over(now));
        commanded
    }

    fn file_rules(&self) -> impl Iterator<Item = Arc<Limited>> + use<> {
        let rules = self.rules.load_full();
        (0..rules.len())
            .map(move |index| rules[index].clone())
            .filter(|limited| limited.source == Source::File)
    }
}

/// Whether a request keeps a node alive: its Lease or its status.
fn is_heartbeat(info: &RequestInfo) -> bool {
    if !matches!(info.verb, "get" | "create" | "update" | "patch") {
        return false;
    }
    match info.resource.as_str() {
        "leases" => info.group == "coordination.k8s.io" && info.namespace == "kube-node-lease",
        "nodes" => info.group.is_empty() && info.subresource == "status",
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use http::header::USER_AGENT;

    use super::*;

    fn rule(user_agent: &str, qps: f64) -> ThrottleRule {
        ThrottleRule { user_agent: user_agent.into(), qps, burst: Some(1) }
    }

    /// Whether a request passes.
    fn passes(throttle: &Throttle, agent: &str, line: &str, now: Instant) -> bool {
        let (method, uri) = line.split_once(' ').unwrap();
        let info = RequestInfo::new(&method.parse().unwrap(), &uri.parse().unwrap());
        let mut fields = HeaderMap::new();
        fields.insert(USER_AGENT, agent.parse().unwrap());
        throttle.check(&info, &fields, now).is_ok()
    }

    #[test]
    fn a_rate_is_shared_by_all_that_match() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        throttle.configure(&[rule("noisy*", 1.0)], now);
        assert!(passes(&throttle, "noisy-a/v1", "GET /api/v1/pods", now));
        assert!(!passes(&throttle, "noisy-b/v1", "GET /version", now));
        assert!(passes(&throttle, "quiet", "GET /api/v1/pods", now));
        assert!(passes(&throttle, "noisy", "GET /version", now + Duration::from_secs(1)));
        let list = throttle.list(now);
        assert_eq!((list[0].passed, list[0].refused), (2, 1));
    }

    #[test]
    fn heartbeats_always_pass() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        throttle.configure(&[rule("*", 0.001)], now);
        assert!(passes(&throttle, "kubelet", "GET /version", now));
        let lease = "PUT /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n";
        for line in [lease, "PATCH /api/v1/nodes/n/status"] {
            assert!(passes(&throttle, "kubelet", line, now), "{line}");
        }
        let other = "PUT /apis/coordination.k8s.io/v1/namespaces/kube-system/leases/n";
        let all = "GET /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
        for line in [other, all, "PATCH /api/v1/nodes/n", "GET /apis/x/v1/nodes/n/status"] {
            assert!(!passes(&throttle, "kubelet", line, now), "{line}");
        }
    }

    #[test]
    fn the_newest_added_rule_is_the_first() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        throttle.configure(&[rule("a*", 1.0)], now);
        throttle.add(rule("ab", 2.0), None, now).unwrap();
        throttle.add(rule("abc", 3.0), Some(Duration::from_secs(5)), now).unwrap();
        throttle.add(rule("ab", 4.0), None, now).unwrap();
        let order = |now| throttle.list(now).iter().map(|r| r.rule.qps).collect::<Vec<_>>();
        assert_eq!(order(now), [4.0, 3.0, 1.0]);
        assert_eq!(throttle.list(now)[1].expires_in_seconds, Some(5));
        let later = now + Duration::from_secs(5);
        assert_eq!(order(later), [4.0, 1.0]);
        assert!(passes(&throttle, "abc", "GET /version", later), "the rule a* has a token left");
        throttle.delete("ab", later).unwrap();
        assert_eq!(order(later), [1.0]);
        assert!(throttle.delete("a*", later).unwrap_err().contains("configuration file"));
        assert!(throttle.delete("b", later).unwrap_err().contains("no rule"));
    }

    #[test]
    fn a_new_file_keeps_added_rules_and_the_tokens_of_equal_ones() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        throttle.configure(&[rule("a", 0.1), rule("b", 1.0)], now);
        throttle.add(rule("c", 1.0), None, now).unwrap();
        assert!(passes(&throttle, "a", "GET /version", now));
        throttle.configure(&[rule("a", 0.1)], now);
        assert!(!passes(&throttle, "a", "GET /version", now));
        let names: Vec<_> =
            throttle.list(now).into_iter().map(|status| status.rule.user_agent).collect();
        assert_eq!(names, ["c", "a"]);
    }
}
