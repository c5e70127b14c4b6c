//! Fills the cache of one resource from one API server after the other.
//!
//! The first watch begins with all objects as the store has them then (`sendInitialEvents`, without a
//! version). Later ones continue at the last version. If the API server does not have that any more, or
//! its events do not follow from what is known, everything is read again.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::time::MissedTickBehavior;

use super::cache::Change;
use super::frame::EventType;
use super::health::{Health, PERIOD};
use super::object::Object;
use super::source::{Received, Source, status_code};
use crate::node_path::client::{Ask, Client, Dialer};
use crate::upstream::{Pool, Server};

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// Seconds after which the API server ends a watch.
const TIMEOUT_SECONDS: u32 = 3600;
/// Time between two attempts after an error: at first, and at most.
const RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);
/// A source without an event or a bookmark for this time is lost. kube-apiserver sends a bookmark each
/// minute.
pub const MAX_SILENCE: Duration = Duration::from_secs(90);
/// A watch from a version that the API server does not have any more.
const EXPIRED: u64 = 410;

/// Time after which a cache that was too large is filled again.
const TOO_LARGE_DELAY: Duration = Duration::from_secs(600);

/// Why nothing is served while there are too many bytes.
#[derive(Debug)]
struct TooLarge {
    max_size: u64,
}

impl std::error::Error for TooLarge {}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TooLarge { max_size } = self;
        let seconds = TOO_LARGE_DELAY.as_secs();
        write!(
            f,
            "the objects and their last changes take more than nodePath.watches.maxReferencedBytes ({max_size}); \
             everything is forwarded, and they are read again every {seconds} s"
        )
    }
}

/// Fills a cache.
pub struct Feed {
    /// The cache, and whether it serves.
    pub health: Health,
    /// The API servers.
    pub pool: Arc<Pool>,
    /// Connects to them.
    pub dialer: Dialer,
}

impl Feed {
    /// Fills the cache until the process ends.
    pub async fn run_forever(mut self) {
        let (mut attempt, mut delay) = (0, RETRY_DELAY);
        let mut last_error = String::new();
        loop {
            let Some(server) = self.server(attempt) else {
                self.health.wait(RETRY_DELAY).await;
                continue;
            };
            let ended = self.follow(&server).await.with_context(|| server.address.clone());
            self.health.interrupted();
            let Err(ended) = ended else {
                delay = RETRY_DELAY;
                continue;
            };
            let error = format!("{ended:#}");
            if error != last_error {
                let resource = self.health.cache.kind.names().resource;
                tracing::warn!(resource, error, "the watch of the node path is interrupted");
                last_error = error;
            }
            attempt += 1;
            self.health.cache.set_too_large(ended.is::<TooLarge>());
            if self.health.cache.is_too_large() {
                self.health.wait(TOO_LARGE_DELAY).await;
                continue;
            }
            self.health.wait(delay).await;
            delay = (delay * 2).min(MAX_RETRY_DELAY);
        }
    }

    /// One of the API servers that are ready.
    fn server(&self, attempt: usize) -> Option<Arc<Server>> {
        let servers = self.pool.servers();
        let ready: Vec<_> = servers.iter().filter(|server| server.is_ready()).collect();
        // The resources are spread over the API servers.
        let at = (attempt + self.health.cache.kind.index()) % ready.len().max(1);
        ready.get(at).map(|server| Arc::clone(server))
    }

