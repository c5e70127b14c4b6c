//! Examines one API server: its version, its flags, and how it stores Leases.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

use super::flags::{self, Flags};
use super::knowledge::Examined;
use super::reason::{Reason, Rule};
use super::shared::Shared;
use super::stored;
use crate::node_path::client::{Ask, Busy, Client, expect_status};

/// Time between two examinations over a connection. A new process has no old connections, and the
/// flags of a process do not change: this finds only what the store or an operator changed.
const PERIOD: Duration = Duration::from_secs(10);
/// Time between two attempts.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// Time between two attempts if an API server is busy.
const BUSY_DELAY: Duration = Duration::from_secs(1);
/// For how long an API server that is too busy for a further examination counts as examined.
const MAX_AGE: Duration = Duration::from_secs(60);
/// The page with the flags as JSON. Its text has a random format, so that nobody parses it.
const FLAGZ_JSON: &str = "application/json;v=v1beta1;g=config.k8s.io;as=Flagz";
/// The minor versions of Kubernetes 1 whose admission was examined. Another one may have
/// further kinds of objects that see a renewal.
const MINOR_VERSIONS: [&str; 1] = ["37"];

/// Examines an API server until it leaves the pool.
pub async fn examine_forever(shared: &Shared, server: &str) {
    while shared.is_in_pool(server) {
        if let Err(error) = examine_over_connection(shared, server).await {
            let failed = Examined::Failed(format!("{error:#}"));
            shared.change(|knowledge| knowledge.examined(server, failed));
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
    shared.change(|knowledge| knowledge.forget(server));
}

/// Examines an API server over one connection, until it fails, ends or the server leaves the pool.
async fn examine_over_connection(shared: &Shared, server: &str) -> Result<()> {
    let client = shared.dialer.connect(server).await.context("connect")?;
    tokio::select! {
        biased;
        () = client.ended() => anyhow::bail!("the connection ended; not examined again yet"),
        examined = examine_repeatedly(shared, server, &client) => examined,
    }
}

/// A connection shows that the process is the same, so a busy API server is not doubted at once: its clients would go
/// to it with everything that the gateway has served, and it would stay busy.
async fn examine_repeatedly(shared: &Shared, server: &str, client: &Client) -> Result<()> {
    let mut last = None;
    while shared.is_in_pool(server) {
        let started = Instant::now();
        let pause = match examine(shared, server, client).await {
            Ok(examined) => {
                last = Some(started);
                shared.change(|knowledge| knowledge.examined(server, examined));
                PERIOD
            }
            Err(error) if error.is::<Busy>() && last.is_some_and(|it| it.elapsed() < MAX_AGE) => {
                tracing::debug!(server, error = format!("{error:#}"), "too busy to be examined");
                BUSY_DELAY
            }
            Err(error) => return Err(error),
        };
        tokio::time::sleep(pause).await;
    }
    Ok(())
}

async fn examine(shared: &Shared, server: &str, client: &Client) -> Result<Examined> {
    let version: Value = serde_json::from_slice(&client.get("/version").await?)?;
    let text = |field: &str| version[field].as_str().unwrap_or_default().to_owned();
    let (major, minor, version) = (text("major"), text("minor"), text("gitVersion"));
    let mut reasons = flags::reasons(server, &flags(client).await?, &shared.expected);
    if major != "1" || !MINOR_VERSIONS.contains(&minor.trim_end_matches('+')) {
        let object = format!("{server}: version {version}, expected Kubernetes 1.37");
        reasons.push(Reason::new(Rule::Version, object));
    }
    if shared.renewals && matters(&reasons, shared.lease_reads) {
        match stored::check(client, &shared.store).await {
            Ok(()) => {}
            Err(error) if error.is::<Busy>() => return Err(error),
            Err(error) => {
                reasons.push(Reason::new(Rule::Storage, format!("{server}: {error:#}")));
            }
        }
    }
    Ok(Examined::Known(reasons))
}

/// Whether it matters how an API server stores Leases, because something may be served. What one with encryption
/// or another format wrote, the others could not read.
fn matters(reasons: &[Reason], lease_reads: bool) -> bool {
    let allows = |forbids: fn(Rule) -> bool| !reasons.iter().any(|reason| forbids(reason.rule));
    allows(Rule::forbids_renewals) || (lease_reads && allows(Rule::forbids_lease_reads))
}

async fn flags(client: &Client) -> Result<Flags> {
    #[derive(Deserialize)]
    struct Flagz {
        flags: Flags,
    }
    let path = "/flagz";
    let (code, body) = client.send(Ask { accept: FLAGZ_JSON, ..Ask::get(path) }).await?;
    expect_status(path, http::StatusCode::OK, code)?;
    let flagz: Flagz = serde_json::from_slice(&body).context("parse /flagz")?;
    Ok(flagz.flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_served_before_a_lease_was_stored() {
        for rule in Rule::ALL {
            let reasons = [Reason::new(rule, "x")];
            assert_eq!(matters(&reasons, false), !rule.forbids_renewals(), "{rule:?}");
            let serves = !rule.forbids_renewals() || !rule.forbids_lease_reads();
            assert_eq!(matters(&reasons, true), serves, "{rule:?}");
        }
        // They are written in no API server with another format.
        for rule in [Rule::Encryption, Rule::Storage] {
            assert!(!matters(&[Reason::new(rule, "x")], true));
        }
    }
}
