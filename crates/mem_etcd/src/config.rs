//! Flags and environment variables of the server. Those that exist in etcd have the same
//! names here.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, ValueEnum};
use sockets::{SocketUrl, TlsFiles};
use url::Url;

use crate::auto_compaction::Retention;
use crate::cluster_flags::{ClusterFlags, MemberFlags, ReplicationLog};
use crate::credentials::TokenOptions;
use crate::go_duration::parse_duration;
use crate::permissions::Permission;
use crate::wal_mode::{self, PrefixMode, WalMode};
use crate::{auto_compaction, etcd_flags, host};

/// The version of etcd whose API mem_etcd implements.
pub const ETCD_VERSION: &str = "3.7.3";
/// The storage version that mem_etcd reports: [`ETCD_VERSION`] with patch version 0, as
/// in etcd.
pub const STORAGE_VERSION: &str = "3.7.0";
/// What `--version` prints after the name. Programs that start etcd read the second line, which etcd prints too.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (etcd API 3.7.3)\netcd Version: 3.7.3");

const DEFAULT_AUTH_TOKEN_TTL_SECONDS: u32 = 300;
const DEFAULT_FLUSH_INTERVAL: Duration = Duration::from_millis(100);
const DEFAULT_PROGRESS_INTERVAL: Duration = Duration::from_secs(10 * 60);
const MAX_PROGRESS_INTERVAL: Duration = Duration::from_secs(365 * 24 * 60 * 60);
const MIN_PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// As in etcd, a gRPC message may be this much larger than the largest request.
const MESSAGE_OVERHEAD_BYTES: usize = 512 * 1024;
/// Limit on the memory for incomplete and unread requests of all connections, in bytes.
const MESSAGE_BUDGET_BYTES: usize = 512 << 20;
/// Limit on the memory for responses that clients have not read, for calls that wait and for
/// slow reads, of all connections, in bytes.
const RESPONSE_BUDGET_BYTES: usize = 512 << 20;
/// How long a client may leave many responses unread before its connection is closed.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Minimum number of slow reads that run at the same time.
const MIN_SLOW_READS: usize = 4;

const ABOUT: &str = "An etcd for Kubernetes that keeps its keys in memory.

Serves etcd's v3 API. Flags and environment variables have the names of etcd (--data-dir is
ETCD_DATA_DIR, and so on). --wal-mode sets which crashes an acknowledged write survives.";

const EXAMPLES: &str = "Commands (see mem_etcd COMMAND --help):
  check     Read and verify a data directory, and print what it contains
  repair    Print what is damaged in a data directory and what can be kept, or repair it
  restore   Create a data directory from a snapshot that etcdctl took
  snapshot  Print the status of a snapshot, or restore the snapshot

Examples:
  mem_etcd --data-dir /var/lib/mem_etcd
  mem_etcd --wal-mode none --listen-client-urls unix:///run/mem_etcd.sock
  mem_etcd --wal-mode fsync --listen-client-urls https://127.0.0.1:2379 \\
      --cert-file server.crt --key-file server.key --trusted-ca-file ca.crt --client-cert-auth";

/// Configuration of the server.
#[derive(Parser, Clone, Debug)]
#[command(name = "mem_etcd", version = VERSION, allow_negative_numbers = true, args_override_self = true, about = ABOUT, after_help = EXAMPLES)]
pub struct Config {
    /// Human-readable name for this member.
    #[arg(long, env = "ETCD_NAME", default_value = "default")]
    pub name: String,

    /// Path to the data directory [default: NAME.etcd]
    #[arg(long, env = "ETCD_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,

    /// Durability of acknowledged writes of a server without peers [default: buffered]
    #[arg(long, env = "ETCD_WAL_MODE", value_enum)]
    pub wal_mode: Option<WalMode>,

    /// WAL mode of keys with a prefix: PREFIX=none, PREFIX=buffered or PREFIX=fsync,
    /// comma-separated or repeated. The longest matching prefix applies. Keys with mode
    /// none are lost at a restart.
    #[arg(long, env = "ETCD_WAL_MODE_PREFIX", value_name = "PREFIX=MODE", value_delimiter = ',', action = clap::ArgAction::Append)]
    pub wal_mode_prefix: Vec<PrefixMode>,

