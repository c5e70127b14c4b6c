//! Fills the cache of Leases from the store.
//!
//! All Leases are read at one revision, and then watched from there on. After an interruption the watch goes
//! on at the last revision. If the store was compacted since, or its changes do not follow from what is known,
//! everything is read again.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use etcd_client::TlsFiles;
use tokio::time::MissedTickBehavior;

use super::cache::Inconsistent;
use super::health::{Health, PERIOD};
use super::store_source::{
    Compacted, Keys, Report, StoreSource, StoreWatch, Unreadable, marked_bookmark,
};

/// A store that reports nothing for this time is lost. It is asked every second.
pub const MAX_SILENCE: Duration = Duration::from_secs(5);
const PROGRESS_PERIOD: Duration = Duration::from_secs(1);
/// Time in which further changes are collected, so that clients get many at once. Kubelets renew their Leases
/// every 10 s, and controllers wait for 40 s.
const COLLECT: Duration = Duration::from_millis(20);
/// Time between two attempts after an error: at first, and at most.
const RETRY_DELAY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Time after which the Leases are read again if one of them has an unknown form, or the store refuses to show
/// them.
const UNREADABLE_DELAY: Duration = Duration::from_secs(30);

/// Fills the cache of Leases.
pub struct StoreFeed {
    /// The cache, and whether it serves.
    pub health: Health,
    /// The URLs of the store.
    pub endpoints: Vec<String>,
    /// The files of the TLS configuration.
    pub files: TlsFiles,
    /// The keys of the Leases.
    pub keys: Keys,
    /// The revision of the store, if it was lower than the known one when it last reported.
    pub behind: Option<u64>,
}

impl StoreFeed {
    /// Fills the cache until the process ends.
    pub async fn run_forever(mut self) {
        let (mut delay, mut last_error) = (RETRY_DELAY.0, String::new());
        for url in self.endpoints.clone().iter().cycle() {
            let started = Instant::now();
            let Err(ended) = self.follow(url).await.with_context(|| url.clone()) else { continue };
            self.health.interrupted();
            let is_unreadable = ended.is::<Unreadable>();
            self.health.cache.set_unreadable(is_unreadable);
            let error = format!("{ended:#}");
            if error != last_error {
                tracing::warn!(resource = "leases", error, "the watch of the store is interrupted");
                last_error = error;
            }
            if started.elapsed() > RETRY_DELAY.1 {
                delay = RETRY_DELAY.0;
            }
            self.health.wait(if is_unreadable { UNREADABLE_DELAY } else { delay }).await;
            delay = (delay * 2).min(RETRY_DELAY.1);
        }
    }

    /// Follows the Leases at one endpoint until an error. If what is known may be wrong, the cache is empty then.
    async fn follow(&mut self, url: &str) -> Result<()> {
        let followed = match self.open(url).await {
            Ok(watch) => self.receive(watch).await,
            Err(error) => Err(error),
        };
        if let Err(error) = &followed
            && (error.is::<Unreadable>() || error.is::<Compacted>() || error.is::<Inconsistent>())
        {
            self.health.cache.lock().clear();
        }
        followed
    }

    /// Reads all Leases if none are known, and begins to watch them.
    async fn open(&mut self, url: &str) -> Result<StoreWatch> {
        let connect = StoreSource::connect(url, &self.files, self.keys.clone());
        let mut source = self.health.judge_during(connect).await?;
        let known = self.health.cache.lock().version();
        let version = match known {
            Some(version) => version,
            None => {
                let (version, objects) = self.health.judge_during(source.read_all()).await?;
                let marked = marked_bookmark(version).context("the store is empty")?;
                self.health.cache.lock().replace(objects, marked)?;
                version
            }
        };
        self.health.judge_during(source.watch(version)).await
    }

    async fn receive(&mut self, mut watch: StoreWatch) -> Result<()> {
        watch.request_progress()?;
        self.health.cache.lock().set_connected(true);
        self.behind = None;
        let mut requested = Instant::now();
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let opened = Instant::now();
        loop {
            tokio::select! {
                report = watch.next() => {
                    self.apply(report?)?;
                    tokio::time::sleep(COLLECT).await;
                }
                _ = ticks.tick() => {
                    self.health.judge();
                    if requested.elapsed() >= PROGRESS_PERIOD {
                        requested = Instant::now();
                        watch.request_progress()?;
                    }
                    if opened.elapsed() > MAX_SILENCE && self.health.is_silent() {
                        bail!(self.explain_silence());
                    }
                }
            }
        }
    }

    /// Says why the store is lost. If it has gone back, the cache is empty then: nothing would come after the last
    /// revision.
    fn explain_silence(&mut self) -> String {
        let seconds = MAX_SILENCE.as_secs();
        match std::mem::take(&mut self.behind) {
            None => format!("the store reports nothing for {seconds} s"),
            Some(revision) => {
                self.health.cache.lock().clear();
                format!(
                    "the store has only revision {revision} since {seconds} s, and had a higher one"
                )
            }
        }
    }

    fn apply(&mut self, report: Report) -> Result<()> {
        let mut cache = self.health.cache.lock();
        let mut has_news = !report.changes.is_empty();
        if has_news {
            cache.apply_stored(report.changes, Instant::now())?;
        }
        let known = cache.version();
        // A member of the store that lags behind reports a lower revision, for a while.
        self.behind = report.progress.filter(|it| !has_news && Some(*it) < known);
        if let Some(revision) = report.progress.filter(|it| Some(*it) >= known) {
            cache.progress(revision)?;
            has_news = true;
        }
        drop(cache);
        if has_news {
            self.health.cache.set_unreadable(false);
            self.health.heard();
        }
        Ok(())
    }
}
