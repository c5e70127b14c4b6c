//! Commands to the running process, as JSON over HTTP/1.1 on a Unix socket that only its user may use.

mod client;
mod commands;
mod server;

use serde::{Deserialize, Serialize};

use crate::config::ThrottleRule;
use crate::protect::RuleStatus;

pub use commands::{ThrottleCommand, run};
pub use server::{listen, serve};

/// The path of the throttle's rules.
const THROTTLE: &str = "/throttle";

/// A rule to add.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Add {
    rule: ThrottleRule,
    /// After this time the rule ends.
    #[serde(default)]
    for_milliseconds: Option<u64>,
}

/// A rule to delete.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Delete {
    user_agent: String,
}

/// All rules in force.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Rules {
    rules: Vec<RuleStatus>,
}

/// Why a command failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Failure {
    error: String,
}
