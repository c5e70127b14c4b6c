//! Serves a renewal.

use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::SystemTime;

use bytes::Bytes;
use http2::Fields;
use node_lease::Lease;

use super::known::{Known, parse};
use super::tracked::{Forwarded, Renewal};
use super::{Leases, Reason};
use crate::node_path::NAMESPACE;

/// What becomes of a renewal.
pub enum Examined {
    /// It is written into the store.
    Serve(Serving),
    /// An API server executes it.
    Forward(Box<Forwarded>),
}

/// The writing of a renewal into the store.
pub type Serving = Pin<Box<dyn Future<Output = Result<Served, Box<Forwarded>>> + Send>>;

/// The answer to a renewal that was written.
pub struct Served {
    /// The header fields.
    pub fields: Fields,
    /// The body.
    pub body: Bytes,
}

/// Whether a renewal can be served.
enum Verdict {
    /// It can: the Lease is as known, in this generation of the permission.
    Serve(Known, u64),
    /// It cannot, or must not be. A generation means that the answer is predicted.
    Forward(Reason, Option<u64>),
}

fn forward(
    renewal: Renewal,
    body: Bytes,
    reason: Reason,
    predicted: Option<u64>,
) -> Box<Forwarded> {
    Box::new(Forwarded { renewal, body, reason: Some(reason), predicted, answer: None })
}

impl Leases {
    /// Decides about a renewal whose body is complete. `worker` is the thread of its connection.
    pub fn examine(self: &Arc<Self>, renewal: Renewal, body: Bytes, worker: usize) -> Examined {
        match self.judge_renewal(&renewal, &body) {
            Verdict::Serve(known, generation) => {
                let leases = self.clone();
                Examined::Serve(Box::pin(async move {
                    let written = leases.write(&renewal, &body, &known, generation, worker).await;
                    written.map_err(|reason| {
                        if reason.concerns_lease() {
                            leases.known.forget(&renewal.candidate.name, known.version);
                        }
                        forward(renewal, body, reason, None)
                    })
                }))
            }
            Verdict::Forward(reason, predicted) => {
                Examined::Forward(forward(renewal, body, reason, predicted))
            }
        }
    }

    fn judge_renewal(&self, renewal: &Renewal, body: &[u8]) -> Verdict {
        let judged = parse(&renewal.candidate, body).and_then(|lease| self.find(renewal, &lease));
        let known = match judged {
            Ok(known) => known,
            Err(reason) => return Verdict::Forward(reason, None),
        };
        let generation = self.permission.generation();
        if !self.permission.is_allowed() {
            return Verdict::Forward(Reason::NotPermitted, None);
        }
        if !self.is_on.load(Relaxed) {
            let compares = !self.is_off.load(Relaxed) && rand::random_bool(self.sample);
            return Verdict::Forward(Reason::Shadow, compares.then_some(generation));
        }
        Verdict::Serve(known, generation)
    }

    /// Finds the Lease on which a renewal is based.
    fn find(&self, renewal: &Renewal, lease: &Lease<'_>) -> Result<Known, Reason> {
        let candidate = &renewal.candidate;
        let check = |known: Known| known.allows(lease, &candidate.manager).map(|()| known);
        let seen = self.known.get(&candidate.name).ok_or(Reason::Unknown).and_then(check);
        match seen {
            // Another gateway or an API server has answered the last renewal, or there was none.
            Err(reason @ (Reason::Unknown | Reason::Version)) => {
                self.find_stored(renewal).ok_or(reason).and_then(check)
            }
            seen => seen,
        }
    }

    /// Finds a Lease in the cache that is filled from the store, if there is one. Its sender must have had an answer from
    /// an API server, to a renewal of any Lease.
    fn find_stored(&self, renewal: &Renewal) -> Option<Known> {
        let stored = self.stored.as_ref()?;
        let fields = self.senders.get(&renewal.sender)?;
        let object = stored.get(NAMESPACE.as_bytes(), &renewal.candidate.name)?;
        Known::new(&Lease::parse(object.envelope())?, fields)
    }

    /// Writes a renewal of the Lease that is known.
    async fn write(
        &self,
        renewal: &Renewal,
        body: &Bytes,
        known: &Known,
        generation: u64,
        worker: usize,
    ) -> Result<Served, Reason> {
        let name = &renewal.candidate.name;
        let lease = parse(&renewal.candidate, body)?;
        let link = self.links.get(worker).ok_or(Reason::StoreDown)?;
        let now = SystemTime::now();
        let second = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let revision = i64::try_from(known.version.get()).map_err(|_| Reason::Version)?;
        let value = Bytes::from(lease.stored(second));
        // The permission may have ended while other renewals of the connection were handled.
        if self.permission.generation() != generation {
            return Err(Reason::NotPermitted);
        }
        let written = link.replace(self.key(name), revision, value).await?;
        let version = u64::try_from(written).ok().and_then(NonZeroU64::new);
        let version = version.ok_or(Reason::NoAnswer)?;
        let body = Bytes::from(lease.answer(second, version));
        let fields = known.fields.encode(body.len(), rand::random(), now);
        self.known.learn(name, Known { version, renewed: lease.renew_time, ..known.clone() });
        self.metrics.leases.served();
        Ok(Served { fields, body })
    }
}
