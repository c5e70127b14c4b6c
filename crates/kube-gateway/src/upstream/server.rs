//! One API server and what is known about its load.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::refusals::{Answers, Change, Refusals, Standing};
use crate::protect::{ListQueue, RenewalQueue};

/// An API server.
pub struct Server {
    /// Host and port.
    pub address: String,
    ready: AtomicBool,
    /// When the server became ready for the last time.
    ready_since: Mutex<Instant>,
    /// Client connections whose requests go to this server, without those that were told to leave.
    members: Mutex<HashMap<u64, Arc<Member>>>,
    next_member: AtomicU64,
    /// Requests in flight, without watches.
    pub requests: AtomicUsize,
    /// Running watches.
    pub watches: AtomicUsize,
    /// LISTs in progress, and those that wait.
    pub lists: Arc<ListQueue>,
    /// Renewals of Leases in progress.
    pub renewals: RenewalQueue,
    /// The version of Kubernetes that the server said it has.
    version: Mutex<Option<Arc<str>>>,
    /// CPU cores that the server uses, as the bits of an `f64`.
    cores: AtomicU64,
    /// Answers 429.
    refused: AtomicU64,
    /// Other answers.
    answered: AtomicU64,
    /// What the answers 429 say about the server.
    refusals: Mutex<Refusals>,
}

impl Server {
    /// Creates a server that is not ready until the first probe or connection succeeds.
    pub fn new(address: String) -> Server {
        Server {
            address,
            ready: AtomicBool::new(false),
            ready_since: Mutex::new(Instant::now()),
            members: Mutex::default(),
            next_member: AtomicU64::new(0),
            requests: AtomicUsize::new(0),
            watches: AtomicUsize::new(0),
            lists: Arc::default(),
            renewals: RenewalQueue::default(),
            version: Mutex::default(),
            cores: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            refusals: Mutex::new(Refusals::new(Instant::now())),
        }
    }

    /// Whether new connections may go to the server.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Relaxed)
    }

    /// Notes whether the server is ready. Returns whether that is new.
    pub fn set_ready(&self, ready: bool) -> bool {
        if self.ready.swap(ready, Relaxed) == ready {
            return false;
        }
        if ready {
            *self.ready_since.lock() = Instant::now();
        }
        true
    }

    /// How long the server has been ready.
    pub fn ready_for(&self) -> Duration {
        self.ready_since.lock().elapsed()
    }

    /// The version of Kubernetes that the server has, such as `v1.37.1`, if it is known.
    pub fn version(&self) -> Option<Arc<str>> {
        self.version.lock().clone()
    }

    /// Notes the version.
    pub fn set_version(&self, version: Option<&str>) {
        *self.version.lock() = version.map(Arc::from);
    }

    /// CPU cores that the server used in the last interval between two reads of its metrics.
    pub fn cores(&self) -> f64 {
        f64::from_bits(self.cores.load(Relaxed))
    }

    /// Notes the CPU cores that the server uses.
    pub fn set_cores(&self, cores: f64) {
        self.cores.store(cores.to_bits(), Relaxed);
    }

    /// Counts an answer with status 429, or another answer.
    pub fn answered(&self, too_many_requests: bool) {
        let counter = if too_many_requests { &self.refused } else { &self.answered };
        counter.fetch_add(1, Relaxed);
    }

    /// Judges the answers until now. A row of `limit` answers 429 starts a back-off.
    pub fn judge_answers(&self, now: Instant, limit: u32) -> Option<Change> {
        let answers =
            Answers { refused: self.refused.load(Relaxed), other: self.answered.load(Relaxed) };
        self.refusals.lock().observe(now, answers, limit.into())
    }

    /// Whether clients may connect, by the last judgement of the answers.
    pub fn standing(&self) -> Standing {
        self.refusals.lock().standing()
    }

    /// Takes a place for a client that comes back after a back-off. Returns whether there was one.
    pub fn take_trial_place(&self) -> bool {
        self.refusals.lock().take_place()
    }

    /// The share of answers 429 at the last judgement.
    pub fn refused_share(&self) -> f64 {
        self.refusals.lock().share()
    }

    /// The length of the last back-off.
    pub fn last_back_off(&self) -> Duration {
        self.refusals.lock().last_back_off()
    }

    /// Client connections that stay.
    pub fn connections(&self) -> usize {
        self.members.lock().len()
    }

    /// The weight of all client connections that stay.
    pub fn weight(&self) -> usize {
        self.members.lock().values().map(|member| member.weight()).sum()
    }

    /// Tells one client connection with a weight below `limit` to leave. Returns its weight.
    pub fn move_one(&self, limit: usize) -> Option<usize> {
        let mut members = self.members.lock();
        // The order of a hash map is random enough.
        let number = *members.iter().find(|(_, member)| member.weight() < limit)?.0;
        let member = members.remove(&number)?;
        drop(members);
        member.moved.cancel();
        Some(member.weight())
    }
}

/// A client connection as a part of a server's load.
pub struct Member {
    /// Cancelled when the connection must leave.
    moved: CancellationToken,
    /// Requests and watches in flight.
    pub streams: AtomicUsize,
}

impl Member {
    /// An idle connection counts too: it will send requests.
    fn weight(&self) -> usize {
        1 + self.streams.load(Relaxed)
    }
}

/// The place of a client connection at a server, until it is dropped.
pub struct Place {
    server: Arc<Server>,
    number: u64,
    member: Arc<Member>,
}

impl Place {
    /// Adds a client connection to a server. `moved` is cancelled when it must leave.
    pub fn new(server: Arc<Server>, moved: CancellationToken) -> Place {
        let member = Arc::new(Member { moved, streams: AtomicUsize::new(0) });
        let number = server.next_member.fetch_add(1, Relaxed);
        server.members.lock().insert(number, member.clone());
        Place { server, number, member }
    }

    /// The server.
    pub fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// The connection's part of the load.
    pub fn member(&self) -> &Arc<Member> {
        &self.member
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.server.members.lock().remove(&self.number);
    }
}