    /// Interval at which the log is flushed to the disk with --wal-mode buffered. A crash
    /// of the machine may lose the writes since the last flush [default: 100ms]
    #[arg(long, env = "ETCD_WAL_FLUSH_INTERVAL", value_name = "DURATION", value_parser = parse_duration)]
    pub wal_flush_interval: Option<Duration>,

    /// Directory of the snapshots; it may be on another disk [default: DATA_DIR/snap]
    #[arg(long, env = "ETCD_SNAPSHOT_DIR", value_name = "DIR")]
    pub snapshot_dir: Option<PathBuf>,

    /// Growth of the log, in bytes, after which a snapshot is taken and the older log is
    /// removed. If the last snapshot is larger, its size is used instead.
    #[arg(long, env = "ETCD_SNAPSHOT_LOG_BYTES", default_value_t = 256 << 20, value_name = "BYTES")]
    pub snapshot_log_bytes: u64,

    /// URLs to listen on for clients: http, https, unix or unixs, comma-separated.
    #[arg(
        long,
        env = "ETCD_LISTEN_CLIENT_URLS",
        default_value = "http://localhost:2379",
        value_name = "URLS",
        value_delimiter = ','
    )]
    pub listen_client_urls: Vec<SocketUrl>,

    /// Client URLs that MemberList returns for this member [default:
    /// --listen-client-urls]
    #[arg(long, env = "ETCD_ADVERTISE_CLIENT_URLS", value_name = "URLS", value_delimiter = ',')]
    pub advertise_client_urls: Vec<Url>,

    /// Additional URLs to listen on for metrics and health checks; without TLS.
    #[arg(long, env = "ETCD_LISTEN_METRICS_URLS", value_name = "URLS", value_delimiter = ',')]
    pub listen_metrics_urls: Vec<SocketUrl>,

    #[command(flatten)]
    pub cluster: ClusterFlags,

    #[command(flatten)]
    pub tls: TlsFiles,

    /// Limit of a client to the keys with a prefix: NAME=read:PREFIX, NAME=write:PREFIX or
    /// NAME=readwrite:PREFIX, comma-separated or repeated. NAME is the common name of its
    /// certificate; * stands for all clients that are not named, which otherwise may do
    /// everything.
    #[arg(long, env = "ETCD_CLIENT_CERT_PERMISSION", value_name = "NAME=ACCESS:PREFIX", value_delimiter = ',', action = clap::ArgAction::Append)]
    pub client_cert_permission: Vec<Permission>,

    /// Tokens of users who authenticate with a password: simple, or
    /// jwt,sign-method=METHOD,priv-key=FILE,pub-key=FILE,ttl=DURATION.
    #[arg(long, env = "ETCD_AUTH_TOKEN", default_value = "simple", value_name = "TYPE")]
    pub auth_token: TokenOptions,

    /// Time after which an unused simple token expires, in seconds; 0 means the default.
    #[arg(long, env = "ETCD_AUTH_TOKEN_TTL", default_value_t = DEFAULT_AUTH_TOKEN_TTL_SECONDS, value_name = "SECONDS")]
    pub auth_token_ttl: u32,

    /// Cost of the bcrypt hashes of new passwords, from 4 to 31. One more doubles the time.
    #[arg(long, env = "ETCD_BCRYPT_COST", default_value_t = 10, value_name = "COST")]
    pub bcrypt_cost: u32,

    /// Size of the keys, values and history in bytes, plus 144 bytes per record, at which
    /// the NOSPACE alarm is raised. Until the alarm is disarmed, writes that need space
    /// are refused. 0 or less means no limit (in etcd 0 means 2 GiB).
    #[arg(long, env = "ETCD_QUOTA_BACKEND_BYTES", default_value_t = 0, value_name = "BYTES")]
    pub quota_backend_bytes: i64,

    /// What --auto-compaction-retention means: periodic for a duration, revision for a number
    /// of revisions.
    #[arg(long, env = "ETCD_AUTO_COMPACTION_MODE", value_enum, default_value_t = auto_compaction::Mode::Periodic)]
    pub auto_compaction_mode: auto_compaction::Mode,

    /// History that automatic compaction keeps: a duration such as 30m or a number of hours, or
    /// a number of revisions. 0 disables automatic compaction.
    #[arg(
        long,
        env = "ETCD_AUTO_COMPACTION_RETENTION",
        default_value = "0",
        value_name = "RETENTION"
    )]
    pub auto_compaction_retention: String,

    /// Largest request that a client may send, in bytes.
    #[arg(long, env = "ETCD_MAX_REQUEST_BYTES", default_value_t = 1_572_864, value_name = "BYTES")]
    pub max_request_bytes: usize,

    /// Maximum number of operations in a transaction.
    #[arg(long, env = "ETCD_MAX_TXN_OPS", default_value_t = 128, value_name = "COUNT")]
    pub max_txn_ops: usize,

    /// Maximum number of open streams (calls) of a client connection.
    #[arg(
        long,
        env = "ETCD_MAX_CONCURRENT_STREAMS",
        default_value_t = 65_536,
        value_name = "COUNT"
    )]
    pub max_concurrent_streams: u32,

    /// Minimum interval between two pings of a client; a client that repeatedly pings
    /// earlier is disconnected.
    #[arg(long, env = "ETCD_GRPC_KEEPALIVE_MIN_TIME", default_value = "5s", value_name = "DURATION", value_parser = parse_duration)]
    pub grpc_keepalive_min_time: Duration,

    /// Idle time after which the server pings a client; 0 disables pings.
    #[arg(long, env = "ETCD_GRPC_KEEPALIVE_INTERVAL", default_value = "2h", value_name = "DURATION", value_parser = parse_duration)]
    pub grpc_keepalive_interval: Duration,

    /// Time after which a client that does not respond to a ping is disconnected.
    #[arg(long, env = "ETCD_GRPC_KEEPALIVE_TIMEOUT", default_value = "20s", value_name = "DURATION", value_parser = parse_duration)]
    pub grpc_keepalive_timeout: Duration,

    /// Interval between progress notifications to idle watchers that requested them.
    #[arg(long, env = "ETCD_WATCH_PROGRESS_NOTIFY_INTERVAL", default_value = "10m", value_name = "DURATION", value_parser = parse_duration)]
    pub watch_progress_notify_interval: Duration,

    /// Log level: debug, info, warn or error.
    #[arg(long, env = "ETCD_LOG_LEVEL", value_enum, default_value_t = LogLevel::Info)]
    pub log_level: LogLevel,

    /// Log format.
    #[arg(long, env = "ETCD_LOG_FORMAT", value_enum, default_value_t = LogFormat::Json)]
    pub log_format: LogFormat,
}

