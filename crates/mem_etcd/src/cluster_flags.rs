//! Flags of members of a cluster. Those that exist in etcd have the same names and defaults.
//!
//! A server whose `--initial-cluster` names only itself has no peers, as without the flag, unless
//! `--replication-log` is set. So command lines of an etcd with one member work, and mean the same
//! store as without their flags for peers.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use consensus::identity::LogMode;
use peer::{PeerTlsFiles, PeerUrl};
use pipeline::{ClusterOptions, HashCheckIntervals};

use crate::feature_gates::{Feature, FeatureGate};
use crate::go_duration::parse_duration;

/// The token of a cluster by default.
pub const DEFAULT_TOKEN: &str = "etcd-cluster";
/// Where a server listens for other members, and what it advertises, by default.
const DEFAULT_PEER_URL: &str = "http://localhost:2380";
/// As in etcd, the election timeout has at least this number of heartbeat intervals.
const MIN_HEARTBEATS: u64 = 5;
/// The interval at which the leader looks whether there was a compaction, by default.
const DEFAULT_COMPACT_HASH_CHECK_TIME: Duration = Duration::from_secs(60);
/// As in etcd, the longest election timeout in milliseconds.
const MAX_ELECTION_MS: u64 = 50_000;

/// The flags of a member of a cluster.
#[derive(Args, Clone, Debug)]
pub struct ClusterFlags {
    /// Members of the cluster: NAME=URL, comma-separated; a member with several peer URLs is repeated. If it
    /// names others, the server is a member of their cluster; otherwise it has no peers, and flags for peers have no
    /// effect.
    #[arg(
        long,
        env = "ETCD_INITIAL_CLUSTER",
        value_name = "NAME=URL",
        value_delimiter = ',',
        hide_default_value = true
    )]
    pub initial_cluster: Vec<InitialMember>,

    /// Whether the members form a new cluster (new) or this one joins a cluster (existing). Not
    /// used by a member with data [default: new]
    #[arg(long, env = "ETCD_INITIAL_CLUSTER_STATE", value_enum)]
    pub initial_cluster_state: Option<ClusterState>,

    /// Token of the cluster; members with different tokens never talk to each other [default:
    /// etcd-cluster]
    #[arg(long, env = "ETCD_INITIAL_CLUSTER_TOKEN", value_name = "TOKEN")]
    pub initial_cluster_token: Option<String>,

    /// Peer URLs of this member, as in --initial-cluster [default: those there]
    #[arg(
        long,
        env = "ETCD_INITIAL_ADVERTISE_PEER_URLS",
        value_name = "URLS",
        value_delimiter = ','
    )]
    pub initial_advertise_peer_urls: Vec<PeerUrl>,

    /// URLs to listen on for other members: https, or http on a loopback address [default:
    /// http://localhost:2380]
    #[arg(long, env = "ETCD_LISTEN_PEER_URLS", value_name = "URLS", value_delimiter = ',')]
    pub listen_peer_urls: Vec<PeerUrl>,

    /// Where the log of a member is kept. It decides for all keys. Makes the server a member also if
    /// --initial-cluster names no others.
    #[arg(long, env = "ETCD_REPLICATION_LOG", value_enum)]
    pub replication_log: Option<ReplicationLog>,

    /// Continue a cluster whose other members are lost: this member is the only one from now on, with the
    /// data in its log. The others must never run again with their data.
    #[arg(
        long,
        env = "ETCD_FORCE_NEW_CLUSTER",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        value_name = "BOOL"
    )]
    pub force_new_cluster: Option<bool>,

    /// Whether another member was added at the peer URLs of this one before it had state.
    #[arg(skip)]
    pub is_replaced: bool,

    /// Refuse changes of the members that may cost the cluster its quorum [default: true]
    #[arg(
        long,
        env = "ETCD_STRICT_RECONFIG_CHECK",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        value_name = "BOOL"
    )]
    pub strict_reconfig_check: Option<bool>,

    /// Maximum number of learners in the cluster [default: 1]
    #[arg(long, env = "ETCD_MAX_LEARNERS", value_name = "COUNT")]
    pub max_learners: Option<usize>,

    /// Maximum rate at which this member sends its state to another one, in bytes per second; 0 means no
    /// limit [default: 0]
    #[arg(long, env = "ETCD_SNAPSHOT_SEND_RATE", value_name = "BYTES")]
    pub snapshot_send_rate: Option<u64>,

    /// Interval at which the leader compares the contents of the members; 0 means never [default: 0]
    #[arg(long, env = "ETCD_CORRUPT_CHECK_TIME", value_name = "DURATION", value_parser = parse_duration)]
    pub corrupt_check_time: Option<Duration>,

    /// Interval at which the leader looks whether there was a compaction, and then compares the contents of
    /// the members; with --feature-gates CompactHashCheck=true [default: 1m]
    #[arg(long, env = "ETCD_COMPACT_HASH_CHECK_TIME", value_name = "DURATION", value_parser = parse_duration)]
    pub compact_hash_check_time: Option<Duration>,

    /// Features to turn on or off: FEATURE=BOOL, comma-separated. InitialCorruptCheck: a member compares its
    /// content with that of the others before it serves clients; CompactHashCheck: the leader compares
    /// contents after compactions.
    #[arg(long, env = "ETCD_FEATURE_GATES", value_name = "FEATURE=BOOL", value_delimiter = ',')]
    pub feature_gates: Vec<FeatureGate>,

    /// Interval between two heartbeats of the leader, in milliseconds [default: 100]
    #[arg(long, env = "ETCD_HEARTBEAT_INTERVAL", value_name = "MS")]
    pub heartbeat_interval: Option<u64>,

    /// Time without a leader after which a member asks for votes, in milliseconds [default: 1000]
    #[arg(long, env = "ETCD_ELECTION_TIMEOUT", value_name = "MS")]
    pub election_timeout: Option<u64>,

    /// Certificate for connections with other members.
    #[arg(long, env = "ETCD_PEER_CERT_FILE", value_name = "FILE")]
    pub peer_cert_file: Option<PathBuf>,

    /// Its private key.
    #[arg(long, env = "ETCD_PEER_KEY_FILE", value_name = "FILE")]
    pub peer_key_file: Option<PathBuf>,

    /// Certificate with which this member connects to others [default: --peer-cert-file]
    #[arg(long, env = "ETCD_PEER_CLIENT_CERT_FILE", value_name = "FILE")]
    pub peer_client_cert_file: Option<PathBuf>,

    /// Its private key.
    #[arg(long, env = "ETCD_PEER_CLIENT_KEY_FILE", value_name = "FILE")]
    pub peer_client_key_file: Option<PathBuf>,

    /// CA of the certificates of all members.
    #[arg(long, env = "ETCD_PEER_TRUSTED_CA_FILE", value_name = "FILE")]
    pub peer_trusted_ca_file: Option<PathBuf>,

    /// Members verify each other's certificates; with https they always do, so false is refused.
    #[arg(
        long,
        env = "ETCD_PEER_CLIENT_CERT_AUTH",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        value_name = "BOOL"
    )]
    pub peer_client_cert_auth: Option<bool>,

    /// List of revoked certificates of members.
    #[arg(long, env = "ETCD_PEER_CRL_FILE", value_name = "FILE")]
    pub peer_crl_file: Option<PathBuf>,

    /// Common names that certificates of members may have, comma-separated [default: all]
    #[arg(long, env = "ETCD_PEER_CERT_ALLOWED_CN", value_name = "NAMES", value_delimiter = ',')]
    pub peer_cert_allowed_cn: Vec<String>,

    /// Hosts for one of which certificates of members must be valid, comma-separated [default: all]
    #[arg(
        long,
        env = "ETCD_PEER_CERT_ALLOWED_HOSTNAME",
        value_name = "HOSTS",
        value_delimiter = ','
    )]
    pub peer_cert_allowed_hostname: Vec<String>,

    /// Accept members whose certificates are not valid for the hosts of their peer URLs.
    #[arg(
        long,
        env = "ETCD_PEER_SKIP_CLIENT_SAN_VERIFICATION",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        value_name = "BOOL"
    )]
    pub peer_skip_client_san_verification: Option<bool>,
}