    /// Follows the objects at one API server, until its watch ends.
    async fn follow(&mut self, server: &Arc<Server>) -> Result<()> {
        let client = self.dialer.connect(&server.address).await?;
        let version = self.health.cache.lock().version();
        let mut source = match version {
            Some(version) => {
                open(&client, &self.path(&format!("&resourceVersion={version}"))).await?
            }
            None => self.fill(&client).await?,
        };
        self.health.heard();
        self.health.cache.set_too_large(false);
        self.health.cache.lock().set_connected(true);
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                received = source.next() => match received? {
                    Some(received) => self.receive(received)?,
                    None => return Ok(()),
                },
                _ = ticks.tick() => {
                    self.health.judge();
                    if self.health.is_silent() {
                        // The store may have gone back, so that nothing comes after the last version.
                        self.health.cache.clear();
                        bail!("no event or bookmark for {} s", MAX_SILENCE.as_secs());
                    }
                    self.check(server)?;
                }
            }
        }
    }

    /// Fails if the API server is not ready, and another one is.
    fn check(&self, server: &Arc<Server>) -> Result<()> {
        let is_in_use = self.pool.contains(server) && server.is_ready();
        if !is_in_use && self.pool.servers().iter().any(|other| other.is_ready()) {
            bail!("the API server is not ready");
        }
        Ok(())
    }

    fn path(&self, rest: &str) -> String {
        let path = self.health.cache.kind.names().path;
        format!("{path}?watch=true&allowWatchBookmarks=true&timeoutSeconds={TIMEOUT_SECONDS}{rest}")
    }

    /// Reads all objects. Returns the watch that goes on.
    async fn fill(&self, client: &Client) -> Result<Source> {
        let rest = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        let mut source = open(client, &self.path(rest)).await?;
        let (mut objects, mut size) = (Vec::new(), 0);
        loop {
            let next = tokio::time::timeout(MAX_SILENCE, source.next()).await;
            let received = next.context("the initial events do not end")??;
            let Received { event, object } = received.context("the initial events broke off")?;
            match event {
                EventType::Added => {
                    let object = self.parse(object)?;
                    size += object.size();
                    self.check_size(size)?;
                    objects.push(object);
                }
                EventType::Bookmark => {
                    let (marked, cache) = (self.parse(object)?, self.health.cache.clone());
                    // With a million pods it takes seconds, in which other caches must go on.
                    let replace = move || cache.replace(objects, marked);
                    tokio::task::spawn_blocking(replace).await??;
                    return Ok(source);
                }
                EventType::Error => bail!("status {}", status_code(&object)?),
                EventType::Modified | EventType::Deleted => {
                    bail!("an initial event is {event:?}")
                }
            }
        }
    }

    /// Applies an event. After an error the cache is empty.
    fn receive(&mut self, received: Received) -> Result<()> {
        let Received { event, object } = received;
        let applied = match event {
            EventType::Error => match status_code(&object)? {
                EXPIRED => Err(anyhow::anyhow!("the last version is too old")),
                // The version is still valid.
                code => bail!("status {code}"),
            },
            EventType::Bookmark => self.parse(object).and_then(|bookmark| {
                let progress = self.health.cache.lock().progress(bookmark.version());
                Ok(progress?)
            }),
            _ => self.parse(object).and_then(|object| self.apply(Change { event, object })),
        };
        if applied.is_err() {
            self.health.cache.clear();
        }
        self.health.heard();
        applied
    }

    fn apply(&self, change: Change) -> Result<()> {
        let mut cache = self.health.cache.lock();
        let delivered = cache.apply(change, Instant::now())?;
        let size = cache.size();
        drop(cache);
        self.health.delivered(delivered);
        self.check_size(size)
    }

    fn check_size(&self, size: usize) -> Result<()> {
        match self.health.cache.max_size.filter(|_| self.health.cache.exceeds(size)) {
            Some(max_size) => Err(TooLarge { max_size }.into()),
            None => Ok(()),
        }
    }

    fn parse(&self, object: bytes::Bytes) -> Result<Object> {
        Object::parse(self.health.cache.kind, object).context("an object has an unknown encoding")
    }
}

async fn open(client: &Client, path: &str) -> Result<Source> {
    let body = client.watch(Ask { accept: PROTOBUF, ..Ask::get(path) }).await?;
    Ok(Source::new(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_bytes_are_recognized_and_explained() {
        let error = anyhow::Error::from(TooLarge { max_size: 7 });
        let error = Err::<(), _>(error).with_context(|| "10.0.0.1:6443").unwrap_err();
        assert!(error.is::<TooLarge>());
        assert!(!anyhow::anyhow!("status 500").is::<TooLarge>());
        let text = format!("{error:#}");
        assert!(
            text.contains("10.0.0.1:6443") && text.contains("maxReferencedBytes (7)"),
            "{text}"
        );
    }
}
