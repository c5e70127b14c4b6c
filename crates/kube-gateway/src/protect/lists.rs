//! Limits the LISTs in progress at each API server by the predicted bytes of their answers.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Method, Uri};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::predictor::{Prediction, Predictor};
use super::quota::{Claimant, Queued, Quota, Ticket};
use super::shape::Shape;
use super::user_agent;
use crate::config;
use crate::request_info::RequestInfo;

/// Beyond its reservation, an answer gets this share more than it needs, so that it rarely asks.
const GROWTH: u64 = 4;
/// A reservation grows by at least this many bytes.
const MIN_GROWTH: u64 = 64 << 10;
/// Seconds after which a client that was refused may come again, chosen at random.
const RETRY_AFTER: std::ops::RangeInclusive<u32> = 1..=5;

/// What all API servers share: the settings and the predictions.
pub struct Lists {
    settings: ArcSwap<config::Lists>,
    predictor: Mutex<Predictor>,
    hasher: RandomState,
    /// Predicted bytes of answers that came complete.
    predicted: AtomicU64,
    /// Their bytes.
    answered: AtomicU64,
}

/// The LISTs of one API server.
#[derive(Default)]
pub struct ListQueue {
    quota: Mutex<Quota<Waiter>>,
    running: AtomicUsize,
}

/// Who sends a request, as far as a client cannot choose it.
#[derive(Clone, Copy, Debug)]
pub enum Principal<'a> {
    /// The user of a verified certificate.
    User(&'a [u8]),
    /// The network address of a client without one.
    Address(&'a [u8]),
}

/// A LIST that is about to be sent.
#[derive(Clone, Copy, Debug)]
pub struct List {
    shape: Shape,
    claimant: Claimant,
    /// Whether it never waits.
    privileged: bool,
}

struct Waiter {
    list: List,
    /// The bytes of the answer, if they are known.
    known: Option<u64>,
    granted: oneshot::Sender<Reservation>,
}

/// Bytes that are reserved for an answer, until it is dropped.
pub struct Reservation {
    lists: Arc<Lists>,
    queue: Arc<ListQueue>,
    shape: Shape,
    prediction: Prediction,
    bytes: u64,
    /// Whether it had to wait for its turn.
    granted: bool,
    released: bool,
}

/// A LIST must not be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Seconds after which it may be sent again.
    pub retry_after: u32,
}

/// The state of the LISTs of an API server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListStatus {
    /// Reserved bytes.
    pub bytes: u64,
    /// LISTs in progress.
    pub running: usize,
    /// LISTs that wait.
    pub waiting: usize,
}

impl Lists {
    /// Creates the limit.
    pub fn new(settings: config::Lists) -> Lists {
        Lists {
            settings: ArcSwap::from_pointee(settings),
            predictor: Mutex::default(),
            hasher: RandomState::new(),
            predicted: AtomicU64::new(0),
            answered: AtomicU64::new(0),
        }
    }

    /// Replaces the settings. [`ListQueue::dispatch`] applies them to LISTs that wait.
    pub fn configure(&self, settings: config::Lists) {
        self.settings.store(Arc::new(settings));
    }

    /// The predicted and the real bytes of all answers that came complete.
    pub fn totals(&self) -> (u64, u64) {
        (self.predicted.load(Relaxed), self.answered.load(Relaxed))
    }

    /// Whether a request is a LIST that is limited. `privileged` ones are counted but never wait.
    pub fn list_of(
        &self,
        info: &RequestInfo,
        method: &Method,
        uri: &Uri,
        fields: &HeaderMap,
        principal: Principal<'_>,
        privileged: bool,
    ) -> Option<List> {
        if !matches!(info.verb, "list" | "watch") || self.settings.load().max_bytes.0 == 0 {
            return None;
        }
        let shape = Shape::of(info, method, uri, fields, &self.hasher)?;
        let token = fields.get(AUTHORIZATION).map(|value| value.as_bytes());
        let (principal, token) = match principal {
            Principal::User(name) => (self.hasher.hash_one((0, name)), None),
            Principal::Address(address) => (self.hasher.hash_one((1, address)), token),
        };
        let flow = self.hasher.hash_one((user_agent::product(fields), token));
        Some(List { shape, claimant: Claimant { principal, flow }, privileged })
    }

