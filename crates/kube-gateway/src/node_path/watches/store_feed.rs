//! Fills the cache of Leases from the store.
//!
//! All Leases are read at one revision, and then watched from there on. Every second the store is asked for its
//! revision with a linearizable read, and the cache is as old as the last answer that it has reached.
//!
//! After an interruption the watch goes on after the last change that is known, if the store still has it. If there
//! are further changes up to the known revision, it is another history. Then, or if the store has gone back or was
//! compacted, everything is read again.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use etcd_client::TlsFiles;
use tokio::time::MissedTickBehavior;

use super::cache::Inconsistent;
use super::health::{Health, PERIOD};
use super::store_position::{Answers, Position, Replaced};
use super::store_source::{
    Compacted, Keys, PositionAnswer, Report, StoreSource, StoreWatch, Unreadable, marked_bookmark,
};

/// What the store had at an earlier time than this is not served.
pub const MAX_SILENCE: Duration = Duration::from_secs(5);
/// Time between two questions how far the store is.
const ASK_PERIOD: Duration = Duration::from_secs(1);
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
    health: Health,
    /// The URLs of the store.
    endpoints: Vec<String>,
    files: TlsFiles,
    keys: Keys,
    /// The ID of the store from which the Leases were read.
    cluster: u64,
    /// How far the store was when it was asked over this connection.
    answers: Answers,
    /// Whether this watch has shown that there are no other changes up to the known revision.
    is_confirmed: bool,
}

/// A question how far the store is.
struct Question {
    asked: Instant,
    /// What was known then.
    known: Position,
    answer: PositionAnswer,
    is_answered: bool,
}

impl StoreFeed {
    /// Fills the cache with the Leases that the store has below these keys.
    pub fn new(health: Health, endpoints: Vec<String>, files: TlsFiles, keys: Keys) -> StoreFeed {
        let (cluster, answers, is_confirmed) = (0, Answers::default(), false);
        StoreFeed { health, endpoints, files, keys, cluster, answers, is_confirmed }
    }

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
        if followed.as_ref().is_err_and(invalidates) {
            self.health.cache.clear();
        }
        followed
    }

    /// Begins to watch the Leases after what is known. Reads all of them if nothing is.
    async fn open(&mut self, url: &str) -> Result<StoreWatch> {
        let connect = StoreSource::connect(url, &self.files, self.keys.clone());
        let mut source = self.health.judge_during(connect).await?;
        let after = match self.known() {
            Some(known) => self.check(&mut source, known).await?,
            None => self.read(&mut source).await?,
        };
        self.is_confirmed = self.known().is_some_and(|known| known.revision == after);
        self.health.judge_during(source.watch(after)).await
    }

    /// Where the store was when what is known was reported; `None` if nothing is known.
    fn known(&self) -> Option<Position> {
        let revision = self.health.cache.lock().version()?;
        Some(Position { cluster: self.cluster, revision })
    }

    /// Reads all Leases. Returns the revision.
    async fn read(&mut self, source: &mut StoreSource) -> Result<u64> {
        let (Position { cluster, revision }, objects) =
            self.health.judge_during(source.read_all()).await?;
        let marked = marked_bookmark(revision).context("the store is empty")?;
        let cache = self.health.cache.clone();
        // With very many Leases it takes long, in which other caches must go on.
        let replace = tokio::task::spawn_blocking(move || cache.replace(objects, marked));
        self.health.judge_during(replace).await??;
        self.cluster = cluster;
        Ok(revision)
    }

    /// Checks that the store has the history that is known. Returns the revision of the last change: the watch shows
    /// whether there are others up to the known revision.
    async fn check(&mut self, source: &mut StoreSource, known: Position) -> Result<u64> {
        let position = self.health.judge_during(source.position()).await?;
        position.check_after(known)?;
        let Some(last) = self.health.cache.lock().last_change() else { return Ok(0) };
        self.health.judge_during(source.check_has(&last)).await?;
        Ok(last.version)
    }

    async fn receive(&mut self, mut watch: StoreWatch) -> Result<()> {
        self.health.cache.lock().set_connected(true);
        self.answers = Answers::default();
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reported = Instant::now();
        let mut question = self.ask(&watch)?;
        loop {
            tokio::select! {
                report = watch.next() => {
                    self.apply(report?)?;
                    reported = Instant::now();
                    tokio::time::sleep(COLLECT).await;
                }
                position = &mut question.answer, if !question.is_answered => {
                    question.is_answered = true;
                    if !self.note(&question, position?)? {
                        watch.request_progress()?;
                    }
                }
                _ = ticks.tick() => {
                    self.health.judge();
                    if question.is_answered && question.asked.elapsed() >= ASK_PERIOD {
                        question = self.ask(&watch)?;
                    }
                    if self.health.is_silent() && reported.elapsed() > MAX_SILENCE {
                        let seconds = MAX_SILENCE.as_secs();
                        bail!("the watch of the store reports nothing for {seconds} s");
                    }
                }
            }
        }
    }

    fn ask(&self, watch: &StoreWatch) -> Result<Question> {
        let known = self.known().context("nothing was read")?;
        let answer = watch.ask_position();
        Ok(Question { asked: Instant::now(), known, answer, is_answered: false })
    }

    /// Notes an answer. Returns whether the cache certainly has everything that the store had then.
    fn note(&mut self, question: &Question, position: Position) -> Result<bool> {
        position.check_after(question.known)?;
        self.answers.add(question.asked, position.revision, MAX_SILENCE);
        self.judge_answers();
        let is_reached = self.known().is_some_and(|known| known.revision >= position.revision);
        Ok(is_reached && self.is_confirmed)
    }

    fn apply(&mut self, report: Report) -> Result<()> {
        let mut cache = self.health.cache.lock();
        if !report.changes.is_empty() {
            // Changes up to the known revision would have come before.
            cache.apply_stored(report.changes, Instant::now())?;
            self.is_confirmed = true;
        }
        // A member of the store that lags behind reports a lower revision, for a while.
        let known = cache.version();
        if let Some(revision) = report.progress.filter(|it| Some(*it) >= known) {
            cache.progress(revision)?;
            self.is_confirmed = true;
        }
        drop(cache);
        self.judge_answers();
        Ok(())
    }

    /// Notes how old the cache is.
    fn judge_answers(&mut self) {
        let Some(known) = self.known().filter(|_| self.is_confirmed) else { return };
        if let Some(asked) = self.answers.reached(known.revision) {
            self.health.cache.set_unreadable(false);
            self.health.current_at(asked);
        }
    }
}

/// Whether what is known may be wrong after an error.
fn invalidates(error: &anyhow::Error) -> bool {
    error.is::<Unreadable>()
        || error.is::<Compacted>()
        || error.is::<Inconsistent>()
        || error.is::<Replaced>()
}
