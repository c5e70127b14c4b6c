//! `etcd-bench replay`: replays a trace of `etcd-proxy` against a store, in the recorded
//! order and with the recorded pauses, and compares the responses.
//!
//! # Order
//! Requests start in the recorded order, at their recorded times divided by `--speed`. A
//! request waits for every call that ended before it started in the trace, so it reads
//! the recorded state even with `--speed max`. Calls that overlapped in the trace may
//! overlap in the replay, unless they have the same key.
//!
//! # Translation
//! The revisions and lease IDs of the store differ from those in the trace. [`revisions`]
//! translates them.
//!
//! # Reading order
//! `dispatch` reads the trace and starts calls (`call`) and streams (`streams`) in the
//! order that `state` defines. `convert` creates the messages. `learn` updates the
//! translation from responses, `compare` compares them, `tally` collects the totals and
//! `report` prints them.

mod call;
mod compare;
mod convert;
mod dispatch;
mod learn;
mod options;
mod report;
mod revisions;
mod state;
mod streams;
mod tally;
mod timed_record;

use anyhow::{Context, Result};
use trace::Reader;

use crate::load::Load;
use dispatch::Dispatcher;
pub use options::ReplayOptions;
pub use report::ReplayReport;

/// Replays a trace.
pub async fn run(options: &ReplayOptions, load: &Load) -> Result<ReplayReport> {
    let reader = Reader::open(&options.file).context("open the trace")?;
    let mut dispatcher = Dispatcher::new(load, options.speed);
    dispatcher.replay(reader).await?;
    Ok(dispatcher.finish(options).await)
}
