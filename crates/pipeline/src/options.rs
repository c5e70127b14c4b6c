//! Settings of a pipeline.

use std::path::PathBuf;
use std::time::Duration;

/// Durability of acknowledged writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalMode {
    /// Writes are not logged, and a restart loses them.
    None,
    /// Writes survive the end of the process. A crash of the machine may lose the writes
    /// since the last flush.
    Buffered,
    /// Writes wait for an fsync. They survive a crash of the machine.
    Fsync,
}

/// Settings of a pipeline, fixed when it is opened.
#[derive(Clone, Debug)]
pub struct PipelineOptions {
    /// The data directory. It is not used if `wal_mode` is [`WalMode::None`].
    pub data_dir: PathBuf,
    /// WAL mode of keys without a matching prefix.
    pub wal_mode: WalMode,
    /// WAL modes by key prefix. If several prefixes match a key, the longest applies.
    pub wal_mode_prefixes: Vec<(Vec<u8>, WalMode)>,
    /// Boot ID of the machine; empty if unknown. Writes that were buffered under the same
    /// boot ID are not lost.
    pub boot_id: Vec<u8>,
    /// Interval at which the log is synced if a key has [`WalMode::Buffered`].
    pub flush_interval: Duration,
    /// Directory of the snapshots; `None` for the default, `snap` in the data directory.
    pub snapshot_dir: Option<PathBuf>,
    /// A snapshot is taken when the log has grown by this many bytes since the last
    /// snapshot, or by the size of that snapshot if it is larger. The log before the
    /// snapshot is then removed.
    pub snapshot_log_bytes: u64,
    /// Maximum number of queued small commands, and of queued large ones. Further commands are
    /// rejected.
    pub queue_commands: usize,
    /// Maximum total size of these queued requests in bytes. Further commands are rejected.
    pub queue_bytes: usize,
    /// Maximum number of queued events of a watch stream. A watcher whose events exceed
    /// it becomes unsynced and reads history.
    pub queue_events: usize,
    /// Size limit of the store in bytes: keys, values, history and overhead. A write that
    /// exceeds it raises the NOSPACE alarm. 0 means no limit.
    pub quota_bytes: i64,
    /// Minimum TTL of a lease in seconds. A smaller requested TTL is raised to it.
    pub min_lease_ttl_seconds: i64,
}

impl PipelineOptions {
    /// Settings of the log. A segment has a quarter of `snapshot_log_bytes`, because
    /// trimming removes only whole segments: larger segments would keep more covered
    /// records on disk.
    pub(crate) fn log_options(&self) -> wal::LogOptions {
        let default = wal::LogOptions::default().segment_bytes;
        wal::LogOptions { segment_bytes: (self.snapshot_log_bytes / 4).clamp(1 << 20, default) }
    }
}

impl Default for PipelineOptions {
    fn default() -> Self {
        PipelineOptions {
            data_dir: PathBuf::from("default.etcd"),
            wal_mode: WalMode::Buffered,
            wal_mode_prefixes: Vec::new(),
            boot_id: Vec::new(),
            flush_interval: Duration::from_millis(100),
            snapshot_dir: None,
            snapshot_log_bytes: 256 << 20,
            queue_commands: 65_536,
            queue_bytes: 256 << 20,
            queue_events: watch::QUEUE_EVENTS,
            quota_bytes: 0,
            // As in etcd: 1.5 election timeouts of 1 s, rounded up.
            min_lease_ttl_seconds: 2,
        }
    }
}
