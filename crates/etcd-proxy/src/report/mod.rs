//! `etcd-proxy report`: the analysis of traces, in bounded memory.

mod collect;
mod events;
mod lease_sum;
mod limit_sum;
mod page;
mod summary;
mod sums;
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
        read(path, &mut collector)?;
    }
    let summary = collector.summary();
    if let Some(path) = &options.html {
        std::fs::write(path, page::html(&summary))
            .with_context(|| format!("write {}", path.display()))?;
    }
    options.output.print(&summary, text::render).context("print the report")
}

/// Adds the records of one trace.
fn read(path: &Path, collector: &mut Collector) -> Result<()> {
    let mut reader = Reader::open(path)?;
    collector.start_file(reader.head());
    for record in &mut reader {
        collector.add(record?);
    }
    collector.end_file(reader.is_truncated());
    Ok(())
}
