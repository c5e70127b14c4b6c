//! One watch over all its restarts, as client-go's reflector keeps it.

use std::time::{Duration, Instant};

use rand::RngExt as _;

use crate::api::{self, Change, EventSplitter, Malformed, WatchedEvent};
use crate::client::WatchEnd;
use crate::sim::{Existing, NodeChange, PodChange};

use super::resource::Resource;

/// The delay of client-go's reflectors after a failed attempt. It doubles with each one, and is
/// prolonged by a random share.
const FIRST_DELAY: Duration = Duration::from_millis(800);
const LAST_DELAY: Duration = Duration::from_secs(30);
/// The time within which the end of a watch without an event is a failure.
const SHORT: Duration = Duration::from_secs(1);
/// The version that a watch was to begin with does not exist any more.
const GONE: u16 = 410;

/// What the simulation learns from a watch.
#[derive(Debug)]
pub enum Seen {
    /// A change of a pod.
    Pod(PodChange),
    /// A change of a node.
    Node(NodeChange),
    /// An object that exists.
    Existing(Existing),
    /// The ConfigMap or Secret that is watched does not change.
    Immutable,
}

/// The state of a watch.
pub struct Reflector {
    resource: Resource,
    /// Whether the simulation needs the objects.
    is_used: bool,
    /// Up to which version everything was seen; `None` before the state is complete.
    version: Option<u64>,
    splitter: EventSplitter,
    /// The end that an event announced.
    error: Option<u16>,
    /// Whether the server sent something that is no event. The rest of the watch is ignored.
    is_broken: bool,
    began: Instant,
    events: u64,
    failures: u32,
}

impl Reflector {
    /// A watch that was not opened yet. The simulation gets its objects if `is_used`.
    pub fn new(resource: Resource, is_used: bool) -> Reflector {
        Reflector {
            resource,
            is_used,
            version: None,
            splitter: EventSplitter::default(),
            error: None,
            is_broken: false,
            began: Instant::now(),
            events: 0,
            failures: 0,
        }
    }

    /// What is watched.
    pub fn resource(&self) -> Resource {
        self.resource
    }

    /// Opens the watch. Returns the version at which it begins, and what the simulation learns.
    pub fn open(&mut self, now: Instant) -> (Option<u64>, Option<Seen>) {
        self.splitter = EventSplitter::default();
        (self.began, self.events, self.error) = (now, 0, None);
        self.is_broken = false;
        let begins = self.is_used && self.version.is_none();
        let seen = match self.resource {
            Resource::Pods => Some(Seen::Pod(PodChange::Began)),
            Resource::Nodes => Some(Seen::Node(NodeChange::Began)),
            _ => None,
        };
        (self.version, seen.filter(|_| begins))
    }

