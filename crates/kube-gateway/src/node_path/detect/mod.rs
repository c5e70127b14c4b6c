//! Decides whether requests may be served without an API server: nothing else may see them there.
//!
//! ```text
//! follow:  lists and watches of webhooks, policies, the namespace ─┐
//! examine: version, flags and storage of each API server ──────────┤
//!                                                        knowledge ┴─▶ reasons ─▶ Permission
//! ```
//!
//! # Invariants
//! - What is not known is a reason to refuse. Nothing is allowed before everything was examined once.
//! - A reason refuses as soon as it is known: a watch reports it, or the end of a connection, because
//!   a process with other flags is a new process.
//! - What is known of webhooks, policies and the namespace is never older than 5 s: consistent lists confirm it.
//!   They may take up to 4 s. What is known of a process holds as long as its connection.
//!
//! # Reading order
//! `reason`, `admission`, `flags`, `track` and `knowledge` are pure. `follow`, `stored` and
//! `examine` ask the API servers.

mod admission;
mod examine;
mod flags;
mod follow;
mod knowledge;
mod reason;
mod selector;
mod shared;
mod stored;
mod track;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use self::admission::Kind;
use self::flags::Expected;
use self::knowledge::Knowledge;
use self::reason::{Reason, Rule};
use self::shared::Shared;
use super::watches::ReadPermissions;
use super::{Dialer, Permission};
use crate::config::{LeaseMode, NodePath, WatchMode};
use crate::metrics::Metrics;
use crate::upstream::Pool;

/// Time between two judgements if nothing changes. Age is a reason too, and API servers come and go.
const PERIOD: Duration = Duration::from_millis(100);
/// Reasons that are shown at most.
const MAX_SHOWN: usize = 5;
/// For how long watches stay open while an API server that has restarted is examined again. To end them
/// costs a new request for each. Those of Leases end at once: the API server may use another store now.
const READ_GRACE: Duration = Duration::from_secs(5);

/// What the detection needs.
pub struct Detection {
    /// The configuration.
    pub config: NodePath,
    /// The API servers.
    pub pool: Arc<Pool>,
    /// Connects to them.
    pub dialer: Dialer,
    /// Shows the result.
    pub metrics: Arc<Metrics>,
    /// Whether renewals of Leases may be served.
    pub renewals: Permission,
    /// Whether watches and lists may be served.
    pub reads: ReadPermissions,
}

impl Detection {
    /// Starts the detection on a thread of its own, so that handshakes of clients do not delay it.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(self) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name("node-path".into());
        thread.spawn(move || runtime.block_on(self.run())).context("start the detection")?;
        Ok(())
    }

    async fn run(self) {
        let serves_reads = self.config.serves_reads();
        let NodePath { store, leases, watches } = self.config;
        let expected = Expected {
            audit_level_none: leases.audit_level_none,
            read_audit_level_none: !serves_reads || watches.audit_level_none,
            etcd_prefix: store.prefix.clone(),
            store_endpoints: store.endpoints.clone(),
        };
        let shared = Arc::new(Shared {
            pool: self.pool,
            dialer: self.dialer,
            store,
            expected,
            renewals: leases.mode != LeaseMode::Off,
            lease_reads: leases.watch != WatchMode::Off,
            knowledge: Mutex::new(Knowledge::default()),
            changed: Notify::new(),
        });
        for kind in Kind::ALL.into_iter().filter(|_| shared.renewals) {
            let shared = shared.clone();
            tokio::spawn(async move { follow::follow_forever(&shared, kind).await });
        }
        let mut judge = Judge {
            renewals: shared.renewals.then_some(self.renewals),
            reads: ReadJudge {
                permission: self.reads.reads,
                forbids: Rule::forbids_reads,
                grace: READ_GRACE,
                unexamined: None,
            },
            lease_reads: ReadJudge {
                permission: self.reads.leases,
                forbids: Rule::forbids_lease_reads,
                grace: Duration::ZERO,
                unexamined: None,
            },
            metrics: self.metrics,
            rules: BTreeSet::new(),
        };
        let mut examiners = HashMap::new();
        loop {
            start_examiners(&shared, &mut examiners);
            let in_use = shared.servers_in_use();
            let now = Instant::now();
            let reasons = shared.knowledge.lock().reasons(now, &in_use);
            judge.judge(reasons, now);
            tokio::select! {
                () = shared.changed.notified() => {}
                () = tokio::time::sleep(PERIOD) => {}
            }
        }
    }
}

