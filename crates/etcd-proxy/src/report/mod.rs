//! `etcd-proxy report`: what is in recordings, in memory that does not grow with them.

mod collect;
mod events;
mod page;
mod summary;
mod text;

use std::io::{ErrorKind, Write};
use std::path::Path;

use anyhow::{Context, Result};
use trace::Reader;

use crate::options::{Output, ReportOptions};
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
    let text = match options.output {
        Output::Json => serde_json::to_string_pretty(&summary)? + "\n",
        Output::Text => text::render(&summary),
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        // Whoever reads has seen enough, as `head` has.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("write the report"),
    }
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