    /// Waits until a LIST may be sent to the API server of `queue`.
    ///
    /// # Errors
    /// If too many wait, or if it waited for too long.
    pub async fn admit(
        self: &Arc<Self>,
        queue: &Arc<ListQueue>,
        list: List,
    ) -> Result<Reservation, Refused> {
        match self.enqueue(queue, list)? {
            Admission::Now(reservation) => Ok(reservation),
            Admission::Waits(waiting) => waiting.granted().await,
        }
    }

    /// Decides whether a LIST may be sent to the API server of `queue` now, or waits.
    ///
    /// # Errors
    /// If too many wait.
    pub fn enqueue(
        self: &Arc<Self>,
        queue: &Arc<ListQueue>,
        list: List,
    ) -> Result<Admission, Refused> {
        self.enqueue_sized(queue, list, None)
    }

    /// As [`Lists::enqueue`], for an answer of which the number of bytes is known.
    ///
    /// # Errors
    /// If too many wait.
    pub fn enqueue_known(
        self: &Arc<Self>,
        queue: &Arc<ListQueue>,
        list: List,
        bytes: u64,
    ) -> Result<Admission, Refused> {
        self.enqueue_sized(queue, list, Some(bytes))
    }

    fn enqueue_sized(
        self: &Arc<Self>,
        queue: &Arc<ListQueue>,
        list: List,
        known: Option<u64>,
    ) -> Result<Admission, Refused> {
        let settings = self.settings.load();
        let limit = settings.max_bytes.0;
        let prediction = self.size(list.shape, known, limit);
        let mut quota = queue.quota.lock();
        if list.privileged || prediction.bytes <= settings.small_bytes.0 {
            quota.take_now(prediction.bytes);
            return Ok(Admission::Now(self.reservation(queue, list.shape, prediction, false)));
        }
        if quota.try_grant(prediction.bytes, limit) {
            return Ok(Admission::Now(self.reservation(queue, list.shape, prediction, true)));
        }
        let (sender, granted) = oneshot::channel();
        let waiter = Waiter { list, known, granted: sender };
        let queued = quota.enqueue(list.claimant, waiter, settings.max_waiting);
        drop(quota);
        match queued {
            Queued::Refused(_) => Err(Refused::new()),
            // The displaced one learns it by the end of its channel.
            Queued::Waits(ticket) | Queued::Displaces(ticket, _) => {
                let (queue, max_wait) = (queue.clone(), settings.max_wait.0);
                Ok(Admission::Waits(Waiting { queue, ticket, granted, max_wait }))
            }
        }
    }

    fn size(&self, shape: Shape, known: Option<u64>, limit: u64) -> Prediction {
        match known {
            Some(bytes) => Prediction { bytes, ratio: 1.0 },
            None => self.predict(shape, limit),
        }
    }

    fn predict(&self, shape: Shape, limit: u64) -> Prediction {
        // A few unknown LISTs fill the limit.
        self.predictor.lock().predict(shape, limit / 4)
    }

    fn reservation(
        self: &Arc<Self>,
        queue: &Arc<ListQueue>,
        shape: Shape,
        prediction: Prediction,
        granted: bool,
    ) -> Reservation {
        queue.running.fetch_add(1, Relaxed);
        Reservation {
            lists: self.clone(),
            queue: queue.clone(),
            shape,
            prediction,
            bytes: prediction.bytes,
            granted,
            released: false,
        }
    }
}

/// Whether a LIST may be sent.
pub enum Admission {
    /// It may be sent now.
    Now(Reservation),
    /// It waits for its turn.
    Waits(Waiting),
}

/// A place in the queue, until it is dropped.
pub struct Waiting {
    queue: Arc<ListQueue>,
    ticket: Ticket,
    granted: oneshot::Receiver<Reservation>,
    /// How long it waits at most.
    max_wait: Duration,
}

impl Waiting {
    /// Waits for the turn.
    ///
    /// # Errors
    /// If it takes too long, or if another one took the place.
    pub async fn granted(mut self) -> Result<Reservation, Refused> {
        if let Ok(granted) = tokio::time::timeout(self.max_wait, &mut self.granted).await {
            return granted.map_err(|_| Refused::new());
        }
        self.queue.quota.lock().remove(self.ticket);
        // It may have been granted since.
        self.granted.try_recv().map_err(|_| Refused::new())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // A reservation that was sent meanwhile is dropped with the channel.
        self.queue.quota.lock().remove(self.ticket);
    }
}

