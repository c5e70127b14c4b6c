//! The fields that protect the API servers and the gateway itself.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Size, Span};

/// The limit for LISTs and for the initial events of WatchLists.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Lists {
    /// Predicted bytes of the answers in progress at one API server, not compressed. 0 turns the
    /// limit off.
    pub max_bytes: Size,
    /// A LIST with a smaller prediction does not wait.
    pub small_bytes: Size,
    /// LISTs that wait for one API server. Further ones get 429.
    pub max_waiting: usize,
    /// How long a LIST waits before it gets 429.
    pub max_wait: Span,
}

/// A rule of the throttle.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ThrottleRule {
    /// The product of the User-Agent, which is its text up to the first `/` or blank. A `*` at the
    /// end stands for any further characters.
    pub user_agent: String,
    /// Requests per second of all clients that match, together.
    pub qps: f64,
    /// Requests that may come at once. The default is `qps`, and at least 1.
    #[serde(default)]
    pub burst: Option<u32>,
}

/// Bounds of the gateway's own memory.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Buffers {
    /// Bytes of all answers that were read from API servers and wait for slow clients. Beyond it, the
    /// gateway stops reading for the clients that hold most.
    pub max_bytes: Size,
}

/// The commands to the running process.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Control {
    /// Path of the Unix socket for `kube-gateway throttle`, with mode 0600. Without it there is none.
    pub socket: Option<PathBuf>,
}

/// Bytes of a pattern of a User-Agent. A longer product is no product.
const MAX_PATTERN: usize = 256;
/// A higher rate would be no limit.
const MAX_QPS: f64 = 1e6;

impl ThrottleRule {
    /// Checks the rule.
    ///
    /// # Errors
    /// Returns a one-line message for the first invalid field.
    pub fn check(&self) -> Result<(), String> {
        let pattern = &self.user_agent;
        let prefix = pattern.strip_suffix('*').unwrap_or(pattern);
        if pattern.is_empty() || pattern.len() > MAX_PATTERN {
            return Err(format!("the User-Agent must have 1 to {MAX_PATTERN} bytes"));
        }
        if pattern.chars().any(char::is_control) {
            return Err(format!("the User-Agent {pattern:?} has control characters"));
        }
        if prefix.contains('*') {
            return Err(format!("the User-Agent {pattern:?} may have a * only at its end"));
        }
        if prefix.contains(['/', ' ']) {
            return Err(format!(
                "the User-Agent {pattern:?} must be a product without its version, such as kubelet"
            ));
        }
        if !(self.qps > 0.0 && self.qps <= MAX_QPS) {
            return Err(format!("qps must be above 0 and at most {MAX_QPS}, not {}", self.qps));
        }
        if self.burst == Some(0) {
            return Err("burst must be at least 1".into());
        }
        Ok(())
    }

    /// The requests that may come at once.
    pub fn burst(&self) -> f64 {
        self.burst.map_or_else(|| self.qps.max(1.0), f64::from)
    }
}

impl Default for Lists {
    fn default() -> Self {
        Lists {
            max_bytes: Size(64 << 20),
            small_bytes: Size(128 << 10),
            max_waiting: 1000,
            max_wait: Span::from_secs(30),
        }
    }
}

impl Default for Buffers {
    fn default() -> Self {
        Buffers { max_bytes: Size(256 << 20) }
    }
}
