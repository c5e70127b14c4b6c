//! The flags --wal-mode and --wal-mode-prefix.

use std::str::FromStr;

use clap::ValueEnum;
use pipeline::Modes;

/// Durability of acknowledged writes.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalMode {
    /// No durability: the store is in memory only, without a data directory.
    None,
    /// Writes survive a crash of the process. A crash of the machine may lose the last
    /// flush interval.
    Buffered,
    /// Writes survive a crash of the machine: they wait for an fsync, which concurrent
    /// writes share.
    Fsync,
}

impl WalMode {
    /// Returns the value of the flag.
    pub fn name(self) -> &'static str {
        match self {
            WalMode::None => "none",
            WalMode::Buffered => "buffered",
            WalMode::Fsync => "fsync",
        }
    }

    /// Converts to the mode of the pipeline.
    pub fn for_pipeline(self) -> pipeline::WalMode {
        match self {
            WalMode::None => pipeline::WalMode::None,
            WalMode::Buffered => pipeline::WalMode::Buffered,
            WalMode::Fsync => pipeline::WalMode::Fsync,
        }
    }
}

/// The mode of the keys with a prefix: `/registry/leases/=none`.
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

/// Converts to the modes of the pipeline.
pub fn for_pipeline(prefixes: &[PrefixMode]) -> Vec<(Vec<u8>, pipeline::WalMode)> {
    let pair = |p: &PrefixMode| (p.prefix.clone().into_bytes(), p.mode.for_pipeline());
    prefixes.iter().map(pair).collect()
}

/// Checks that the modes are valid together.
pub fn validate(mode: WalMode, prefixes: &[PrefixMode]) -> Result<(), String> {
    match Modes::new(mode.for_pipeline(), &for_pipeline(prefixes)) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("--wal-mode-prefix: {error}")),
    }
}