/// Starts an examiner for each API server that has none.
fn start_examiners(shared: &Arc<Shared>, examiners: &mut HashMap<String, JoinHandle<()>>) {
    examiners.retain(|_, examiner| !examiner.is_finished());
    for server in shared.pool.servers().iter() {
        examiners.entry(server.address.clone()).or_insert_with(|| {
            let (shared, address) = (shared.clone(), server.address.clone());
            tokio::spawn(async move { examine::examine_forever(&shared, &address).await })
        });
    }
}

/// Applies the reasons.
struct Judge {
    /// `None` if renewals are only forwarded.
    renewals: Option<Permission>,
    reads: ReadJudge,
    lease_reads: ReadJudge,
    metrics: Arc<Metrics>,
    /// The rules that were true at the last judgement.
    rules: BTreeSet<Rule>,
}

/// Decides about watches and lists.
struct ReadJudge {
    permission: Permission,
    forbids: fn(Rule) -> bool,
    /// For how long watches stay open while an API server is not examined.
    grace: Duration,
    /// Since when an API server is not examined.
    unexamined: Option<Instant>,
}

impl Judge {
    fn judge(&mut self, mut reasons: Vec<Reason>, now: Instant) {
        if self.renewals.is_none() {
            reasons.retain(|reason| reason.rule.forbids_reads());
        }
        let rules: BTreeSet<Rule> = reasons.iter().map(|reason| reason.rule).collect();
        let turned_reads = self.reads.judge(&reasons, now) | self.lease_reads.judge(&reasons, now);
        reasons.retain(|reason| self.renewals.is_none() || reason.rule.forbids_renewals());
        let turned = match (&self.renewals, &reasons[..]) {
            (None, _) => turned_reads,
            (Some(renewals), []) => renewals.allow(),
            (Some(renewals), _) => renewals.refuse(&shown(&reasons)),
        };
        if turned || turned_reads || rules != self.rules {
            match &reasons[..] {
                [] => tracing::info!("the node path may be used"),
                _ => tracing::warn!(reasons = shown(&reasons), "the node path must not be used"),
            }
            let judged = Rule::ALL.map(|rule| (rule.name(), rules.contains(&rule)));
            let renewals = self.renewals.as_ref().is_some_and(Permission::is_allowed);
            let reads = self.reads.permission.is_allowed();
            let lease_reads = self.lease_reads.permission.is_allowed();
            self.metrics.node_path_judged(judged.into_iter(), renewals, reads, lease_reads);
            self.rules = rules;
        }
    }
}

impl ReadJudge {
    /// Decides about reads. Returns whether the decision is another one than before.
    fn judge(&mut self, reasons: &[Reason], now: Instant) -> bool {
        let forbidding = reasons.iter().filter(|reason| (self.forbids)(reason.rule));
        let forbidding: Vec<Reason> = forbidding.cloned().collect();
        let only_unexamined = forbidding.iter().all(|reason| reason.rule == Rule::Server);
        if forbidding.is_empty() {
            self.unexamined = None;
            return self.permission.allow();
        }
        let since = *self.unexamined.get_or_insert(now);
        if only_unexamined && now.saturating_duration_since(since) < self.grace {
            return false;
        }
        self.permission.refuse(&shown(&forbidding))
    }
}

/// Describes the first reasons.
fn shown(reasons: &[Reason]) -> String {
    let first: Vec<String> = reasons.iter().take(MAX_SHOWN).map(Reason::to_string).collect();
    let more = reasons.len().saturating_sub(MAX_SHOWN);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    first.join("; ") + &more
}