impl ListQueue {
    /// Sends what may be sent now.
    pub fn dispatch(self: &Arc<Self>, lists: &Arc<Lists>) {
        let limit = lists.settings.load().max_bytes.0;
        // Without a limit, everything that still waits goes.
        let limit = if limit == 0 { u64::MAX } else { limit };
        loop {
            let mut quota = self.quota.lock();
            let mut prediction = None;
            let next = quota.next(limit, |waiter| {
                prediction.insert(lists.size(waiter.list.shape, waiter.known, limit)).bytes
            });
            drop(quota);
            let (Some((waiter, _)), Some(prediction)) = (next, prediction) else { return };
            let reservation = lists.reservation(self, waiter.list.shape, prediction, true);
            // If the client has gone, the loop goes on, without a recursion.
            if let Err(mut unused) = waiter.granted.send(reservation) {
                unused.release();
            }
        }
    }

    /// The current state.
    pub fn status(&self) -> ListStatus {
        let quota = self.quota.lock();
        ListStatus {
            bytes: quota.in_use(),
            running: self.running.load(Relaxed),
            waiting: quota.waiting(),
        }
    }
}

impl Refused {
    fn new() -> Refused {
        Refused { retry_after: rand::random_range(RETRY_AFTER) }
    }
}

impl Reservation {
    /// The expected ratio of the sizes of a compressed answer.
    pub fn ratio(&self) -> f64 {
        self.prediction.ratio
    }

    /// Notes the bytes of the answer so far. If they are more than was reserved, the reservation
    /// grows, others wait longer, and the pattern is known to be larger.
    pub fn received(&mut self, bytes: u64) {
        if bytes <= self.bytes {
            return;
        }
        let reserved = (bytes + bytes / GROWTH).max(self.bytes + MIN_GROWTH);
        self.lists.predictor.lock().learn_at_least(self.shape, bytes);
        self.queue.quota.lock().grow(reserved - self.bytes);
        self.bytes = reserved;
    }

    /// Learns the size of the complete answer, and returns what is reserved.
    pub fn complete(self, bytes: u64, ratio: Option<f64>) {
        self.lists.predicted.fetch_add(self.prediction.bytes, Relaxed);
        self.lists.answered.fetch_add(bytes, Relaxed);
        self.lists.predictor.lock().learn(self.shape, bytes, ratio);
    }

