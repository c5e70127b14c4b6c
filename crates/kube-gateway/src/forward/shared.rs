//! What all client connections share.

use std::sync::Arc;

use crate::balance::Freshness;
use crate::exchange::Sampled;
use crate::identity::FieldNames;
use crate::metrics::Metrics;
use crate::upstream::{Connector, Pool};

/// What all connections share.
pub struct Shared {
    /// The API servers.
    pub pool: Arc<Pool>,
    /// Opens connections to them.
    pub connector: Arc<Connector>,
    /// Names of the identity's header fields.
    pub names: Arc<FieldNames>,
    /// When a watch may end early.
    pub freshness: Arc<Freshness>,
    /// Metrics of the process.
    pub metrics: Arc<Metrics>,
    /// Share of the requests in the access log.
    pub sample: f64,
}

impl Shared {
    /// Decides whether the access log has a request.
    pub fn sample(&self) -> Sampled {
        if self.sample == 0.0 {
            Sampled::No
        } else if rand::random_bool(self.sample) {
            Sampled::Yes
        } else {
            Sampled::IfFailed
        }
    }
}
