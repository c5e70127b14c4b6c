//! `kube-gateway`: a proxy in front of several kube-apiservers. It changes nothing that a client sees,
//! and keeps the load of the API servers even.
//!
//! ```text
//! client ─TLS─▶ front ─▶ forward ─▶ Link ─TLS─▶ kube-apiserver
//!               accept    identity     │
//!               serve     fields       └─ one connection for each client connection
//!
//! upstream: pool ◀─ probe (/readyz, CPU)        balance: moves connections
//! ```
//!
//! # Invariants
//! - A client connection has its own connection to one API server, of the same HTTP version. Requests
//!   of different clients never share a connection.
//! - No header field by which a client could claim another user or address reaches an API server.
//!   The gateway's own fields are added after all removals.
//! - A request is sent again only if it was not sent, or if it reads and has no body.
//! - A watch is ended only between two events, and only if every API server can continue it.
//!
//! # Reading order
//! `run` starts everything. `front` accepts a client and serves HTTP. `forward/request.rs` forwards a
//! request, with the `identity` of the client, over its `forward/link.rs`. `upstream` knows the API
//! servers, and `balance` moves connections between them.

mod balance;
mod config;
mod exchange;
mod forward;
mod front;
mod identity;
mod metrics;
mod options;
mod pages;
mod request_info;
mod run;
mod upstream;

use std::process::ExitCode;

use clap::Parser as _;

use options::Options;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let options = Options::parse();
    match run::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kube-gateway: {error:#}");
            ExitCode::FAILURE
        }
    }
}
