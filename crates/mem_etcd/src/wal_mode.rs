//! The flags --wal-mode and --wal-mode-prefix.

use std::str::FromStr;

use clap::ValueEnum;
use pipeline::Modes;

/// Durability of acknowledged writes.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalMode {
    /// No durability: the store is in memory only, without a data directory.
    None,
    /// Writes survive a crash of the process. A crash of the machine may lose the writes
    /// since the last flush.
    Buffered,
    /// Writes survive a crash of the machine: each waits for an fsync. Concurrent writes
    /// share one fsync.
    Fsync,
}

impl WalMode {
    /// Returns the name of the mode, as in the flags.
    pub fn name(self) -> &'static str {
        match self {
            WalMode::None => "none",
            WalMode::Buffered => "buffered",
            WalMode::Fsync => "fsync",
        }
    }

    /// Converts to the type of the crate `pipeline`.
    pub fn to_pipeline(self) -> pipeline::WalMode {
        match self {
            WalMode::None => pipeline::WalMode::None,
            WalMode::Buffered => pipeline::WalMode::Buffered,
            WalMode::Fsync => pipeline::WalMode::Fsync,
        }
    }
}

/// The WAL mode of the keys with a prefix, parsed from text such as
/// `/registry/leases/=none`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixMode {
    prefix: String,
    mode: WalMode,
}

impl FromStr for PrefixMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (prefix, mode) =
            text.rsplit_once('=').ok_or("is not PREFIX=MODE, such as /registry/leases/=none")?;
        let mode = WalMode::from_str(mode, false)
            .map_err(|_| format!("has no mode {mode:?}: use none, buffered or fsync"))?;
        Ok(PrefixMode { prefix: prefix.into(), mode })
    }
}

/// Converts to prefixes and modes of the crate `pipeline`.
pub fn to_pipeline(prefixes: &[PrefixMode]) -> Vec<(Vec<u8>, pipeline::WalMode)> {
    let pair = |p: &PrefixMode| (p.prefix.clone().into_bytes(), p.mode.to_pipeline());
    prefixes.iter().map(pair).collect()
}

/// Checks that the values of the two flags are valid together.
pub fn validate(mode: WalMode, prefixes: &[PrefixMode]) -> Result<(), String> {
    match Modes::new(mode.to_pipeline(), &to_pipeline(prefixes)) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("--wal-mode-prefix: {error}")),
    }
}