/// Log levels by their names in etcd.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub enum LogLevel {
    Debug,
    Info,
    Warn,
    Error,
}

/// Log formats.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Json,
    Console,
}

/// Why the program exits without running.
pub enum Exit {
    /// The command line requests help or the version, which is the text of the error.
    HelpRequested(clap::Error),
    /// The command line is invalid; the text is one line.
    Usage(String),
}

impl Exit {
    /// Prints the text. Returns exit code 0 for help and 2 for an invalid command line.
    pub fn report(self) -> ExitCode {
        match self {
            Exit::HelpRequested(text) => {
                let _ = text.print();
                ExitCode::SUCCESS
            }
            Exit::Usage(line) => {
                eprintln!("mem_etcd: {line}; see mem_etcd --help");
                ExitCode::from(2)
            }
        }
    }
}

impl Config {
    /// Reads and validates the command line and the environment. As in Go programs, a
    /// flag may begin with one dash or two.
    pub fn from_args(args: impl IntoIterator<Item = String>) -> Result<Config, Exit> {
        let config: Config = parse_args(args)?;
        config.validate().map_err(Exit::Usage)?;
        Ok(config)
    }

    fn validate(&self) -> Result<(), String> {
        self.tls.validate(&self.listen_client_urls)?;
        self.validate_permissions()?;
        if let Some(listen) = self.listen_metrics_urls.iter().find(|listen| listen.uses_tls()) {
            return Err(format!(
                "--listen-metrics-urls: {listen} uses TLS, but metrics are served by http only"
            ));
        }
        self.cluster.validate(&self.name)?;
        if self.cluster.is_member() {
            self.validate_member()?;
        }
        if self.wal_mode() == WalMode::None && self.data_dir.is_some() {
            return Err("--wal-mode none stores nothing, so it takes no --data-dir".into());
        }
        if self.wal_mode() == WalMode::None && self.snapshot_dir.is_some() {
            return Err("--wal-mode none stores nothing, so it takes no --snapshot-dir".into());
        }
        wal_mode::validate(self.wal_mode(), &self.wal_mode_prefix)?;
        self.parse_auto_compaction()?;
        if self.max_txn_ops == 0 || self.max_request_bytes == 0 {
            return Err("--max-txn-ops and --max-request-bytes must be at least 1".into());
        }
        if self.watch_progress_notify_interval > MAX_PROGRESS_INTERVAL {
            return Err("--watch-progress-notify-interval must be at most a year".into());
        }
        if self.flush_interval() < Duration::from_millis(1) {
            return Err("--wal-flush-interval must be at least 1ms".into());
        }
        Ok(())
    }

