//! Renders a report as a self-contained HTML page.

use std::fmt::Write;

use super::summary::Summary;
use super::text::{self, Table};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#222}\
h2{margin-top:2.5rem}table{border-collapse:collapse;font-size:13px}\
td,th{padding:.15rem .7rem;text-align:right;border-bottom:1px solid #ddd;vertical-align:top}\
td.t,th.t{text-align:left}td:not(.t){white-space:nowrap}pre{background:#f6f6f6;padding:.7rem}svg text{font:12px system-ui,sans-serif}";
/// Maximum number of bars of a plot.
const MAX_BARS: usize = 15;
const BAR_PIXELS: usize = 22;
const LABEL_PIXELS: usize = 430;
const PLOT_PIXELS: usize = 480;

/// Renders the report as an HTML page.
pub fn html(summary: &Summary) -> String {
    let mut page = String::from("<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">");
    let _ = write!(page, "<title>etcd-proxy report</title><style>{STYLE}</style>");
    let _ = write!(
        page,
        "<h1>Requests to etcd</h1><pre>{}</pre>",
        escape(&text::summary_lines(summary))
    );
    let shapes = summary.shapes.iter().map(|row| (row.shape.clone(), row.count as f64));
    page += &bar_plot("Requests by shape", shapes);
    let kinds = summary.kinds.iter().map(|row| (row.kind.clone(), (row.reads + row.writes) as f64));
    page += &bar_plot("Reads and writes by kind", kinds);
    let mut latencies: Vec<_> = summary
        .shapes
        .iter()
        .filter_map(|row| Some((row.shape.clone(), row.latency_micros?.p99 as f64)))
        .collect();
    latencies.sort_by(|a, b| b.1.total_cmp(&a.1));
    page += &bar_plot("Latency by shape, p99, µs", latencies.into_iter());
    let mut event_counts: Vec<_> =
        summary.watches.rows.iter().map(|row| (row.kind.clone(), row.events as f64)).collect();
    event_counts.sort_by(|a, b| b.1.total_cmp(&a.1));
    page += &bar_plot("Delivered events by kind", event_counts.into_iter());
    for table in text::tables(summary) {
        write_table(&mut page, &table);
    }
    page + "</html>\n"
}

fn write_table(page: &mut String, table: &Table) {
    let is_text = |n: usize| {
        n == 0 || matches!(table.columns[n], "class" | "kinds" | "span" | "error" | "item")
    };
    let class = |n| if is_text(n) { " class=\"t\"" } else { "" };
    let _ = write!(page, "<h2>{}</h2>", escape(&table.title));
    if table.rows.is_empty() {
        page.push_str("<p>None.</p>");
        return;
    }
    page.push_str("<table><tr>");
    for (n, column) in table.columns.iter().enumerate() {
        let _ = write!(page, "<th{}>{}</th>", class(n), escape(column));
    }
    for row in &table.rows {
        page.push_str("</tr>\n<tr>");
        for (n, cell) in row.iter().enumerate() {
            let _ = write!(page, "<td{}>{}</td>", class(n), escape(cell));
        }
    }
    page.push_str("</tr></table>");
}

/// A bar plot of the first [`MAX_BARS`] rows whose value is not 0, in the given order.
fn bar_plot(title: &str, rows: impl Iterator<Item = (String, f64)>) -> String {
    let rows: Vec<_> = rows.filter(|(_, value)| *value > 0.0).take(MAX_BARS).collect();
    let max = rows.iter().map(|(_, value)| *value).fold(1.0, f64::max);
    let (width, height) = (LABEL_PIXELS + PLOT_PIXELS + 90, rows.len() * BAR_PIXELS);
    let mut svg = format!(
        "<h2>{}</h2><svg width=\"{width}\" height=\"{height}\" role=\"img\" xmlns=\"http://www.w3.org/2000/svg\">",
        escape(title)
    );
    for (n, (label, value)) in rows.iter().enumerate() {
        let (y, pixels) = (n * BAR_PIXELS, value / max * PLOT_PIXELS as f64);
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{LABEL_PIXELS}\" y=\"{}\" width=\"{:.1}\" height=\"{}\" fill=\"#4878a8\"/>\
             <text x=\"{:.1}\" y=\"{}\">{value:.0}</text>",
            LABEL_PIXELS - 8,
            y + 15,
            escape(label),
            y + 3,
            pixels.max(1.0),
            BAR_PIXELS - 6,
            LABEL_PIXELS as f64 + pixels + 6.0,
            y + 15,
        );
    }
    svg + "</svg>"
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
