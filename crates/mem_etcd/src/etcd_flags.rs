//! Flags of etcd 3.7 that mem_etcd rejects, each with the reason and the remedy. The
//! messages help to migrate an etcd command line.

/// Returns why the flag `name` (without dashes) is rejected; `None` if the flag is not in
/// the list of rejected flags (mem_etcd accepts it, or etcd has no such flag).
pub fn rejection_reason(name: &str) -> Option<&'static str> {
    let name = name.strip_prefix("experimental-").unwrap_or(name);
    let reason = match name {
        "wal-dir" => {
            "the log is always in --data-dir; remove the flag. Snapshots can be elsewhere: --snapshot-dir"
        }
        "snapshot-count" => "snapshots are triggered by log size: use --snapshot-log-bytes",
        "logger" | "log-outputs" | "log-rotation-config-json" | "enable-log-rotation" => {
            "log messages are written to standard error: use --log-level and --log-format"
        }
        "config-file" => "there is no configuration file: use flags or ETCD_ variables",
        "auto-tls" | "self-signed-cert-validity" => {
            "mem_etcd does not create certificates; use --cert-file and --key-file"
        }
        "client-cert-file" | "client-key-file" => {
            "mem_etcd does not connect to itself; remove the flag"
        }
        "listen-client-http-urls" => {
            "--listen-client-urls serves gRPC and HTTP; remove the flag, and use --listen-metrics-urls for the HTTP pages"
        }
        "client-cert-allowed-hostname" => {
            "the check of client host names is not implemented yet; remove the flag"
        }
        "cors" | "host-whitelist" | "enable-grpc-gateway" => {
            "there is no JSON gateway; remove the flag"
        }
        "warning-apply-duration" | "warning-unary-request-duration" => {
            "slow requests are not logged; remove the flag, and use /metrics"
        }
        "v2-deprecation" => "there is no v2 store; remove the flag",
        "downgrade-check-time" => "a downgrade has nothing to wait for; remove the flag",
        _ if name.contains("distributed-tracing") => "there is no tracing; remove the flag",
        "enable-pprof" => "there is no profiling endpoint: use perf",
        "metrics" => "/metrics always contains all metrics; remove the flag",
        "socket-reuse-port" | "socket-reuse-address" => {
            "socket options cannot be changed yet; remove the flag"
        }
        "pre-vote" => "members always ask before they begin an election; remove the flag",
        "peer-auto-tls" => {
            "mem_etcd does not create certificates; use --peer-cert-file and --peer-key-file"
        }
        "initial-election-tick-advance" | "raft-read-timeout" | "raft-write-timeout" => {
            "it tunes etcd's Raft, which mem_etcd does not have; remove the flag"
        }
        "initial-corrupt-check" => "use --feature-gates InitialCorruptCheck=true",
        "compact-hash-check-enabled" => "use --feature-gates CompactHashCheck=true",
        _ if name.starts_with("discovery") || name == "proxy" => {
            "clusters are not discovered; use --initial-cluster"
        }
        _ if is_backend_flag(name) => {
            "it tunes etcd's storage engine, which mem_etcd does not have; remove the flag"
        }
        _ => return None,
    };
    Some(reason)
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
    use clap::CommandFactory;

    use super::rejection_reason;
    use crate::config::Config;

    /// All flags of etcd 3.7.3, in the order of its source code.
    const ETCD_FLAGS: &str = "
        data-dir wal-dir listen-peer-urls listen-client-urls listen-client-http-urls
        listen-metrics-urls max-snapshots max-wals name snapshot-count heartbeat-interval
        election-timeout initial-election-tick-advance quota-backend-bytes
        backend-bbolt-freelist-type backend-batch-interval backend-batch-limit max-txn-ops
        max-request-bytes grpc-keepalive-min-time grpc-keepalive-interval
        grpc-keepalive-timeout socket-reuse-port socket-reuse-address max-concurrent-streams
        raft-read-timeout raft-write-timeout initial-advertise-peer-urls
        advertise-client-urls discovery-endpoints discovery-token discovery-dial-timeout
        discovery-request-timeout discovery-keepalive-time discovery-keepalive-timeout
        discovery-insecure-transport discovery-insecure-skip-tls-verify discovery-cert
        discovery-key discovery-cacert discovery-user discovery-password discovery-srv
        discovery-srv-name initial-cluster initial-cluster-token strict-reconfig-check
        pre-vote cert-file key-file client-cert-file client-key-file client-cert-auth
        client-crl-file client-cert-allowed-hostname trusted-ca-file auto-tls peer-cert-file
        peer-key-file peer-client-cert-file peer-client-key-file peer-client-cert-auth
        peer-trusted-ca-file peer-auto-tls self-signed-cert-validity peer-crl-file
        peer-cert-allowed-cn peer-cert-allowed-hostname cipher-suites
        peer-skip-client-san-verification tls-min-version tls-max-version cors
        host-whitelist logger log-outputs log-level log-format enable-log-rotation
        log-rotation-config-json auto-compaction-retention auto-compaction-mode enable-pprof
        metrics enable-distributed-tracing distributed-tracing-address
        distributed-tracing-service-name distributed-tracing-instance-id
        distributed-tracing-sampling-rate auth-token bcrypt-cost auth-token-ttl
        enable-grpc-gateway corrupt-check-time compact-hash-check-time
        compaction-batch-limit compaction-sleep-interval watch-progress-notify-interval
        downgrade-check-time warning-apply-duration warning-unary-request-duration
        memory-mlock bootstrap-defrag-threshold-megabytes max-learners
        snapshot-catchup-entries unsafe-no-fsync force-new-cluster feature-gates config-file
        discovery-fallback initial-cluster-state v2-deprecation version";

    /// Also the page lists each flag.
    #[test]
    fn each_flag_of_etcd_is_accepted_or_rejected_with_a_reason() {
        let mut command = Config::command();
        command.build();
        let page = include_str!("../../../docs/mem_etcd.md");
        let (_, table) = page.split_once("### Flags of etcd").expect("the page has a table");
        let (table, _) = table.split_once("\n## ").expect("another section follows");
        for name in ETCD_FLAGS.split_whitespace() {
            let is_accepted = command.get_arguments().any(|arg| arg.get_long() == Some(name));
            let is_rejected = rejection_reason(name).is_some();
            assert!(is_accepted != is_rejected, "--{name}: accepted is {is_accepted}");
            assert!(table.contains(&format!("`{name}`")), "docs/mem_etcd.md lacks --{name}");
        }
    }

    #[test]
    fn only_rejected_flags_have_a_reason() {
        for name in [
            "discovery-token",
            "peer-auto-tls",
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
