//! `etcd-proxy report`: what is in recordings, in memory that does not grow with them.

mod collect;
mod events;
mod page;
mod summary;
mod sums;
mod text;

use std::path::Path;

use anyhow::{Context, Result};
use trace::Reader;

use crate::options::ReportOptions;
use collect::Collector;

/// Reads the recordings, prints what is in them, and writes the page.
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

fn read(path: &Path, collector: &mut Collector) -> Result<()> {
    let mut reader = Reader::open(path)?;
    collector.file(reader.head());
    for line in &mut reader {
        collector.line(line?);
    }
    collector.file_ended(reader.is_cut());
    Ok(())
}
