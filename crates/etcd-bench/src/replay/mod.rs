//! `etcd-bench replay`: sends the requests of an `etcd-proxy` trace to a server, in the recorded
//! order and at the recorded times, and compares the responses with the recorded ones.
//!
//! # Order
//! Requests start in the recorded order, at their recorded times divided by `--speed`. A
//! request waits for every call that had ended in the trace before the request started, so it
//! reads the recorded state even with `--speed max`. Calls that overlapped in the trace may
//! overlap in the replay, unless they are ordered by the same key (`call::ordering_key`).
//!
//! # Translation
//! The revisions and lease IDs of the server differ from those in the trace. [`revisions`]
//! translates them.
//!
//! # Reading order
//! `dispatch` reads the trace and starts calls (`call`) and streams (`streams`). `state`
//! contains the order of the calls. `convert` encodes the messages. `translations` derives the
//! translation of revisions from responses, and `compare` compares responses. `tally` collects
//! the totals, and `report` prints them.

mod call;
mod compare;
mod convert;
mod dispatch;
mod options;
mod report;
mod revisions;
mod state;
mod streams;
mod tally;
mod timed_record;
mod translations;

use anyhow::{Context, Result};
use trace::Reader;

use crate::load::Load;
use dispatch::Dispatcher;
pub use options::ReplayOptions;
pub use report::ReplayReport;

/// Replays a trace and returns the report.
pub async fn run(options: &ReplayOptions, load: &Load) -> Result<ReplayReport> {
    let reader = Reader::open(&options.file).context("open the trace")?;
    let mut dispatcher = Dispatcher::new(load, options.speed);
    dispatcher.replay(reader).await?;
    Ok(dispatcher.finish(options).await)
}
