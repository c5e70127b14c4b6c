//! `mem_etcd`: an etcd for Kubernetes that keeps its keys in memory.
//!
//! Reading order: `config` and `cluster_flags` (flags), `server` (startup and shutdown), `listen`
//! (connections), `credentials` (passwords, tokens), `api` (gRPC services; the handler of Put is
//! in `api/kv.rs`), `http` (health, version and metrics pages), `auto_compaction`, `command` (subcommands such as `mem_etcd check`).
//! The store itself is in the crate `pipeline`.

mod api;
mod auto_compaction;
mod client_routes;
mod cluster_flags;
mod command;
mod config;
mod credentials;
mod etcd_flags;
mod feature_gates;
mod go_duration;
mod host;
mod http;
mod listen;
mod memory;
mod metrics;
mod paged_reads;
mod permissions;
mod server;
mod shutdown;
mod wal_mode;

use std::process::ExitCode;

use config::Config;

fn main() -> ExitCode {
    abort_on_panic::install();
    let args: Vec<String> = std::env::args().collect();
    if command::is_subcommand(&args) {
        return command::run(args);
    }
    let config = match Config::from_args(args) {
        Ok(config) => config,
        Err(exit) => return exit.report(),
    };
    config.init_logging();
    config.warn_of_unknown_environment();
    match server::run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mem_etcd: {error:#}");
            ExitCode::FAILURE
        }
    }
}
