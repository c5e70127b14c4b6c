//! The settings of a member of a cluster.

use std::path::PathBuf;
use std::time::Duration;

use consensus::identity::LogMode;
use peer::{PeerTlsFiles, PeerUrl};

use super::hash_check_state::HashCheckIntervals;

/// The settings of a member of a cluster. Those with names in etcd mean the same.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// The name of this member.
    pub name: String,
    /// The members with which the cluster begins, and their peer URLs; this one is among them.
    pub initial_cluster: Vec<(String, Vec<PeerUrl>)>,
    /// What distinguishes this cluster from others with the same members.
    pub token: String,
    /// Whether the cluster exists already, so that this member must not form a new one.
    pub is_existing: bool,
    /// Where to listen for other members.
    pub listen_peer_urls: Vec<PeerUrl>,
    /// The URLs at which clients reach this member.
    pub client_urls: Vec<String>,
    /// Certificates for `https` peer URLs.
    pub tls: Option<PeerTlsFiles>,
    /// Which failures the log survives.
    pub log: LogMode,
    /// The directory for log and snapshots. It is not used with [`LogMode::Memory`].
    pub data_dir: PathBuf,
    /// The interval between two heartbeats of the leader.
    pub heartbeat_interval: Duration,
    /// The time without a leader after which a member asks for votes; it waits up to twice as long.
    pub election_timeout: Duration,
    /// Whether this member continues alone with its data. All others are removed, and must never run
    /// again.
    pub force_new_cluster: bool,
    /// Whether the cluster has removed this member before it got the state ([`crate::Pipeline::is_replaced`]):
    /// it begins again under another identity.
    pub is_replaced: bool,
    /// Whether changes of the members are refused that may cost the cluster its quorum.
    pub strict_reconfig_check: bool,
    /// Maximum number of learners.
    pub max_learners: usize,
    /// When the leader compares the contents of the members.
    pub hash_checks: HashCheckIntervals,
    /// Maximum rate at which the state is sent to another member, in bytes per second; `None` if
    /// there is no limit.
    pub snapshot_bytes_per_second: Option<std::num::NonZeroU64>,
}

impl ClusterOptions {
    /// Returns how long a client waits for a leader, or for its answer. As in etcd, it is the time
    /// for an election and a slow disk.
    pub(crate) fn request_timeout(&self) -> Duration {
        Duration::from_secs(5) + 2 * self.election_timeout
    }

    /// Returns the peer URLs of this member.
    pub(super) fn peer_urls(&self) -> Vec<String> {
        let own = self.initial_cluster.iter().find(|(name, _)| *name == self.name);
        own.map(|(_, urls)| urls.iter().map(PeerUrl::to_string).collect()).unwrap_or_default()
    }
}
