//! Whether a cache may serve, and what the metrics show of it.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::graph::Graph;
use super::shared::SharedCache;
use crate::metrics::{CacheState, Metrics};
use crate::node_path::permission::Permission;

/// Time between two looks at what forbids to serve.
pub const PERIOD: Duration = Duration::from_millis(100);
/// For how long open watches stay while there is no source.
const MAX_INTERRUPTION: Duration = Duration::from_secs(5);

/// Pods whose references are read again in each period, if there were too many. The cache is locked for about a
/// millisecond.
const PODS_READ: usize = 1000;

/// Decides whether a cache serves.
pub struct Health {
    /// The cache.
    pub cache: Arc<SharedCache>,
    permission: Permission,
    metrics: Arc<Metrics>,
    state: State,
}

/// What is known of the source.
struct State {
    /// A source is lost if that was before this time.
    max_silence: Duration,
    /// When the last event or bookmark arrived, or the time of which the cache has everything.
    heard: Instant,
    /// Since when there is no source.
    interrupted: Option<Instant>,
    /// Whether the log says that pods refer to too many objects.
    is_full: bool,
}

impl State {
    /// Nothing has arrived.
    fn new(max_silence: Duration, now: Instant) -> State {
        State { max_silence, heard: now, interrupted: Some(now), is_full: false }
    }

    /// Whether the cache may be relied on.
    fn is_current(&self, now: Instant) -> bool {
        let since = |time: Instant| now.saturating_duration_since(time);
        since(self.heard) < self.max_silence
            && self.interrupted.is_none_or(|time| since(time) < MAX_INTERRUPTION)
    }
}

impl Health {
    /// A cache without a source. It serves while the permission allows it and its source is not silent.
    pub fn new(
        cache: Arc<SharedCache>,
        permission: Permission,
        metrics: Arc<Metrics>,
        max_silence: Duration,
    ) -> Health {
        Health { cache, permission, metrics, state: State::new(max_silence, Instant::now()) }
    }

    /// Notes that an event or a bookmark has arrived.
    pub fn heard(&mut self) {
        self.state = State { heard: Instant::now(), interrupted: None, ..self.state };
    }

    /// Notes that the cache has everything that its source had at a time.
    pub fn current_at(&mut self, time: Instant) {
        let heard = time.max(self.state.heard);
        self.state = State { heard, interrupted: None, ..self.state };
    }

    /// Notes that there is no source.
    pub fn interrupted(&mut self) {
        self.cache.lock().set_connected(false);
        self.state.interrupted.get_or_insert(Instant::now());
    }

    /// Whether nothing has arrived for too long.
    pub fn is_silent(&self) -> bool {
        self.state.heard.elapsed() > self.state.max_silence
    }

    /// Counts events that were delivered.
    pub fn delivered(&self, events: usize) {
        self.metrics.reads.delivered(events);
    }

    /// Waits, and stops serving if the time is over.
    pub async fn wait(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            tokio::time::sleep(PERIOD.min(time)).await;
            self.judge();
        }
    }

    /// Does some work, and meanwhile stops serving if the time is over.
    pub async fn judge_during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                () = tokio::time::sleep(PERIOD) => self.judge(),
            }
        }
    }

    /// Begins or stops to serve.
    pub fn judge(&mut self) {
        let serves = self.permission.is_allowed() && self.state.is_current(Instant::now());
        let resource = self.cache.kind.names().resource;
        let mut cache = self.cache.lock();
        if cache.is_serving() != serves {
            cache.serve(serves);
            if cache.is_serving() == serves {
                let version = cache.version();
                tracing::info!(resource, serves, version, "cache of the node path");
            }
        }
        cache.read_references(PODS_READ);
        let (watches, objects) = cache.counts();
        self.metrics.reads.set_state(CacheState {
            resource,
            is_serving: cache.is_serving(),
            is_too_large: self.cache.is_too_large(),
            is_unreadable: self.cache.is_unreadable(),
            watches,
            objects,
            bytes: cache.size(),
            references: cache.graph().map(Graph::edges),
        });
        let is_full = cache.graph().is_some_and(|graph| graph.edges().is_none());
        if is_full && !self.state.is_full {
            tracing::warn!(
                "pods refer to too many objects; reads of ConfigMaps and Secrets are forwarded"
            );
        }
        if !is_full && self.state.is_full && cache.graph().is_some() {
            tracing::info!("all references of pods are known again");
        }
        self.state.is_full = is_full;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_current_while_its_source_speaks() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut state = State { interrupted: None, ..State::new(Duration::from_secs(90), start) };
        assert!(state.is_current(at(89)) && !state.is_current(at(90)));
        state.interrupted = Some(at(10));
        assert!(state.is_current(at(14)) && !state.is_current(at(15)));
    }
}