    /// Refuses what does not belong to a member of a cluster.
    fn validate_member(&self) -> Result<(), String> {
        let flags = [
            ("wal-mode", self.wal_mode.is_some()),
            ("wal-mode-prefix", !self.wal_mode_prefix.is_empty()),
            ("wal-flush-interval", self.wal_flush_interval.is_some()),
        ];
        if let Some((flag, _)) = flags.into_iter().find(|(_, is_set)| *is_set) {
            return Err(format!(
                "--{flag} does not apply to a member of a cluster: use --replication-log"
            ));
        }
        let directories = [("data-dir", &self.data_dir), ("snapshot-dir", &self.snapshot_dir)];
        let is_memory = self.cluster.log() == ReplicationLog::Memory;
        match directories.into_iter().find(|(_, path)| is_memory && path.is_some()) {
            Some((flag, _)) => {
                Err(format!("--replication-log memory stores nothing, so it takes no --{flag}"))
            }
            None => Ok(()),
        }
    }

    /// Returns the durability of acknowledged writes of a server without peers.
    pub fn wal_mode(&self) -> WalMode {
        self.wal_mode.unwrap_or(WalMode::Buffered)
    }

    fn flush_interval(&self) -> Duration {
        self.wal_flush_interval.unwrap_or(DEFAULT_FLUSH_INTERVAL)
    }

    fn data_dir(&self) -> PathBuf {
        self.data_dir.clone().unwrap_or_else(|| PathBuf::from(format!("{}.etcd", self.name)))
    }

    /// Returns the settings of a member of a cluster; `None` for a server without peers.
    pub fn cluster_options(&self) -> Option<pipeline::ClusterOptions> {
        self.cluster.options(MemberFlags {
            name: self.name.clone(),
            client_urls: self.advertised_client_urls(),
            data_dir: self.data_dir(),
        })
    }

    fn validate_permissions(&self) -> Result<(), String> {
        let permissions = &self.client_cert_permission;
        if permissions.is_empty() || permissions.iter().any(Permission::is_for_others) {
            return Ok(());
        }
        if self.tls.trusted_ca_file.is_none() {
            return Err("--client-cert-permission needs --trusted-ca-file".into());
        }
        let is_open = |listen: &&SocketUrl| matches!(listen, SocketUrl::Tcp { tls: false, .. });
        match self.listen_client_urls.iter().find(is_open) {
            Some(listen) => Err(format!(
                "--client-cert-permission: clients of {listen} have no certificate and may do \
                 everything; use https, or limit them by *=ACCESS:PREFIX"
            )),
            None => Ok(()),
        }
    }

    /// Returns the history that automatic compaction keeps; `None` if it is disabled.
    pub fn auto_compaction(&self) -> Option<Retention> {
        self.parse_auto_compaction().expect("the retention was validated")
    }

    fn parse_auto_compaction(&self) -> Result<Option<Retention>, String> {
        let (mode, retention) = (self.auto_compaction_mode, &self.auto_compaction_retention);
        auto_compaction::parse_retention(mode, retention)
            .map_err(|error| format!("--auto-compaction-retention: {error}"))
    }

    /// Returns the quota of the store in bytes; 0 means no limit.
    pub fn quota_bytes(&self) -> i64 {
        self.quota_backend_bytes.max(0)
    }

