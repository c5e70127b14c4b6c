//! Renders a report as text.

use std::fmt::Write;

use super::summary::{Latency, Summary};
use trace::Class;

/// Maximum number of rows of a table in the text. The HTML page and the JSON contain all rows.
const MAX_ROWS: usize = 25;

/// A table of the report. Columns of text are left-aligned, columns of numbers right-aligned.
pub struct Table {
    pub title: String,
    pub columns: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
}

impl Table {
    fn new(title: &str, columns: &[&'static str]) -> Self {
        Table { title: title.into(), columns: columns.to_vec(), rows: Vec::new() }
    }
}

/// Renders the report as text.
pub fn render(summary: &Summary) -> String {
    let mut text = summary_lines(summary) + "\n";
    for table in tables(summary) {
        write_table(&mut text, &table);
    }
    text
}

/// The lines above the tables of the report.
pub fn summary_lines(summary: &Summary) -> String {
    let r = &summary.totals;
    let mut text = format!(
        "{} for {}, {:.1} s in {} file{}\n{} calls and {} streams on {} connections; {} of requests, {} of responses\n",
        r.program,
        r.endpoints.join(", "),
        r.seconds,
        r.files,
        if r.files == 1 { "" } else { "s" },
        r.calls,
        r.streams,
        r.connections,
        bytes(r.request_bytes),
        bytes(r.response_bytes),
    );
    if r.missing_records > 0 {
        let _ = writeln!(
            text,
            "{} records are missing: the recorder could not keep up, or stopped recording a connection",
            r.missing_records
        );
    }
    if r.truncated_files > 0 {
        let _ = writeln!(
            text,
            "{} of the files are truncated: the proxy was killed or was still recording",
            r.truncated_files
        );
    }
    if r.counted_as_others > 0 {
        let _ = writeln!(
            text,
            "{} times something was counted under (others), because there are too many different shapes, kinds, limits, watches or errors",
            r.counted_as_others
        );
    }
    text
}

/// All tables of the report.
pub fn tables(summary: &Summary) -> Vec<Table> {
    vec![
        class_table(summary),
        shape_table(summary, "Request shapes", |_| true),
        shape_table(summary, "Request shapes of class other", |class| class == Class::Other),
        kind_table(summary),
        watch_table(summary),
        watch_totals_table(summary),
        lease_table(summary),
        limit_table(summary),
        error_table(summary),
    ]
}

fn class_table(summary: &Summary) -> Table {
    let mut table = Table::new(
        "Requests by class",
        &["class", "count", "share", "shapes", "request bytes", "response bytes"],
    );
    let all: u64 = summary.classes.iter().map(|row| row.count).sum();
    for row in &summary.classes {
        table.rows.push(vec![
            row.class.name().into(),
            row.count.to_string(),
            format!("{:.2} %", 100.0 * row.count as f64 / all.max(1) as f64),
            row.shapes.to_string(),
            bytes(row.request_bytes),
            bytes(row.response_bytes),
        ]);
    }
    table
}

fn shape_table(summary: &Summary, title: &str, contains: impl Fn(Class) -> bool) -> Table {
    let columns = [
        "shape",
        "class",
        "count",
        "comparison false",
        "failed",
        "request bytes",
        "response bytes",
        "p50",
        "p99",
        "kinds",
    ];
    let mut table = Table::new(title, &columns);
    for row in summary.shapes.iter().filter(|row| contains(row.class)) {
        table.rows.push(vec![
            row.shape.clone(),
            row.class.name().into(),
            row.count.to_string(),
            row.not_succeeded.to_string(),
            row.failed.to_string(),
            bytes(row.request_bytes),
            bytes(row.response_bytes),
            micros(row.latency_micros, |latency| latency.p50),
            micros(row.latency_micros, |latency| latency.p99),
            row.kinds.join(" "),
        ]);
    }
    table
}

fn kind_table(summary: &Summary) -> Table {
    let columns = [
        "kind",
        "reads",
        "writes",
        "other",
        "watches",
        "events",
        "request bytes",
        "response bytes",
        "namespaces",
    ];
    let mut table = Table::new("Kinds", &columns);
    for row in &summary.kinds {
        table.rows.push(vec![
            row.kind.clone(),
            row.reads.to_string(),
            row.writes.to_string(),
            row.other.to_string(),
            row.watches.to_string(),
            row.events.to_string(),
            bytes(row.request_bytes),
            bytes(row.response_bytes),
            row.namespaces.to_string(),
        ]);
    }
    table
}

fn watch_table(summary: &Summary) -> Table {
    let columns = ["kind", "span", "created", "events", "distinct events", "fan-out"];
    let mut table = Table::new("Watches", &columns);
    for row in &summary.watches.rows {
        table.rows.push(vec![
            row.kind.clone(),
            row.span.clone(),
            row.created.to_string(),
            row.events.to_string(),
            row.distinct_events.to_string(),
            format!("{:.2}", row.fan_out),
        ]);
    }
    table
}

fn watch_totals_table(summary: &Summary) -> Table {
    let w = &summary.watches;
    item_table(
        "Watch totals",
        &[
            ("streams", w.streams),
            ("created", w.created),
            ("cancelled by the client", w.cancelled_by_client),
            ("cancelled by the server", w.cancelled_by_server),
            ("cancelled because of compaction", w.compacted),
            ("progress requests", w.progress_requests),
            ("progress notifications", w.progress_notifications),
            ("events", w.events),
            ("distinct events", w.distinct_events),
        ],
    )
}

fn lease_table(summary: &Summary) -> Table {
    let l = &summary.leases;
    let mut table = item_table(
        "Leases",
        &[
            ("granted", l.granted),
            ("revoked", l.revoked),
            ("keep-alives", l.keep_alives),
            ("puts with a lease", l.attached_puts),
            ("leases with puts", l.attached_leases),
            ("maximum puts per lease", l.puts_per_lease_max),
        ],
    );
    for (ttl, count) in &l.ttls {
        table.rows.push(vec![format!("granted with a TTL of {ttl} s"), count.to_string()]);
    }
    table
}

/// A table with one number per row.
fn item_table(title: &str, rows: &[(&str, u64)]) -> Table {
    let mut table = Table::new(title, &["item", "count"]);
    table.rows = rows.iter().map(|(name, count)| vec![(*name).into(), count.to_string()]).collect();
    table
}

fn limit_table(summary: &Summary) -> Table {
    let columns =
        ["method", "limit", "ranges", "pairs", "more", "max count", "response bytes", "p50", "p99"];
    let mut table = Table::new("Ranges over several keys, by limit", &columns);
    for row in &summary.limits {
        table.rows.push(vec![
            row.method.clone(),
            if row.limit == 0 { "none".into() } else { row.limit.to_string() },
            row.count.to_string(),
            row.pairs.to_string(),
            row.more.to_string(),
            row.count_max.to_string(),
            bytes(row.response_bytes),
            micros(row.latency_micros, |latency| latency.p50),
            micros(row.latency_micros, |latency| latency.p99),
        ]);
    }
    table
}

fn error_table(summary: &Summary) -> Table {
    let mut table = Table::new("Failed calls and streams", &["method", "error", "count"]);
    for row in &summary.errors {
        table.rows.push(vec![row.method.clone(), row.error.clone(), row.count.to_string()]);
    }
    table
}

fn write_table(text: &mut String, table: &Table) {
    let _ = writeln!(text, "{}", table.title);
    if table.rows.is_empty() {
        let _ = writeln!(text, "  none\n");
        return;
    }
    let widths: Vec<usize> = (0..table.columns.len())
        .map(|n| {
            let cells = table.rows.iter().take(MAX_ROWS).map(|row| row[n].chars().count());
            cells.chain([table.columns[n].len()]).max().unwrap_or(0)
        })
        .collect();
    let mut line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths).enumerate().map(|(n, (cell, width))| {
            let is_text =
                n == 0 || matches!(table.columns[n], "class" | "kinds" | "span" | "error" | "item");
            if is_text { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        let _ = writeln!(text, "  {}", padded.collect::<Vec<_>>().join("  ").trim_end());
    };
    line(table.columns.clone());
    for row in table.rows.iter().take(MAX_ROWS) {
        line(row.iter().map(String::as_str).collect());
    }
    if table.rows.len() > MAX_ROWS {
        let _ = writeln!(
            text,
            "  … and {} more; use --html or -o json to see all",
            table.rows.len() - MAX_ROWS
        );
    }
    text.push('\n');
}

/// Formats a size.
fn bytes(count: u64) -> String {
    match count {
        0..10_240 => format!("{count} B"),
        10_240..10_485_760 => format!("{:.0} KiB", count as f64 / 1024.0),
        _ => format!("{:.1} MiB", count as f64 / 1_048_576.0),
    }
}

/// Formats the percentile that `percentile` selects.
fn micros(latency: Option<Latency>, percentile: impl Fn(Latency) -> u64) -> String {
    latency.map_or_else(|| "–".into(), |latency| format!("{} µs", percentile(latency)))
}
