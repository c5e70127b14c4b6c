//! Progress on standard error: a bar if it is a terminal, otherwise a line every 10 s.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Interval of progress lines if standard error is not a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Creates a progress bar, or a spinner if the total is unknown.
pub fn bar(total: Option<u64>) -> ProgressBar {
    let (bar, template) = match total {
        Some(total) => (ProgressBar::new(total), "{msg} {bar:30} {pos}/{len} {per_sec} {eta} left"),
        None => (ProgressBar::new_spinner(), "{msg} {spinner} {pos} {per_sec} {elapsed}"),
    };
    bar.with_style(ProgressStyle::with_template(template).expect("a valid template"))
}

/// If standard error is not a terminal, prints a progress line every [`LINE_INTERVAL`] until
/// the task is aborted.
pub async fn print_lines(name: &'static str, progress: ProgressBar) {
    while !std::io::stderr().is_terminal() {
        tokio::time::sleep(LINE_INTERVAL).await;
        let done = progress.position();
        match progress.length() {
            Some(total) => eprintln!("    {name} {done}/{total}"),
            None => eprintln!("    {name} {done}"),
        }
    }
}