/// A peer URL of a member in `--initial-cluster`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitialMember {
    name: String,
    url: PeerUrl,
}

impl InitialMember {
    /// Returns the peer URLs of a member in a list.
    pub fn urls_of(members: &[InitialMember], name: &str) -> Vec<PeerUrl> {
        let own = members.iter().filter(|member| member.name == name);
        own.map(|member| member.url.clone()).collect()
    }
}

impl FromStr for InitialMember {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, url) =
            text.split_once('=').ok_or("is not NAME=URL, such as a=https://10.0.0.1:2380")?;
        if name.is_empty() {
            return Err("has no name before =".into());
        }
        Ok(InitialMember { name: name.into(), url: url.parse()? })
    }
}

/// Whether a cluster is formed or joined.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterState {
    /// Members without data form a new cluster.
    New,
    /// A member without data joins a cluster.
    Existing,
}

/// Which failures the log of a member survives.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicationLog {
    /// A crash of the machine: an entry is on the disk before it is acknowledged.
    Fsync,
    /// A crash of the process (default). After a crash of the machine, the member joins again
    /// without its data.
    Buffered,
    /// Nothing: without a data directory. After a restart, the member joins again without its data.
    Memory,
}

impl ReplicationLog {
    /// Returns the name, as in the flag.
    pub fn name(self) -> &'static str {
        match self {
            ReplicationLog::Fsync => "fsync",
            ReplicationLog::Buffered => "buffered",
            ReplicationLog::Memory => "memory",
        }
    }
}

