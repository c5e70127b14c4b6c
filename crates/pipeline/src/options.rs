//! How a pipeline is set up.

use std::path::PathBuf;
use std::time::Duration;

/// What an acknowledged write survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalMode {
    /// Nothing: memory only.
    None,
    /// The end of the process; of the machine, all but the last flush interval.
    Buffered,
    /// The end of the machine.
    Fsync,
}

/// Set once, at the start.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the log lies; not used with [`WalMode::None`].
    pub data_dir: PathBuf,
    /// What an acknowledged write survives.
    pub wal_mode: WalMode,
    /// Other modes below some prefixes; of several that match the longest counts.
    pub wal_mode_prefixes: Vec<(Vec<u8>, WalMode)>,
    /// Which run of which machine this is: what was written under the same ID has
    /// not been lost with the machine. Empty if it is not known.
    pub boot_id: Vec<u8>,
    /// With [`WalMode::Buffered`], how often the log is flushed to the disk.
    pub flush_interval: Duration,
    /// Where snapshots lie; in the data directory if nothing is said.
    pub snapshot_dir: Option<PathBuf>,
    /// A snapshot is taken, and the log before it removed, when the log has grown
    /// by this many bytes, or by the size of the last snapshot if that is more.
    pub snapshot_log_bytes: u64,
    /// Commands that may wait; one more is refused.
    pub queue_commands: usize,
    /// Bytes of requests that may wait; beyond them commands are refused.
    pub queue_bytes: usize,
    /// Events that may wait for one client stream before it has to read history.
    pub queue_events: usize,
    /// Bytes that the store may hold before it raises the alarm that it is full;
    /// 0 for no limit.
    pub quota_bytes: i64,
    /// The smallest TTL that a lease gets, in seconds, whatever was asked for.
    pub min_lease_ttl_seconds: i64,
}

impl Options {
    /// A few segments make the log between two snapshots, so that removing what
    /// is covered leaves little behind.
    pub(crate) fn log(&self) -> wal::Options {
        let default = wal::Options::default().segment_bytes;
        wal::Options { segment_bytes: (self.snapshot_log_bytes / 4).clamp(1 << 20, default) }
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
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
            // etcd's: one and a half election time-outs of a second, rounded up.
            min_lease_ttl_seconds: 2,
        }
    }
}