    /// Handles a part of the body. Returns what the simulation learns, and the number of events.
    ///
    /// # Errors
    /// If the server sent something that is no event. It is reported once for each watch.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(Vec<Seen>, u64), Malformed> {
        if self.is_broken {
            return Ok((Vec::new(), 0));
        }
        let mut splitter = std::mem::take(&mut self.splitter);
        let (mut seen, before) = (Vec::new(), self.events);
        let result = splitter.split(bytes, &mut |event| self.handle(event, &mut seen));
        self.splitter = splitter;
        self.is_broken = result.is_err();
        result.map(|()| (seen, self.events - before))
    }

    fn handle(&mut self, event: WatchedEvent<'_>, seen: &mut Vec<Seen>) {
        self.events += 1;
        match event {
            WatchedEvent::Object(change, object) if self.is_used => {
                seen.extend(self.object(change, object));
            }
            WatchedEvent::Object(..) => {}
            WatchedEvent::Bookmark { version, ends_initial_events } => {
                let is_complete = self.version.is_some();
                if !is_complete && !ends_initial_events {
                    return;
                }
                self.version = Some(version);
                self.failures = 0;
                if !is_complete && self.is_used {
                    seen.extend(match self.resource {
                        Resource::Pods => Some(Seen::Pod(PodChange::Synced)),
                        Resource::Nodes => Some(Seen::Node(NodeChange::Synced)),
                        Resource::Leases | Resource::CsiNodes => {
                            Some(Seen::Existing(Existing::Complete))
                        }
                        _ => None,
                    });
                }
            }
            WatchedEvent::Failed(code) => self.error = Some(code as u16),
        }
    }

    fn object(&mut self, change: Change, object: &[u8]) -> Option<Seen> {
        let is_deleted = change == Change::Deleted;
        let (seen, version) = match self.resource {
            Resource::Pods => {
                let pod: Box<api::Pod> = Box::new(api::decode(object)?);
                let version = pod.metadata.as_ref()?.resource_version.parse::<u64>();
                let change = if is_deleted { PodChange::Deleted(pod) } else { PodChange::Set(pod) };
                (Seen::Pod(change), version)
            }
            Resource::Nodes => {
                let node: Box<api::Node> = Box::new(api::decode(object)?);
                let version = node.metadata.as_ref()?.resource_version.parse::<u64>();
                let change =
                    if is_deleted { NodeChange::Deleted(node) } else { NodeChange::Set(node) };
                (Seen::Node(change), version)
            }
            // The state with which these watches begin is all that is read of them.
            Resource::Leases => return Some(Seen::Existing(Existing::Lease(object.into()))),
            Resource::CsiNodes => {
                let metadata = api::decode::<api::CsiNode>(object)?.metadata?;
                return Some(Seen::Existing(Existing::CsiNode(Box::new(metadata))));
            }
            Resource::ConfigMaps => {
                let is_immutable = api::decode::<api::ConfigMap>(object)?.immutable;
                return (is_immutable == Some(true)).then_some(Seen::Immutable);
            }
            Resource::Secrets => {
                let is_immutable = api::decode::<api::Secret>(object)?.immutable;
                return (is_immutable == Some(true)).then_some(Seen::Immutable);
            }
            _ => return None,
        };
        // Objects of the state with which a watch begins may be older than others.
        if let (Some(known), Ok(version)) = (&mut self.version, version) {
            *known = version.max(*known);
        }
        Some(seen)
    }

    /// Handles the end of the watch. Returns the delay after which it is opened again.
    pub fn ended(&mut self, end: WatchEnd, now: Instant) -> Duration {
        let status = self.error.or(end.status);
        if status == Some(GONE) {
            self.version = None;
        }
        let lasted = now.duration_since(self.began) >= SHORT || self.events > 0;
        if status == Some(200) && lasted {
            return Duration::ZERO;
        }
        let delay = FIRST_DELAY.saturating_mul(1 << self.failures.min(10)).min(LAST_DELAY);
        self.failures += 1;
        let asked = Duration::from_secs(end.retry_after.unwrap_or_default().into());
        delay.mul_f64(1.0 + rand::rng().random_range(0.0..1.0)).max(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(status: u16) -> WatchEnd {
        WatchEnd { status: Some(status), retry_after: None }
    }

    #[test]
    fn a_watch_goes_on_at_once_and_a_failure_waits() {
        let (mut reflector, start) = (Reflector::new(Resource::Nodes, true), Instant::now());
        let (version, seen) = reflector.open(start);
        assert!(version.is_none() && matches!(seen, Some(Seen::Node(NodeChange::Began))));
        let later = start + 2 * SHORT;
        assert_eq!(reflector.ended(end(200), later), Duration::ZERO);
        reflector.open(later);
        assert!(reflector.ended(end(200), later) >= FIRST_DELAY, "too short");
        assert!(reflector.ended(end(500), later + 2 * SHORT) >= 2 * FIRST_DELAY);
        assert!((0..20).all(|_| reflector.ended(WatchEnd::default(), later) <= 2 * LAST_DELAY));
        let asked = WatchEnd { status: Some(429), retry_after: Some(100) };
        assert_eq!(reflector.ended(asked, later), Duration::from_secs(100));
    }

    #[test]
    fn a_version_that_is_gone_is_forgotten() {
        let (mut reflector, now) = (Reflector::new(Resource::Pods, true), Instant::now());
        reflector.version = Some(5);
        assert!(matches!(reflector.open(now), (Some(5), None)));
        reflector.ended(end(410), now);
        assert!(matches!(reflector.open(now), (None, Some(Seen::Pod(PodChange::Began)))));
    }
}
