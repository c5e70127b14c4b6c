//! The flags of `etcd-bench replay`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

/// The flags of a replay.
#[derive(Args, Debug)]
pub struct ReplayOptions {
    /// Trace that etcd-proxy has recorded.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Multiple of the recorded speed, or max to send each request as soon as possible.
    #[arg(long, default_value = "1.0", value_name = "TIMES")]
    pub speed: Speed,
}

/// The replay speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Speed {
    /// A multiple of the recorded speed.
    Times(f64),
    /// Each request is sent as soon as the calls for which it waits have ended.
    Max,
}

impl FromStr for Speed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<f64>() {
            _ if text == "max" => Ok(Speed::Max),
            Ok(times) if times.is_finite() && times > 0.0 => Ok(Speed::Times(times)),
            _ => Err("must be a number greater than 0, or max".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_parsed() {
        assert_eq!("2".parse(), Ok(Speed::Times(2.0)));
        assert_eq!("max".parse(), Ok(Speed::Max));
        for wrong in ["0", "-1", "inf", "NaN", "fast"] {
            assert!(wrong.parse::<Speed>().is_err(), "{wrong}");
        }
    }
}
