//! What all client connections share.

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::balance::Freshness;
use crate::config::Configuration;
use crate::exchange::Sampled;
use crate::identity::FieldNames;
use crate::metrics::Metrics;
use crate::node_path::leases::Leases;
use crate::node_path::watches::Watches;
use crate::protect::Protection;
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
    /// The limits.
    pub protection: Arc<Protection>,
    /// Serves renewals of node Leases, unless that is off.
    pub leases: Option<Arc<Leases>>,
    /// Serves watches and lists of kubelets, unless that is off.
    pub watches: Option<Arc<Watches>>,
    /// The configuration in force.
    pub config: Arc<ArcSwap<Configuration>>,
}

impl Shared {
    /// Decides whether the access log has a request.
    pub fn sample(&self) -> Sampled {
        let share = self.config.load().access_log.sample;
        if share == 0.0 {
            Sampled::No
        } else if rand::random_bool(share) {
            Sampled::Yes
        } else {
            Sampled::IfFailed
        }
    }
}
