//! `node-sim`: simulates the kubelets of many nodes against a real kube-apiserver, with kubelet's own
//! requests.
//!
//! ```text
//!                 one thread
//!  ┌──────────────────────────────────────────────┐
//!  │  sim: all nodes and pods, without I/O        │◀─ faults ── pages (HTTP on loopback)
//!  │   ▲ answers, events, time      │ requests    │
//!  │  driver: watches, timers       ▼             │
//!  │  client: links ── http2 ── TLS ──────────────┼──▶ kube-apiserver or kube-gateway
//!  └──────────────────────────────────────────────┘
//! ```
//!
//! A node has one of two forms. A node in *wire* form has a TLS connection with a client certificate of
//! its own and the watches of a kubelet. A node in *shared* form sends the same requests over
//! connections that it shares with others, and sees its pods through one watch of all pods. The
//! simulation treats both alike. It only says that the connection of a node is opened or closed, and the
//! driver chooses the link for each request.
//!
//! # Invariants
//! - The simulation has no I/O, no clock and no global randomness, so tests decide all of it.
//! - A node in shared form has no task, no timer of the runtime and no connection: only its state in a
//!   table and its Lease as bytes. So a million of them fit in memory.
//! - Each request has exactly one outcome, and each activity of a node or pod has at most one request in
//!   flight. Therefore queues are bounded by the number of nodes and pods.
//! - A Lease is renewed with the bytes of the last answer. No field of it is lost that the simulator
//!   does not know.
//!
//! # Differences from kubelet
//! kubelet starts its Lease, its registration and its watches in parallel; here they follow each other. A
//! report of a pod's status contains the complete status, where kubelet sends the difference. A node
//! in shared form watches no ConfigMaps and Secrets, and sends fewer requests if its objects exist when the simulator
//! starts. `docs/node-sim.md` has the complete list.
//!
//! # Reading order
//! `options` and `run` start everything, and `pace` lets the thread rest. `sim` is the core: begin with
//! `sim/mod.rs`. `api` has the objects in protobuf, `client` the connections, `driver` connects both, and `pages` injects
//! faults. `rules` and `selector` are about pods and labels, `kubeconfig` and `certificates` about
//! identities.

mod api;
mod certificates;
mod client;
mod driver;
mod kubeconfig;
mod metrics;
mod options;
mod pace;
mod pages;
mod rules;
mod run;
mod selector;
mod sim;
mod time;

use std::process::ExitCode;

use clap::Parser as _;

use options::Options;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The exit code for flags that contradict each other, as clap has it for invalid ones.
const BAD_USAGE: u8 = 2;

fn main() -> ExitCode {
    abort_on_panic::install();
    let options = Options::parse();
    if let Err(error) = options.check() {
        eprintln!("node-sim: {error:#}");
        return ExitCode::from(BAD_USAGE);
    }
    match run::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("node-sim: {error:#}");
            ExitCode::FAILURE
        }
    }
}