    /// Returns the time after which an unused simple token expires. As in etcd, 0 means the default.
    pub fn auth_token_ttl(&self) -> Duration {
        let seconds = match self.auth_token_ttl {
            0 => DEFAULT_AUTH_TOKEN_TTL_SECONDS,
            seconds => seconds,
        };
        Duration::from_secs(seconds.into())
    }

    /// Returns the interval between progress notifications. As in etcd, 0 means the
    /// default, and shorter intervals are raised to the minimum.
    pub fn progress_interval(&self) -> Duration {
        match self.watch_progress_notify_interval {
            Duration::ZERO => DEFAULT_PROGRESS_INTERVAL,
            requested => requested.max(MIN_PROGRESS_INTERVAL),
        }
    }

    /// Warns about ETCD_* variables that are not recognized, because an operator may rely
    /// on them.
    pub fn warn_of_unknown_environment(&self) {
        let command = Config::command();
        let recognized: Vec<_> = command.get_arguments().filter_map(|arg| arg.get_env()).collect();
        let names = std::env::vars_os().map(|(name, _)| name);
        let unknown = names
            .filter(|name| name.to_string_lossy().starts_with("ETCD_"))
            .filter(|name| !recognized.contains(&name.as_os_str()));
        for name in unknown {
            tracing::warn!(name = %name.display(), "unrecognized environment variable");
        }
    }

    /// Starts logging to standard error.
    pub fn init_logging(&self) {
        let level = match self.log_level {
            LogLevel::Debug => tracing::Level::DEBUG,
            LogLevel::Info => tracing::Level::INFO,
            LogLevel::Warn => tracing::Level::WARN,
            LogLevel::Error => tracing::Level::ERROR,
        };
        let log = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr);
        let colors = std::io::stderr().is_terminal();
        match self.log_format {
            LogFormat::Json => log.json().flatten_event(true).init(),
            LogFormat::Console => log.with_target(false).with_ansi(colors).init(),
        }
    }

    /// Returns the options of the store.
    pub fn pipeline_options(&self) -> pipeline::PipelineOptions {
        let default = pipeline::PipelineOptions::default();
        // As in etcd: 1.5 election timeouts, rounded up.
        let min_lease_ttl_seconds = match self.cluster_options() {
            Some(cluster) => (cluster.election_timeout * 3 / 2).as_secs_f64().ceil() as i64,
            None => default.min_lease_ttl_seconds,
        };
        pipeline::PipelineOptions {
            data_dir: self.data_dir(),
            wal_mode: self.wal_mode().to_pipeline(),
            wal_mode_prefixes: wal_mode::to_pipeline(&self.wal_mode_prefix),
            boot_id: host::boot_id(),
            flush_interval: self.flush_interval(),
            snapshot_dir: self.snapshot_dir.clone(),
            snapshot_log_bytes: self.snapshot_log_bytes,
            quota_bytes: self.quota_bytes(),
            min_lease_ttl_seconds,
            ..default
        }
    }

    /// Returns the configuration of the gRPC server.
    pub fn grpc_options(&self) -> grpc::ServerConfig {
        grpc::ServerConfig {
            max_streams: self.max_concurrent_streams,
            message_bytes: self.message_bytes(),
            budget: grpc::Budget::new(MESSAGE_BUDGET_BYTES),
            capacity: grpc::Capacity::new(RESPONSE_BUDGET_BYTES, slow_reads()),
            stall_timeout: STALL_TIMEOUT,
            keepalive: grpc::Keepalive {
                interval: self.grpc_keepalive_interval,
                timeout: self.grpc_keepalive_timeout,
                min_interval: self.grpc_keepalive_min_time,
            },
        }
    }

    /// Returns the maximum size of a gRPC message in bytes.
    pub fn message_bytes(&self) -> usize {
        self.max_request_bytes.saturating_add(MESSAGE_OVERHEAD_BYTES)
    }

    /// Returns the peer URLs that MemberList returns for a server without peers.
    pub fn advertised_peer_urls(&self) -> Vec<String> {
        self.cluster.advertised_urls(&self.name).iter().map(ToString::to_string).collect()
    }

    /// Returns the client URLs that MemberList returns.
    pub fn advertised_client_urls(&self) -> Vec<String> {
        // As in etcd, the trailing slash that parsing adds is removed.
        let text = |url: &Url| url.as_str().trim_end_matches('/').to_owned();
        match &self.advertise_client_urls[..] {
            [] => self.listen_client_urls.iter().map(SocketUrl::to_string).collect(),
            urls => urls.iter().map(text).collect(),
        }
    }
}

