//! Learns from what API servers answer, and compares it with what was predicted.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use node_lease::Lease;

use super::compare::{Checked, check_answer, check_stored};
use super::known::{Known, parse};
use super::tracked::{Answer, Forwarded, Sender};
use super::{Leases, RENEWAL};

/// A difference only counts if the permission still stands after this time. What changes the result,
/// such as a new webhook, reaches API servers before the permission ends.
const SETTLE_TIME: Duration = Duration::from_secs(2);

/// A renewal that an API server has executed as predicted so far.
struct Comparison {
    /// The Lease's name.
    name: Box<[u8]>,
    /// The version of the API server.
    server: Option<Arc<str>>,
    /// The generation of the permission in which the renewal was sent.
    generation: u64,
    /// The predicted value, and the revision at which it must be in the store.
    stored: Option<(Vec<u8>, u64)>,
    /// The difference that was found.
    difference: Option<String>,
}

impl Leases {
    /// Notes the complete answer to a forwarded renewal, from an API server with this version. Must be
    /// called on the thread `worker`.
    pub fn answered(
        self: &Arc<Self>,
        forwarded: Forwarded,
        server: Option<Arc<str>>,
        worker: usize,
    ) {
        let Forwarded { renewal, body, predicted, answer: Some(answer), .. } = forwarded else {
            return;
        };
        let name = renewal.candidate.name.clone();
        let found = self.learn(&renewal.sender, &name, &answer);
        if let (Sender::Reviewed(identity), StatusCode::FORBIDDEN) =
            (&renewal.sender, answer.status)
        {
            // RBAC has changed since the review.
            return self.reviews.forget(identity, &RENEWAL);
        }
        let Some(generation) = predicted else { return };
        let Ok(request) = parse(&renewal.candidate, &body) else { return };
        let text = answer.body.as_deref().unwrap_or_default();
        let mut comparison =
            Comparison { name, server, generation, stored: None, difference: None };
        match check_answer(&request, answer.status, text) {
            Checked::Nothing => return self.metrics.leases.compared("unknown"),
            Checked::Different(difference) => comparison.difference = Some(difference),
            Checked::Equal(stored) => comparison.stored = found.map(|version| (stored, version)),
        }
        let leases = self.clone();
        tokio::spawn(async move { leases.finish(comparison, worker).await });
    }

    /// Remembers the Lease in an answer to a sender. Returns its version.
    fn learn(&self, sender: &Sender, name: &[u8], answer: &Answer) -> Option<u64> {
        let lease = Lease::parse(answer.body.as_deref()?)?;
        if answer.status != StatusCode::OK || lease.name != name {
            return None;
        }
        let fields = self.shared(answer.fields.clone());
        self.senders.learn(sender, &fields);
        let known = Known::new(&lease, fields)?;
        let version = known.version.get();
        self.known.learn(name, known);
        Some(version)
    }

    /// Compares the stored value too, and notes the result.
    async fn finish(&self, mut comparison: Comparison, worker: usize) {
        if let Some((expected, version)) = comparison.stored.take() {
            let key = self.key(&comparison.name);
            match self.read(key, version, worker).await {
                Some(Some(found)) => comparison.difference = check_stored(&expected, &found),
                Some(None) => {
                    let key = String::from_utf8_lossy(&self.key(&comparison.name)).into_owned();
                    let text = format!("the store has no {key} that was written at {version}");
                    comparison.difference = Some(text);
                }
                None => return self.metrics.leases.compared("unknown"),
            }
        }
        let Some(difference) = comparison.difference else {
            self.metrics.leases.compared("equal");
            if let Some(server) = comparison.server {
                self.trials.lock().equal(&server);
            }
            return;
        };
        tokio::time::sleep(SETTLE_TIME).await;
        if self.permission.generation() != comparison.generation {
            return self.metrics.leases.compared("unknown");
        }
        self.metrics.leases.compared("different");
        let is_first = self.trials.lock().different();
        self.judge();
        if is_first {
            tracing::error!(
                lease = %String::from_utf8_lossy(&comparison.name),
                server_version = comparison.server.as_deref(),
                difference,
                "a renewal differs from its prediction; all are forwarded until kube-gateway is restarted"
            );
        }
    }

    /// Reads what was written at a revision; `None` if the store cannot say.
    async fn read(&self, key: Bytes, version: u64, worker: usize) -> Option<Option<Vec<u8>>> {
        let link = self.links.get(worker)?;
        link.read(key, i64::try_from(version).ok()?).await.ok()
    }
}