/// What a member gets from the other flags of the server.
pub struct MemberFlags {
    pub name: String,
    pub client_urls: Vec<String>,
    pub data_dir: PathBuf,
}

impl ClusterFlags {
    /// Whether the server is a member of a cluster, and not a server without peers.
    pub fn is_member(&self) -> bool {
        let mut names = self.initial_cluster.iter().map(|member| &member.name);
        let first = names.next();
        names.any(|name| Some(name) != first) || self.replication_log.is_some()
    }

    /// Returns where the log is kept.
    pub fn log(&self) -> ReplicationLog {
        self.replication_log.unwrap_or(ReplicationLog::Buffered)
    }

    /// Whether a member compares its content with that of the others before it serves clients.
    pub fn checks_at_start(&self) -> bool {
        self.is_member() && FeatureGate::is_on(&self.feature_gates, Feature::InitialCorruptCheck)
    }

    /// Returns when the leader compares the contents of the members.
    fn hash_checks(&self) -> HashCheckIntervals {
        let compacted = self.compact_hash_check_time.unwrap_or(DEFAULT_COMPACT_HASH_CHECK_TIME);
        let checks_compacted = FeatureGate::is_on(&self.feature_gates, Feature::CompactHashCheck);
        HashCheckIntervals {
            current: self.corrupt_check_time.filter(|interval| !interval.is_zero()),
            compacted: checks_compacted.then_some(compacted),
        }
    }

    fn heartbeat_ms(&self) -> u64 {
        self.heartbeat_interval.unwrap_or(100)
    }

    fn election_ms(&self) -> u64 {
        self.election_timeout.unwrap_or(1000)
    }

    /// Returns the peer URLs of a member in `--initial-cluster`.
    fn urls_of(&self, name: &str) -> Vec<PeerUrl> {
        InitialMember::urls_of(&self.initial_cluster, name)
    }