/// Parses the command line of the server or of a subcommand.
pub fn parse_args<T: Parser>(args: impl IntoIterator<Item = String>) -> Result<T, Exit> {
    T::try_parse_from(args.into_iter().map(with_two_dashes)).map_err(|error| {
        if error.use_stderr() {
            Exit::Usage(usage_error(&error))
        } else {
            Exit::HelpRequested(error)
        }
    })
}

/// Adds a second dash to a flag with one dash.
fn with_two_dashes(arg: String) -> String {
    let single = arg.starts_with('-') && !arg.starts_with("--") && arg.len() > 2;
    if single { format!("-{arg}") } else { arg }
}

/// Describes an error in the command line in one line. For a flag that only etcd has, the
/// line contains the reason and the remedy.
fn usage_error(error: &clap::Error) -> String {
    let unknown = (error.kind() == ErrorKind::UnknownArgument)
        .then(|| error.get(ContextKind::InvalidArg))
        .flatten();
    let Some(ContextValue::String(flag)) = unknown else { return one_line_message(error) };
    let name = flag.trim_start_matches('-').split('=').next().unwrap_or_default();
    match etcd_flags::rejection_reason(name) {
        Some(reason) => format!("etcd flag --{name} is not supported: {reason}"),
        None => one_line_message(error),
    }
}

