//! Watchers that count the events that they receive.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use etcd_client::{Connection, Failure, with_prefix};
use etcdpb::rpc::watch_request::RequestUnion;
use etcdpb::rpc::{WatchCreateRequest, WatchRequest};

use crate::keys::{PREFIX, PREFIX_END};
use crate::partial_response::WatchEvents;

const WATCH: &str = "/etcdserverpb.Watch/Watch";
/// How long to wait for the next event after all writes have ended.
const EVENT_TIMEOUT: Duration = Duration::from_secs(10);

/// Watchers of the whole key space.
pub struct Watchers {
    /// Number of received events of each watcher.
    events: Rc<RefCell<Vec<u64>>>,
}

impl Watchers {
    /// Creates `count` watchers, distributed evenly over the connections. Each connection has
    /// one stream.
    pub async fn start(connections: &[Connection], count: usize) -> Result<Watchers> {
        let events = Rc::new(RefCell::new(vec![0; count]));
        for (index, connection) in connections.iter().enumerate() {
            let indices: Vec<usize> = (index..count).step_by(connections.len()).collect();
            let started = start_stream(connection.clone(), indices, events.clone()).await;
            started.map_err(|Failure(reason)| anyhow!("create the watchers: {reason}"))?;
        }
        Ok(Watchers { events })
    }

    /// Number of events that all watchers together have received so far.
    pub fn received_events(&self) -> u64 {
        self.events.borrow().iter().sum()
    }

    /// Waits until every watcher has received at least `writes` events. Gives up and returns
    /// false when no watcher has received an event for [`EVENT_TIMEOUT`].
    pub async fn wait_for_events(&self, writes: u64) -> bool {
        let (mut received, mut last_event) = (self.received_events(), Instant::now());
        while last_event.elapsed() < EVENT_TIMEOUT {
            if self.events.borrow().iter().all(|events| *events >= writes) {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
            if self.received_events() > received {
                (received, last_event) = (self.received_events(), Instant::now());
            }
        }
        false
    }
}

/// Creates the watchers with these indices on one stream, and starts a task that counts their
/// events. The watch ID of a watcher is its index plus 1.
async fn start_stream(
    connection: Connection,
    indices: Vec<usize>,
    events: Rc<RefCell<Vec<u64>>>,
) -> Result<(), Failure> {
    let create = |index: &usize| WatchRequest {
        request_union: Some(RequestUnion::CreateRequest(WatchCreateRequest {
            key: PREFIX.into(),
            range_end: PREFIX_END.into(),
            watch_id: *index as i64 + 1,
            ..Default::default()
        })),
    };
    let Some((first, rest)) = indices.split_first() else { return Ok(()) };
    let (mut requests, mut responses) =
        connection.start::<WatchEvents>(WATCH, &create(first), false).await?;
    for index in rest {
        requests.send_data(with_prefix(&create(index)), false)?;
    }
    for _ in &indices {
        let created = responses.next().await?.is_some_and(|r| r.created && !r.canceled);
        if !created {
            return Err(Failure("the watch was not created".into()));
        }
    }
    tokio::task::spawn_local(async move {
        // Dropping `requests` would reset the stream. If the connection breaks, the task ends,
        // and the watchers have received too few events.
        let _requests = requests;
        while let Ok(Some(response)) = responses.next().await {
            events.borrow_mut()[response.watch_id as usize - 1] += response.events.len() as u64;
        }
    });
    Ok(())
}