    /// Returns the peer URLs of the server with this name: those that it advertises, as in etcd.
    pub fn advertised_urls(&self, name: &str) -> Vec<PeerUrl> {
        let initial = self.urls_of(name);
        match (&self.initial_advertise_peer_urls[..], initial.is_empty()) {
            ([], false) => initial,
            ([], true) => vec![DEFAULT_PEER_URL.parse().expect("a valid URL")],
            (urls, _) => urls.to_vec(),
        }
    }

    fn listen_urls(&self) -> Vec<PeerUrl> {
        match &self.listen_peer_urls[..] {
            [] => vec![DEFAULT_PEER_URL.parse().expect("a valid URL")],
            urls => urls.to_vec(),
        }
    }

    /// Checks the flags of the server with this name.
    ///
    /// # Errors
    /// Returns one line for flags that contradict each other.
    pub fn validate(&self, name: &str) -> Result<(), String> {
        if self.compact_hash_check_time.is_some_and(|interval| interval.is_zero()) {
            return Err("--compact-hash-check-time must be more than 0".into());
        }
        if !self.is_member() {
            return self.validate_without_peers(name);
        }
        self.validate_urls(name)?;
        self.validate_tls()?;
        if self.force_new_cluster == Some(true) && self.log() == ReplicationLog::Memory {
            return Err(
                "--force-new-cluster needs a log, and --replication-log memory keeps none: \
                        without its log, a member has nothing to continue with"
                    .into(),
            );
        }
        let (heartbeat, election) = (self.heartbeat_ms(), self.election_ms());
        if heartbeat == 0 || election < MIN_HEARTBEATS * heartbeat || election > MAX_ELECTION_MS {
            return Err(format!(
                "--election-timeout ({election} ms) must be between {MIN_HEARTBEATS} times \
                 --heartbeat-interval ({heartbeat} ms) and {MAX_ELECTION_MS} ms"
            ));
        }
        Ok(())
    }

    fn validate_without_peers(&self, name: &str) -> Result<(), String> {
        if self.initial_cluster_state == Some(ClusterState::Existing) {
            return Err("--initial-cluster-state existing needs --initial-cluster with the other \
                        members, which know the cluster"
                .into());
        }
        if self.force_new_cluster == Some(true) {
            return Err(
                "--force-new-cluster needs a member of a cluster: set --initial-cluster".into()
            );
        }
        match self.initial_cluster.is_empty() {
            true => Ok(()),
            false => self.validate_urls(name),
        }
    }

    fn validate_urls(&self, name: &str) -> Result<(), String> {
        let own = self.urls_of(name);
        if own.is_empty() {
            return Err(format!(
                "--initial-cluster has no member {name}: set --name to one of its names"
            ));
        }
        let sorted = |urls: &[PeerUrl]| {
            let mut urls: Vec<_> = urls.iter().map(PeerUrl::to_string).collect();
            urls.sort_unstable();
            urls
        };
        let advertised = &self.initial_advertise_peer_urls[..];
        if !advertised.is_empty() && sorted(advertised) != sorted(&own) {
            return Err(format!(
                "--initial-advertise-peer-urls has other URLs than --initial-cluster for {name}"
            ));
        }
        let mut all =
            sorted(&self.initial_cluster.iter().map(|m| m.url.clone()).collect::<Vec<_>>());
        let count = all.len();
        all.dedup();
        match all.len() == count {
            true => Ok(()),
            false => Err("--initial-cluster has a URL twice".into()),
        }
    }

