//! What an acknowledged write survives, as flags say it.

use std::str::FromStr;

use clap::ValueEnum;
use pipeline::Modes;

/// What an acknowledged write survives.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalMode {
    /// Nothing: memory only, no data directory.
    None,
    /// A crash of the process; of the machine, all but the last flush interval.
    Buffered,
    /// A crash of the machine: writes wait for fsync, together.
    Fsync,
}

impl WalMode {
    /// As the flag has it.
    pub fn name(self) -> &'static str {
        match self {
            WalMode::None => "none",
            WalMode::Buffered => "buffered",
            WalMode::Fsync => "fsync",
        }
    }

    /// As the pipeline has it.
    pub fn for_pipeline(self) -> pipeline::WalMode {
        match self {
            WalMode::None => pipeline::WalMode::None,
            WalMode::Buffered => pipeline::WalMode::Buffered,
            WalMode::Fsync => pipeline::WalMode::Fsync,
        }
    }
}

/// The mode of the keys below a prefix: `/registry/leases/=none`.
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
            .map_err(|_| format!("has no mode {mode:?}: it is none, buffered or fsync"))?;
        Ok(PrefixMode { prefix: prefix.into(), mode })
    }
}

/// As the pipeline has them.
pub fn for_pipeline(prefixes: &[PrefixMode]) -> Vec<(Vec<u8>, pipeline::WalMode)> {
    let pair = |p: &PrefixMode| (p.prefix.clone().into_bytes(), p.mode.for_pipeline());
    prefixes.iter().map(pair).collect()
}

/// Whether the modes make sense together.
pub fn validate(mode: WalMode, prefixes: &[PrefixMode]) -> Result<(), String> {
    match Modes::new(mode.for_pipeline(), &for_pipeline(prefixes)) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("--wal-mode-prefix: {error}")),
    }
}
