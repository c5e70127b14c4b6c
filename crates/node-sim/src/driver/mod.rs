//! Connects the simulation with the API server: links, watches, timers and commands.
//!
//! Everything here runs on one thread. Links are tasks of that thread. They call the driver with answers,
//! and the driver passes these to the simulation and puts the requests that follow into links.
//!
//! # Invariants
//! - The simulation is borrowed only while it handles one input. Nothing waits meanwhile.
//! - A watch is open once at most. What arrives for a watch that was replaced is ignored, because it
//!   has the number of another session.
//!
//! # Reading order
//! `resource`, `reflector` (one watch over all its restarts), `shared_watches`, `tag`, `shared_links`, `wires`
//! (connections of nodes), `dispatch` (the driver), `watches`.

mod dispatch;
mod reflector;
mod resource;
mod shared_links;
mod shared_watches;
mod tag;
mod watches;
mod wires;

pub use dispatch::{Command, Driver, Setup};