    fn validate_tls(&self) -> Result<(), String> {
        if self.peer_cert_file.is_some() != self.peer_key_file.is_some() {
            return Err("--peer-cert-file and --peer-key-file must be set together".into());
        }
        if self.peer_client_cert_file.is_some() != self.peer_client_key_file.is_some() {
            return Err(
                "--peer-client-cert-file and --peer-client-key-file must be set together".into()
            );
        }
        let has_certificate = self.peer_cert_file.is_some();
        if has_certificate && self.peer_trusted_ca_file.is_none() {
            return Err(
                "--peer-cert-file needs --peer-trusted-ca-file: members verify each other".into()
            );
        }
        if has_certificate && self.peer_client_cert_auth == Some(false) {
            return Err(
                "--peer-client-cert-auth=false is not supported: members verify each other".into(),
            );
        }
        if let Some(flag) = self.first_tls_flag().filter(|_| !has_certificate) {
            return Err(format!("--{flag} needs --peer-cert-file"));
        }
        let urls = self
            .listen_urls()
            .into_iter()
            .chain(self.initial_cluster.iter().map(|m| m.url.clone()));
        match urls.into_iter().find(|url| url.uses_tls() && !has_certificate) {
            Some(url) => Err(format!("{url} needs --peer-cert-file")),
            None => Ok(()),
        }
    }

    fn first_tls_flag(&self) -> Option<&'static str> {
        let flags = [
            ("peer-client-cert-file", self.peer_client_cert_file.is_some()),
            ("peer-trusted-ca-file", self.peer_trusted_ca_file.is_some()),
            ("peer-client-cert-auth", self.peer_client_cert_auth == Some(true)),
            ("peer-crl-file", self.peer_crl_file.is_some()),
            ("peer-cert-allowed-cn", !self.peer_cert_allowed_cn.is_empty()),
            ("peer-cert-allowed-hostname", !self.peer_cert_allowed_hostname.is_empty()),
            (
                "peer-skip-client-san-verification",
                self.peer_skip_client_san_verification == Some(true),
            ),
        ];
        flags.into_iter().find(|(_, is_set)| *is_set).map(|(name, _)| name)
    }

    /// Returns the settings of the member; `None` if the server has no peers.
    pub fn options(&self, member: MemberFlags) -> Option<ClusterOptions> {
        if !self.is_member() {
            return None;
        }
        let MemberFlags { name, client_urls, data_dir } = member;
        let mut initial_cluster: Vec<(String, Vec<PeerUrl>)> = Vec::new();
        for InitialMember { name, .. } in &self.initial_cluster {
            if !initial_cluster.iter().any(|(known, _)| known == name) {
                initial_cluster.push((name.clone(), self.urls_of(name)));
            }
        }
        Some(ClusterOptions {
            name,
            initial_cluster,
            token: self.initial_cluster_token.clone().unwrap_or_else(|| DEFAULT_TOKEN.into()),
            is_existing: self.initial_cluster_state == Some(ClusterState::Existing),
            listen_peer_urls: self.listen_urls(),
            client_urls,
            tls: self.tls_files(),
            log: match self.log() {
                ReplicationLog::Fsync => LogMode::Fsync,
                ReplicationLog::Buffered => LogMode::Buffered,
                ReplicationLog::Memory => LogMode::Memory,
            },
            data_dir,
            heartbeat_interval: Duration::from_millis(self.heartbeat_ms()),
            election_timeout: Duration::from_millis(self.election_ms()),
            force_new_cluster: self.force_new_cluster == Some(true),
            is_replaced: self.is_replaced,
            strict_reconfig_check: self.strict_reconfig_check.unwrap_or(true),
            max_learners: self.max_learners.unwrap_or(1),
            hash_checks: self.hash_checks(),
            snapshot_bytes_per_second: self.snapshot_send_rate.and_then(NonZeroU64::new),
        })
    }

    fn tls_files(&self) -> Option<PeerTlsFiles> {
        let client = self.peer_client_cert_file.clone().zip(self.peer_client_key_file.clone());
        Some(PeerTlsFiles {
            cert: self.peer_cert_file.clone()?,
            key: self.peer_key_file.clone()?,
            client_cert: client,
            trusted_ca: self.peer_trusted_ca_file.clone()?,
            crl: self.peer_crl_file.clone(),
            allowed_common_names: self.peer_cert_allowed_cn.clone(),
            allowed_hostnames: self.peer_cert_allowed_hostname.clone(),
            skip_client_san_verification: self.peer_skip_client_san_verification == Some(true),
        })
    }
}
