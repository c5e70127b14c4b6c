//! Settings of a pipeline.

use std::path::PathBuf;
use std::time::Duration;

/// Durability of acknowledged writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalMode {
    /// No durability: the store is in memory only.
    None,
    /// Writes survive the end of the process. If the machine stops, the last flush
    /// interval may be lost.
    Buffered,
    /// Writes survive the end of the process and of the machine: they wait for an fsync.
    Fsync,
}

/// Settings of a pipeline, fixed when it is opened.
#[derive(Clone, Debug)]
pub struct PipelineOptions {
    /// The data directory; not used with [`WalMode::None`].
    pub data_dir: PathBuf,
    /// Default WAL mode.
    pub wal_mode: WalMode,
    /// WAL modes of key prefixes. If several match, the longest applies.
    pub wal_mode_prefixes: Vec<(Vec<u8>, WalMode)>,
    /// ID of the boot of the machine. Writes buffered under the same ID are not lost.
    /// Empty if unknown.
    pub boot_id: Vec<u8>,
    /// How often the log is flushed to the disk with [`WalMode::Buffered`].
    pub flush_interval: Duration,
    /// Directory of the snapshots; `None` for the data directory.
    pub snapshot_dir: Option<PathBuf>,
    /// A snapshot is taken, and the log before it removed, when the log has grown by
    /// this many bytes, or by the size of the last snapshot if that is larger.
    pub snapshot_log_bytes: u64,
    /// Maximum number of queued commands; further ones are refused.
    pub queue_commands: usize,
    /// Maximum bytes of queued requests; further ones are refused.
    pub queue_bytes: usize,
    /// Maximum number of queued events of one watch stream; beyond them its watchers
    /// become unsynced and read history.
    pub queue_events: usize,
    /// Bytes of keys, values and history at which the NOSPACE alarm is raised; 0 for no
    /// limit.
    pub quota_bytes: i64,
    /// Smallest TTL of a lease in seconds; smaller requests are raised to it.
    pub min_lease_ttl_seconds: i64,
}

impl PipelineOptions {
    /// Settings of the log. Four segments hold the log between two snapshots, so that
    /// trimming, which removes whole segments, leaves little.
    pub(crate) fn log(&self) -> wal::LogOptions {
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
