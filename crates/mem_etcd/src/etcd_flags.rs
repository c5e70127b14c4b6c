//! Flags of etcd 3.7 that are rejected, each with the reason and the remedy. They help to
//! migrate an etcd command line.

/// Returns why `name`, without dashes, is rejected; `None` if etcd has no such flag.
pub fn reason(name: &str) -> Option<&'static str> {
    let name = name.strip_prefix("experimental-").unwrap_or(name);
    let reason = match name {
        "auto-compaction-mode" | "auto-compaction-retention" => {
            "there is no automatic compaction yet; Kubernetes compacts by itself, so leave it out"
        }
        "wal-dir" => {
            "the WAL is always in --data-dir; only snapshots can be elsewhere (--snapshot-dir)"
        }
        "snapshot-count" => "snapshots are triggered by log size: use --snapshot-log-bytes",
        "logger" | "log-outputs" | "log-rotation-config-json" | "enable-log-rotation" => {
            "the log goes to standard error: use --log-level and --log-format"
        }
        "config-file" => "there is no configuration file: use flags or ETCD_ variables",
        "auth-token" | "bcrypt-cost" | "auth-token-ttl" => "there are no users and roles yet",
        "auto-tls" | "self-signed-cert-validity" => {
            "mem_etcd does not create certificates; use --cert-file and --key-file"
        }
        "client-cert-allowed-hostname" => "this TLS setting is not implemented yet",
        "cors" | "host-whitelist" => "there is no JSON gateway",
        "enable-pprof" => "there is no profiling endpoint; use perf",
        "metrics" => "/metrics always has all metrics; leave it out",
        "feature-gates" => "there are no feature gates; leave it out",
        "socket-reuse-port" | "socket-reuse-address" => {
            "socket options cannot be changed yet; leave it out"
        }
        _ if is_cluster_flag(name) => "there is one member only, without peers; leave it out",
        _ if is_backend_flag(name) => "it tunes etcd's storage engine; leave it out",
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
    use super::reason;

    #[test]
    fn only_flags_of_etcd_have_a_reason() {
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