/// Returns clap's message in one line, without the usage text.
fn one_line_message(error: &clap::Error) -> String {
    let text = error.to_string();
    let message = text.split("\n\n").next().unwrap_or_default();
    message.trim_start_matches("error: ").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns how many slow reads may run at the same time. More would not be faster, and would
/// take the CPU from other requests.
fn slow_reads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    MIN_SLOW_READS.max(2 * cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(flags: &[&str]) -> Result<Config, String> {
        let args = ["mem_etcd"].iter().chain(flags).map(|flag| (*flag).to_owned());
        Config::from_args(args).map_err(|exit| match exit {
            Exit::Usage(line) => line,
            Exit::HelpRequested(_) => "help".into(),
        })
    }

    #[test]
    fn accepts_flags_with_one_dash_or_two() {
        let config = read(&[
            "-data-dir",
            "/d",
            "--listen-client-urls=http://127.0.0.1:1,unix:///s",
            "-client-cert-auth=false",
        ])
        .unwrap();
        assert_eq!(config.data_dir, Some("/d".into()));
        let modes =
            read(&["--wal-mode-prefix", "/a=none,/b=fsync", "-wal-mode-prefix=/c=d=buffered"]);
        let modes = modes.unwrap().pipeline_options().wal_mode_prefixes;
        assert_eq!(modes.len(), 3);
        assert_eq!(modes[2], (b"/c=d".to_vec(), pipeline::WalMode::Buffered));
        let permissions = "--client-cert-permission=a=read:/x,*=readwrite:/y";
        assert_eq!(read(&[permissions]).unwrap().client_cert_permission.len(), 2);
        let last = read(&["--name", "a", "--name=b"]).unwrap();
        assert_eq!(last.name, "b", "the last value applies, as in Go");
        let tcp = SocketUrl::Tcp { address: "127.0.0.1:1".into(), tls: false };
        assert_eq!(
            config.listen_client_urls,
            [tcp, SocketUrl::Unix { path: "/s".into(), tls: false }]
        );
        assert_eq!(config.advertised_client_urls(), ["http://127.0.0.1:1", "unix:///s"]);
    }

    /// The flags of an etcd with one member, as kubeadm and Kubernetes' tests set them.
    #[test]
    fn a_single_member_has_no_peers() {
        let config = read(&[
            "--name=a",
            "--initial-cluster=a=https://10.0.0.1:2380",
            "--initial-advertise-peer-urls=https://10.0.0.1:2380",
            "--listen-peer-urls=https://10.0.0.1:2380",
            "--peer-cert-file=c",
            "--peer-key-file=k",
            "--peer-trusted-ca-file=ca",
            "--peer-client-cert-auth=true",
            "--wal-mode=fsync",
        ])
        .unwrap();
        assert!(config.cluster_options().is_none());
        let config = read(&["--listen-peer-urls=http://127.0.0.1:0"]).unwrap();
        assert!(config.cluster_options().is_none());
        let alone = ["--initial-cluster=default=http://127.0.0.1:1", "--replication-log=fsync"];
        assert!(read(&alone).unwrap().cluster_options().is_some());
    }

    #[test]
    fn errors_are_one_line() {
        for (flags, expected) in [
            (&["--no-such-flag"][..], "unexpected argument '--no-such-flag'"),
            (
                &["--discovery=x"],
                "etcd flag --discovery is not supported: clusters are not discovered",
            ),
            (&["--initial-cluster=a"], "is not NAME=URL"),
            (&["--initial-cluster=b=http://127.0.0.1:1"], "has no member default"),
            (
                &["--initial-cluster=default=https://h:1,b=https://h:2"],
                "https://h:1 needs --peer-cert-file",
            ),
            (
                &["--initial-cluster=default=http://h:1,b=http://h:2", "--wal-mode=fsync"],
                "--wal-mode does not apply",
            ),
            (
                &["--initial-cluster=default=http://h:1,b=http://h:2", "--election-timeout=400"],
                "must be between 5 times",
            ),
            (
                &[
                    "--initial-cluster=default=http://h:1",
                    "--replication-log=memory",
                    "--data-dir=d",
                ],
                "takes no --data-dir",
            ),
            (&["--replication-log=fsync"], "has no member default"),
            (&["--initial-cluster-state=existing"], "needs --initial-cluster with the other"),
            (&["--quota-backend-bytes", "much"], "invalid value 'much'"),
            (&["--listen-client-urls", "tcp://x:1"], "must begin with http://"),
            (&["--listen-client-urls", "http://x"], "has no port"),
            (&["--listen-client-urls", "https://x:1"], "https://x:1 needs --cert-file"),
            (&["--cert-file", "c"], "--cert-file and --key-file must be set together"),
            (&["--client-cert-auth"], "needs --trusted-ca-file"),
            (&["--client-crl-file", "c"], "needs --trusted-ca-file"),
            (&["--client-cert-permission", "a=read:/x"], "needs --trusted-ca-file"),
            (
                &["--client-cert-permission=a=read:/x", "--trusted-ca-file=c"],
                "clients of http://localhost:2379 have no certificate",
            ),
            (&["--client-cert-permission", "a=read"], "is not NAME=ACCESS:PREFIX"),
            (
                &["--tls-min-version", "TLS1.3", "--tls-max-version", "TLS1.2"],
                "--tls-max-version is below",
            ),
            (&["--tls-min-version", "TLS1.3", "--cipher-suites", "x"], "cannot be chosen"),
            (&["--wal-mode", "none", "--data-dir", "d"], "takes no --data-dir"),
            (&["--wal-mode-prefix", "/a"], "is not PREFIX=MODE"),
            (&["--wal-mode-prefix", "/a=quick"], "has no mode \"quick\""),
            (&["--wal-mode-prefix", "=none"], "an empty prefix matches every key"),
            (&["--wal-mode-prefix", "/a=none,/b=none,/a=fsync"], "the prefix /a is given twice"),
            (&["--wal-mode", "none", "--wal-mode-prefix", "/a=fsync"], "WAL mode none has no log"),
            (&["--wal-flush-interval", "soon"], "is not a duration"),
            (&["--wal-flush-interval", "0s"], "at least 1ms"),
            (&["--auto-compaction-mode", "hourly"], "invalid value 'hourly'"),
            (&["--auto-compaction-retention", "soon"], "is not a duration, such as 30m"),
            (
                &["--auto-compaction-mode=revision", "--auto-compaction-retention=5m"],
                "is not a number of revisions",
            ),
            (&["--auth-token", "jwt"], "jwt needs sign-method"),
            (&["--auth-token-ttl", "-1"], "invalid value '-1'"),
            (&["--max-txn-ops", "0"], "at least 1"),
            (&["--max-request-bytes", "-1"], "invalid value '-1'"),
            (&["--listen-metrics-urls", "https://x:1"], "http only"),
        ] {
            let line = read(flags).unwrap_err();
            assert!(line.contains(expected), "{flags:?}: {line}");
            assert!(!line.contains('\n'), "{line}");
        }
    }
}
