//! `kube-gateway throttle`.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use http::Method;
use output::Output;

use super::client::call;
use super::{Add, Delete, Rules};
use crate::config::{self, Span, ThrottleRule};
use crate::protect::RuleStatus;

/// Commands on the throttle of the running process.
#[derive(Subcommand, Debug)]
pub enum ThrottleCommand {
    /// Limit the requests of clients with a User-Agent, at once. The rule comes before those of the
    /// configuration file and ends with the process.
    Add(AddArguments),
    /// Show all rules, in the order in which they are tried, and what they did.
    List(ListArguments),
    /// Delete a rule that was added.
    #[command(visible_alias = "remove")]
    Delete(DeleteArguments),
}

/// Which process gets the command.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub struct Target {
    /// The configuration file of the process, which names its socket in control.socket.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// The Unix socket of the process.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// Arguments of `throttle add`.
#[derive(Args, Debug)]
pub struct AddArguments {
    #[command(flatten)]
    target: Target,

    /// The product of the User-Agent: its text up to the first / or blank, such as kubelet. A * at
    /// the end stands for any further characters. There is no other wildcard.
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    user_agent: String,

    /// Requests per second of all clients that match, together.
    #[arg(long, value_name = "N", value_parser = qps)]
    qps: f64,

    /// Requests that may come at once [default: --qps, and at least 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    burst: Option<u32>,

    /// The rule ends after this time, such as 10m [default: with the process]
    #[arg(long = "for", value_name = "DURATION")]
    lasts: Option<Span>,
}

/// Arguments of `throttle list`.
#[derive(Args, Debug)]
pub struct ListArguments {
    #[command(flatten)]
    target: Target,

    /// Output format.
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Arguments of `throttle delete`.
#[derive(Args, Debug)]
pub struct DeleteArguments {
    #[command(flatten)]
    target: Target,

    /// The pattern with which the rule was added.
    #[arg(long, value_name = "PATTERN")]
    user_agent: String,
}

/// Parses the pattern of a rule.
fn pattern(text: &str) -> Result<String, String> {
    ThrottleRule { user_agent: text.into(), qps: 1.0, burst: None }.check()?;
    Ok(text.to_owned())
}

/// Parses the rate of a rule.
fn qps(text: &str) -> Result<f64, String> {
    let qps = text.parse::<f64>().map_err(|error| error.to_string())?;
    ThrottleRule { user_agent: "*".into(), qps, burst: None }.check()?;
    Ok(qps)
}

/// Executes a command.
pub fn run(command: &ThrottleCommand) -> Result<()> {
    match command {
        ThrottleCommand::Add(arguments) => {
            let AddArguments { target, user_agent, qps, burst, lasts } = arguments;
            let rule = ThrottleRule { user_agent: user_agent.clone(), qps: *qps, burst: *burst };
            let milliseconds = |span: Span| u64::try_from(span.0.as_millis()).unwrap_or(u64::MAX);
            let add = Add { rule, for_milliseconds: lasts.map(milliseconds) };
            call(&target.socket()?, Method::POST, &add)?;
        }
        ThrottleCommand::List(ListArguments { target, output }) => {
            let answer = call(&target.socket()?, Method::GET, &())?;
            let rules: Rules = serde_json::from_slice(&answer).context("parse the answer")?;
            output.print(&rules, |rules| table(&rules.rules))?;
        }
        ThrottleCommand::Delete(DeleteArguments { target, user_agent }) => {
            let delete = Delete { user_agent: user_agent.clone() };
            call(&target.socket()?, Method::DELETE, &delete)?;
        }
    }
    Ok(())
}

impl Target {
    fn socket(&self) -> Result<PathBuf> {
        if let Some(socket) = &self.socket {
            return Ok(socket.clone());
        }
        let file = self.config.as_ref().context("name the process by --config or --socket")?;
        let configuration = config::load(file)?;
        configuration.control.socket.with_context(|| {
            format!("{} has no control.socket; set it and start kube-gateway again", file.display())
        })
    }
}

fn table(rules: &[RuleStatus]) -> String {
    let head = ["USER-AGENT", "QPS", "BURST", "SOURCE", "EXPIRES", "PASSED", "REFUSED"];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(rules.iter().map(|status| {
        [
            status.rule.user_agent.clone(),
            status.rule.qps.to_string(),
            status.rule.burst().to_string(),
            status.source.to_string(),
            status.expires_in_seconds.map_or("never".into(), |seconds| format!("{seconds}s")),
            status.passed.to_string(),
            status.refused.to_string(),
        ]
    }));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..head.len()).filter_map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protect::Source;

    #[test]
    fn columns_are_aligned() {
        let rule = ThrottleRule { user_agent: "kubectl*".into(), qps: 0.5, burst: None };
        let status = RuleStatus {
            rule,
            source: Source::Command,
            expires_in_seconds: Some(90),
            passed: 7,
            refused: 12,
        };
        let expected = "USER-AGENT  QPS  BURST  SOURCE   EXPIRES  PASSED  REFUSED\n\
                        kubectl*    0.5  1      command  90s      7       12\n";
        assert_eq!(table(&[status]), expected);
    }
}
