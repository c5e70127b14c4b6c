//! Downgrade requests. The responses are those of an etcd 3.7 with one member. mem_etcd
//! has no older storage format, so an enabled downgrade only changes the response of
//! Status.

use etcdpb::rpc::DowngradeRequest;
use etcdpb::rpc::downgrade_request::DowngradeAction;
use grpc::Status;
use parking_lot::Mutex;

use super::status;
use crate::config::STORAGE_VERSION;

/// The previous minor version. It is the only target that etcd allows.
const ALLOWED_TARGET: (u64, u64) = (3, 6);
const ALLOWED_TARGET_VERSION: &str = "3.6.0";
/// The cluster version as etcd returns it: major and minor version.
const CLUSTER_VERSION: &str = "3.7";

/// Whether a downgrade is enabled.
#[derive(Default)]
pub struct Downgrade {
    enabled: Mutex<bool>,
}

impl Downgrade {
    /// Returns the target version if a downgrade is enabled.
    pub fn target(&self) -> Option<String> {
        self.enabled.lock().then(|| ALLOWED_TARGET_VERSION.to_owned())
    }

    /// Handles a request, and returns the cluster version.
    pub fn handle_request(&self, request: &DowngradeRequest) -> Result<String, Status> {
        debug_assert!(STORAGE_VERSION.starts_with(CLUSTER_VERSION));
        let mut enabled = self.enabled.lock();
        match DowngradeAction::try_from(request.action) {
            Ok(DowngradeAction::Validate) => validate(&request.version, *enabled)?,
            Ok(DowngradeAction::Enable) => {
                validate(&request.version, *enabled)?;
                *enabled = true;
            }
            // As in etcd, it is no error to cancel when no downgrade is enabled.
            Ok(DowngradeAction::Cancel) => *enabled = false,
            Err(_) => return Err(status::unknown_method()),
        }
        Ok(CLUSTER_VERSION.to_owned())
    }
}

fn validate(version: &str, enabled: bool) -> Result<(), Status> {
    let target = parse_version(version).ok_or_else(status::wrong_downgrade_version_format)?;
    if target != ALLOWED_TARGET {
        return Err(status::invalid_downgrade_target_version());
    }
    if enabled { Err(status::downgrade_in_process()) } else { Ok(()) }
}

/// Returns the major and minor version of text such as `3.6`, `3.6.4` or `3.6.4-rc.0`.
fn parse_version(version: &str) -> Option<(u64, u64)> {
    let numbers = version.split(['-', '+']).next()?;
    let mut parts = numbers.split('.');
    let major = parts.next()?.parse().ok()?;
    let minor = parts.next()?.parse().ok()?;
    match parts.next() {
        Some(patch) => drop(patch.parse::<u64>().ok()?),
        // As in Go's parser, a suffix requires a complete version before it.
        None if numbers.len() < version.len() => return None,
        None => {}
    }
    parts.next().is_none().then_some((major, minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(
        downgrade: &Downgrade,
        action: DowngradeAction,
        version: &str,
    ) -> Result<String, String> {
        let request = DowngradeRequest { action: action as i32, version: version.into() };
        downgrade.handle_request(&request).map_err(|status| status.message().to_owned())
    }

    #[test]
    fn answers_like_etcd_with_one_member() {
        use DowngradeAction::{Cancel, Enable, Validate};
        let downgrade = Downgrade::default();
        let version = Ok("3.7".to_owned());
        assert_eq!(send(&downgrade, Validate, "3.6"), version);
        assert_eq!(send(&downgrade, Validate, "3.6.4"), version);
        let invalid = Err("etcdserver: invalid downgrade target version".to_owned());
        assert_eq!(send(&downgrade, Validate, "3.5"), invalid);
        let malformed = Err("etcdserver: wrong downgrade target version format".to_owned());
        for text in ["", "3", "3.x", "3.6.x", "a.b", "3.6.0.1", "3.6-rc"] {
            assert_eq!(send(&downgrade, Enable, text), malformed, "{text}");
        }
        assert_eq!(downgrade.target(), None);
        assert_eq!(send(&downgrade, Enable, "3.6"), version);
        assert_eq!(downgrade.target().as_deref(), Some("3.6.0"));
        let running = Err("etcdserver: cluster has a downgrade job in progress".to_owned());
        assert_eq!(send(&downgrade, Enable, "3.6"), running);
        assert_eq!(send(&downgrade, Cancel, ""), version);
        assert_eq!(send(&downgrade, Cancel, ""), version);
        assert_eq!(downgrade.target(), None);
    }
}
