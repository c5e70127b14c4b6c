//! `etcd-bench replay`: asks a store what a recording of `etcd-proxy` says that another
//! was asked, in the same order and with the same pauses, and compares the answers.
//!
//! # Order
//! Requests begin in the order in which they began, at their times over `--speed`. None
//! begins before everything has ended that had ended when it began in the recording, so
//! that with `--speed max`, too, it finds what it found; what was under way at once is
//! under way at once. Of those, calls of one key follow each other.
//!
//! # What is translated
//! Revisions and leases are others here. See [`revisions`] and `Leases`.

mod convert;
mod difference;
mod dispatch;
mod report;
mod revisions;
mod streams;

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result};
use clap::Args;
use trace::Reader;

use crate::options::Load;
use dispatch::Dispatcher;
pub use report::ReplayReport;

/// What to replay, and how fast.
#[derive(Args, Debug)]
pub struct ReplayOptions {
    /// A recording of etcd-proxy.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// How many times as fast as it was recorded; max is without pauses.
    #[arg(long, default_value = "1.0", value_name = "TIMES")]
    pub speed: Speed,
}

/// How fast to replay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Speed {
    Times(f64),
    Max,
}

impl FromStr for Speed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<f64>() {
            _ if text == "max" => Ok(Speed::Max),
            Ok(times) if times.is_finite() && times > 0.0 => Ok(Speed::Times(times)),
            _ => Err("is not a number above 0, or max".into()),
        }
    }
}

/// Replays the whole recording.
pub async fn run(options: &ReplayOptions, load: &Load) -> Result<ReplayReport> {
    let reader = Reader::open(&options.file).context("open the recording")?;
    let mut dispatcher = Dispatcher::new(load, options.speed);
    dispatcher.replay(reader).await?;
    Ok(dispatcher.finish(options).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds() {
        assert_eq!("2".parse(), Ok(Speed::Times(2.0)));
        assert_eq!("max".parse(), Ok(Speed::Max));
        for wrong in ["0", "-1", "inf", "NaN", "fast"] {
            assert!(wrong.parse::<Speed>().is_err(), "{wrong}");
        }
    }
}
