//! Watchers that count their events.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use etcdpb::rpc::watch_request::RequestUnion;
use etcdpb::rpc::{WatchCreateRequest, WatchRequest};

use crate::connection::{Connection, Failure, frame};
use crate::keys::{PREFIX, PREFIX_END};
use crate::partial_response::WatchEvents;

const WATCH: &str = "/etcdserverpb.Watch/Watch";
/// After the last write, how long to wait for the next event.
const EVENT_TIMEOUT: Duration = Duration::from_secs(10);

/// Watchers of the whole key space.
pub struct Watchers {
    /// Number of received events by watcher.
    events: Rc<RefCell<Vec<u64>>>,
}

impl Watchers {
    /// Creates `count` watchers, with one stream per connection.
    pub async fn start(connections: &[Connection], count: usize) -> Result<Watchers> {
        let events = Rc::new(RefCell::new(vec![0; count]));
        for (index, connection) in connections.iter().enumerate() {
            let indices: Vec<usize> = (index..count).step_by(connections.len()).collect();
            let started = watch(connection.clone(), indices, events.clone()).await;
            started.map_err(|Failure(reason)| anyhow!("watch: {reason}"))?;
        }
        Ok(Watchers { events })
    }

    /// Number of events so far, over all watchers.
    pub fn delivered(&self) -> u64 {
        self.events.borrow().iter().sum()
    }

    /// Waits until every watcher has received `writes` events. Returns false if no event
    /// arrives for [`EVENT_TIMEOUT`].
    pub async fn drain(&self, writes: u64) -> bool {
        let (mut delivered, mut since) = (self.delivered(), Instant::now());
        while since.elapsed() < EVENT_TIMEOUT {
            if self.events.borrow().iter().all(|events| *events >= writes) {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
            if self.delivered() > delivered {
                (delivered, since) = (self.delivered(), Instant::now());
            }
        }
        false
    }
}

/// Creates the watchers with these indices on one stream.
async fn watch(
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
        requests.send_data(frame(&create(index)), false)?;
    }
    for _ in &indices {
        let created = responses.next().await?.is_some_and(|r| r.created && !r.canceled);
        if !created {
            return Err(Failure("the watch was not created".into()));
        }
    }
    tokio::task::spawn_local(async move {
        // The task ends with the connection. Missing events then reduce the count.
        let _requests = requests;
        while let Ok(Some(response)) = responses.next().await {
            events.borrow_mut()[response.watch_id as usize - 1] += response.events.len() as u64;
        }
    });
    Ok(())
}
