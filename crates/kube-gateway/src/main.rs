//! `kube-gateway`: a proxy in front of several kube-apiservers. It changes nothing that a client sees,
//! keeps the load of the API servers even, and protects them from LISTs and from too many requests.
//!
//! ```text
//! client ─TLS─▶ front ─▶ forward ──TLS─▶ kube-apiserver
//!               accept    request     one connection for each client connection
//!               serve     identity
//!
//! upstream: pool ◀─ probe (/readyz, CPU)        balance: moves connections
//! protect:  throttle and lists before a request is sent, buffers behind it
//! node_path: serves renewals of node Leases from the store, and watches of kubelets from a cache
//! ```
//!
//! # Invariants
//! - A client connection has its own connection to one API server, of the same HTTP version. Requests
//!   of different clients never share a connection.
//! - No header field by which a client could claim another user or address reaches an API server.
//!   The gateway's own fields are added after all removals.
//! - A request is sent again only if the API server did not process it, or if it reads and has no body.
//! - A watch is ended only between two events, and only if every API server can continue it.
//! - Leases and status of nodes, reads of one object, and users in `system:masters` never wait behind
//!   LISTs.
//! - What clients choose freely (User-Agent, namespaces, tokens) takes bounded memory.
//!
//! # Reading order
//! `run` starts everything. `front` accepts a client. `forward/request.rs` judges a request and
//! prepares it, with the `identity` of the client; `forward/http2` and `forward/http1` send it and pass
//! the answer on. `upstream` knows the API servers, and `balance` moves connections between them. `protect` has the limits, `reload` applies
//! a changed configuration, and `control` serves `kube-gateway throttle`.

mod balance;
mod config;
mod control;
mod exchange;
mod forward;
mod front;
mod http1;
mod identity;
mod metrics;
mod node_path;
mod options;
mod pages;
mod protect;
mod reload;
mod request_info;
mod run;
mod turns;
mod upstream;

use std::process::ExitCode;

use clap::Parser as _;

use options::{Command, CommandLine};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    abort_on_panic::install();
    let line = CommandLine::parse();
    let result = match (&line.command, &line.options) {
        (Some(Command::Throttle(command)), _) => control::run(command),
        (None, Some(options)) => run::run(options),
        (None, None) => unreachable!("without a command, clap requires --config"),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kube-gateway: {error:#}");
            ExitCode::FAILURE
        }
    }
}
