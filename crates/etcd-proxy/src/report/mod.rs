//! `etcd-proxy report`: analyses traces in bounded memory. `collect` adds up the records,
//! `summary` is the data of the report, and `text` and `page` render it.

mod collect;
mod events;
mod lease_totals;
mod limit_totals;
mod page;
mod shape_and_kind_totals;
mod summary;
mod text;

use std::path::Path;

use anyhow::{Context, Result};
use trace::Reader;

use crate::options::ReportOptions;
use collect::Collector;

/// Reads the traces, prints the report and writes the HTML page.
pub fn run(options: &ReportOptions) -> Result<()> {
    let mut collector = Collector::default();
    for path in &options.files {
        add_trace(path, &mut collector)?;
    }
    let summary = collector.summary();
    if let Some(path) = &options.html {
        std::fs::write(path, page::html(&summary))
            .with_context(|| format!("write {}", path.display()))?;
    }
    options.output.print(&summary, text::render).context("print the report")
}

/// Adds the records of one trace.
fn add_trace(path: &Path, collector: &mut Collector) -> Result<()> {
    let mut reader = Reader::open(path)?;
    collector.start_file(reader.head());
    for record in &mut reader {
        collector.add(record?);
    }
    collector.end_file(reader.is_truncated());
    Ok(())
}
