//! Flags of etcd 3.7 that are not taken here, and why: whoever moves a command
//! line over should read what to do, not only that it fails.

/// Why etcd's flag `name` is not taken, if it is one.
pub fn reason(name: &str) -> Option<&'static str> {
    let name = name.strip_prefix("experimental-").unwrap_or(name);
    let reason = match name {
        "auto-compaction-mode" | "auto-compaction-retention" => {
            "there is no automatic compaction yet; Kubernetes compacts by itself, so leave it out"
        }
        "wal-dir" => "the log lies in --data-dir; only --snapshot-dir can be elsewhere",
        "snapshot-count" => "snapshots go by bytes: use --snapshot-log-bytes",
        "logger" | "log-outputs" | "log-rotation-config-json" | "enable-log-rotation" => {
            "the log goes to standard error: use --log-level and --log-format"
        }
        "config-file" => "there is no configuration file: use flags or ETCD_ variables",
        "auth-token" | "bcrypt-cost" | "auth-token-ttl" => "there are no users and roles yet",
        "auto-tls" | "self-signed-cert-validity" => {
            "certificates are not made here; use --cert-file and --key-file"
        }
        "client-cert-allowed-hostname" => "this TLS setting is not built yet",
        "cors" | "host-whitelist" => "there is no JSON gateway",
        "enable-pprof" => "profiles are taken from outside, with perf",
        "metrics" => "/metrics always has all there is; leave it out",
        "feature-gates" => "no feature has a gate; leave it out",
        "socket-reuse-port" | "socket-reuse-address" => "it cannot be changed yet; leave it out",
        _ if is_of_clusters(name) => "there is one member only, without peers; leave it out",
        _ if is_of_backend(name) => "it tunes a storage engine that is not there; leave it out",
        _ => return None,
    };
    Some(reason)
}

fn is_of_clusters(name: &str) -> bool {
    const PREFIXES: [&str; 5] =
        ["initial-", "peer-", "discovery", "listen-peer", "strict-reconfig"];
    const NAMES: [&str; 7] = [
        "heartbeat-interval",
        "election-timeout",
        "pre-vote",
        "force-new-cluster",
        "proxy",
        "max-learners",
        "corrupt-check-time",
    ];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || NAMES.contains(&name)
}

fn is_of_backend(name: &str) -> bool {
    const PREFIXES: [&str; 3] = ["backend-", "compaction-", "snapshot-catchup"];
    const NAMES: [&str; 5] = [
        "max-snapshots",
        "max-wals",
        "unsafe-no-fsync",
        "bootstrap-defrag-threshold-megabytes",
        "memory-mlock",
    ];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || NAMES.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::reason;

    #[test]
    fn knows_etcds_flags_and_no_others() {
        for name in [
            "initial-cluster-state",
            "peer-cert-file",
            "experimental-initial-corrupt-check",
            "backend-batch-limit",
        ] {
            assert!(reason(name).is_some(), "{name}");
        }
        for name in ["data-dir", "no-such-flag"] {
            assert_eq!(reason(name), None);
        }
    }
}
