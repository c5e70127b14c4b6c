//! Flags of etcd 3.7 that mem_etcd rejects, each with the reason and the remedy. The
//! messages help to migrate an etcd command line.

/// Returns why the flag `name` (without dashes) is rejected; `None` if the flag is not in
/// the list of rejected flags (mem_etcd accepts it, or etcd has no such flag).
pub fn rejection_reason(name: &str) -> Option<&'static str> {
    let name = name.strip_prefix("experimental-").unwrap_or(name);
    let reason = match name {
        "auto-compaction-mode" | "auto-compaction-retention" => {
            "there is no automatic compaction yet, and Kubernetes compacts by itself; remove the flag"
        }
        "wal-dir" => {
            "the log is always in --data-dir; remove the flag. Snapshots can be elsewhere: --snapshot-dir"
        }
        "snapshot-count" => "snapshots are triggered by log size: use --snapshot-log-bytes",
        "logger" | "log-outputs" | "log-rotation-config-json" | "enable-log-rotation" => {
            "log messages are written to standard error: use --log-level and --log-format"
        }
        "config-file" => "there is no configuration file: use flags or ETCD_ variables",
        "auth-token" | "bcrypt-cost" | "auth-token-ttl" => {
            "there are no users and roles; remove the flag, and use --client-cert-permission"
        }
        "auto-tls" | "self-signed-cert-validity" => {
            "mem_etcd does not create certificates; use --cert-file and --key-file"
        }
        "client-cert-allowed-hostname" => {
            "the check of client host names is not implemented yet; remove the flag"
        }
        "cors" | "host-whitelist" => "there is no JSON gateway; remove the flag",
        "enable-pprof" => "there is no profiling endpoint: use perf",
        "metrics" => "/metrics always contains all metrics; remove the flag",
        "feature-gates" => "there are no feature gates; remove the flag",
        "socket-reuse-port" | "socket-reuse-address" => {
            "socket options cannot be changed yet; remove the flag"
        }
        _ if is_cluster_flag(name) => "mem_etcd has only one member and no peers; remove the flag",
        _ if is_backend_flag(name) => {
            "it tunes etcd's storage engine, which mem_etcd does not have; remove the flag"
        }
        _ => return None,
    };
    Some(reason)
}

fn is_cluster_flag(name: &str) -> bool {
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

fn is_backend_flag(name: &str) -> bool {
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
    use super::rejection_reason;

    #[test]
    fn only_rejected_flags_have_a_reason() {
        for name in [
            "initial-cluster-state",
            "peer-cert-file",
            "experimental-initial-corrupt-check",
            "backend-batch-limit",
        ] {
            assert!(rejection_reason(name).is_some(), "{name}");
        }
        for name in ["data-dir", "no-such-flag"] {
            assert_eq!(rejection_reason(name), None);
        }
    }
}
