//! `kube-gateway`: a proxy in front of several kube-apiservers. It changes nothing that a client sees,
//! keeps the load of the API servers even, and protects them from LISTs and from too many requests.
//!
//! ```text
//! client ─TLS─▶ front ─▶ forward ─▶ Link ─TLS─▶ kube-apiserver
//!               accept    identity     │
//!               serve     fields       └─ one connection for each client connection
//!
//! upstream: pool ◀─ probe (/readyz, CPU)        balance: moves connections
//! protect:  throttle and lists before the Link, buffers behind it
//! ```
//!
//! # Invariants
//! - A client connection has its own connection to one API server, of the same HTTP version. Requests
//!   of different clients never share a connection.
//! - No header field by which a client could claim another user or address reaches an API server.
//!   The gateway's own fields are added after all removals.
//! - A request is sent again only if it was not sent, or if it reads and has no body.
//! - A watch is ended only between two events, and only if every API server can continue it.
//! - Leases and status of nodes, reads of one object, and users in `system:masters` never wait behind
//!   LISTs.
//! - What clients choose freely (User-Agent, namespaces, tokens) takes bounded memory.
//!
//! # Reading order
//! `run` starts everything. `front` accepts a client and serves HTTP. `forward/request.rs` forwards a
//! request, with the `identity` of the client, over its `forward/link.rs`. `upstream` knows the API
//! servers, and `balance` moves connections between them. `protect` has the limits, `reload` applies
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
mod options;
mod pages;
mod protect;
mod reload;
mod request_info;
mod run;
mod upstream;

use std::process::ExitCode;

use clap::Parser as _;

use options::{Command, CommandLine};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
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