    fn release(&mut self) {
        self.released = true;
        self.queue.quota.lock().release(self.bytes, self.granted);
        self.queue.running.fetch_sub(1, Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.released {
            self.release();
            self.queue.dispatch(&self.lists);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Size, Span};

    fn lists(max_bytes: u64, max_waiting: usize) -> Arc<Lists> {
        let settings = config::Lists {
            max_bytes: Size(max_bytes),
            small_bytes: Size(10),
            max_waiting,
            max_wait: Span::from_secs(5),
        };
        Arc::new(Lists::new(settings))
    }

    fn list(lists: &Lists, url: &str, user: &str, privileged: bool) -> List {
        let (uri, fields) = (url.parse().unwrap(), HeaderMap::new());
        let info = RequestInfo::new(&Method::GET, &uri);
        let principal = Principal::User(user.as_bytes());
        lists.list_of(&info, &Method::GET, &uri, &fields, principal, privileged).unwrap()
    }

    /// Learns that a URL has answers of this size.
    async fn learn(lists: &Arc<Lists>, list: List, bytes: u64) {
        let queue = Arc::new(ListQueue::default());
        lists.admit(&queue, list).await.unwrap().complete(bytes, None);
        assert_eq!(queue.status(), ListStatus::default());
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_waits_until_another_one_ends() {
        let (lists, queue) = (lists(1000, 10), Arc::new(ListQueue::default()));
        let pods = list(&lists, "/api/v1/pods", "a", false);
        learn(&lists, pods, 600).await;
        let first = lists.admit(&queue, pods).await.unwrap();
        let (other_lists, other_queue) = (lists.clone(), queue.clone());
        let second = tokio::spawn(async move { other_lists.admit(&other_queue, pods).await });
        tokio::time::sleep(Duration::from_secs(1)).await;
        let status = ListStatus { bytes: 600, running: 1, waiting: 1 };
        assert_eq!(queue.status(), status);
        first.complete(600, None);
        drop(second.await.unwrap().unwrap());
        assert_eq!(queue.status(), ListStatus::default());
    }

    #[tokio::test(start_paused = true)]
    async fn a_known_size_is_not_predicted() {
        let (lists, queue) = (lists(1000, 10), Arc::new(ListQueue::default()));
        let leases = list(&lists, "/apis/coordination.k8s.io/v1/leases", "a", false);
        learn(&lists, leases, 5000).await;
        let Ok(Admission::Now(first)) = lists.enqueue_known(&queue, leases, 600) else {
            panic!("it waits")
        };
        let Ok(Admission::Waits(waiting)) = lists.enqueue_known(&queue, leases, 500) else {
            panic!("it does not wait")
        };
        assert_eq!(queue.status(), ListStatus { bytes: 600, running: 1, waiting: 1 });
        drop(first);
        let second = waiting.granted().await.unwrap();
        assert_eq!(queue.status(), ListStatus { bytes: 500, running: 1, waiting: 0 });
        drop(second);
        assert_eq!(queue.status(), ListStatus::default());
    }

    #[tokio::test(start_paused = true)]
    async fn privileged_and_small_ones_do_not_wait() {
        let (lists, queue) = (lists(1000, 10), Arc::new(ListQueue::default()));
        let pods = list(&lists, "/api/v1/pods", "a", false);
        learn(&lists, pods, 5000).await;
        let small = list(&lists, "/api/v1/nodes", "a", false);
        learn(&lists, small, 9).await;
        let _held = lists.admit(&queue, pods).await.unwrap();
        let now = Duration::ZERO;
        let privileged = list(&lists, "/api/v1/pods", "a", true);
        let _first = tokio::time::timeout(now, lists.admit(&queue, privileged)).await.unwrap();
        let _second = tokio::time::timeout(now, lists.admit(&queue, small)).await.unwrap();
        assert_eq!(queue.status().bytes, 10_009);
        assert!(tokio::time::timeout(now, lists.admit(&queue, pods)).await.is_err());
        assert_eq!(queue.status().waiting, 0, "a client that has gone leaves the queue");
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_is_bounded() {
        let (lists, queue) = (lists(1000, 1), Arc::new(ListQueue::default()));
        let unknown = list(&lists, "/api/v1/pods", "a", false);
        learn(&lists, unknown, 1000).await;
        let _held = lists.admit(&queue, unknown).await.unwrap();
        let waits = lists.admit(&queue, unknown);
        let full = async {
            tokio::task::yield_now().await;
            lists.admit(&queue, unknown).await.err()
        };
        let (waited, full) = tokio::join!(waits, full);
        assert!((1..=5).contains(&full.unwrap().retry_after));
        assert!(waited.is_err(), "after 5 s");
        assert_eq!(queue.status().waiting, 0);
    }

    #[tokio::test]
    async fn an_answer_that_exceeds_its_prediction_is_known_at_once() {
        let (lists, queue) = (lists(1 << 20, 10), Arc::new(ListQueue::default()));
        let pods = list(&lists, "/api/v1/pods", "a", false);
        learn(&lists, pods, 100).await;
        let mut first = lists.admit(&queue, pods).await.unwrap();
        first.received(100);
        assert_eq!(queue.status().bytes, 100);
        first.received(800_000);
        assert_eq!(queue.status().bytes, 1_000_000);
        assert_eq!(lists.predict(pods.shape, 1 << 20).bytes, 800_000);
        let second = lists.admit(&queue, pods);
        assert!(tokio::time::timeout(Duration::from_millis(10), second).await.is_err());
        // A broken answer returns its bytes, and nothing else is learned.
        drop(first);
        assert_eq!(queue.status().bytes, 0);
        assert_eq!(lists.predict(pods.shape, 1 << 20).bytes, 800_000);
    }

    #[tokio::test]
    async fn without_a_limit_waiters_go_and_nothing_is_a_list() {
        let (lists, queue) = (lists(1000, 10), Arc::new(ListQueue::default()));
        let pods = list(&lists, "/api/v1/pods", "a", false);
        learn(&lists, pods, 5000).await;
        let _first = lists.admit(&queue, pods).await.unwrap();
        let waits = lists.admit(&queue, pods);
        let off = async {
            tokio::task::yield_now().await;
            let settings = config::Lists { max_bytes: Size(0), ..Default::default() };
            lists.configure(settings);
            queue.dispatch(&lists);
        };
        let (second, ()) = tokio::join!(waits, off);
        assert!(second.is_ok());
        let (uri, fields) = ("/api/v1/pods".parse().unwrap(), HeaderMap::new());
        let info = RequestInfo::new(&Method::GET, &uri);
        let user = Principal::User(b"a");
        assert!(lists.list_of(&info, &Method::GET, &uri, &fields, user, false).is_none());
    }
}
