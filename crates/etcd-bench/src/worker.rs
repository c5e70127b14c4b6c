//! A client, which executes its operations one after the other.

use bytes::Bytes;
use etcd_client::{Connection, Failure};
use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::{
    PutRequest, PutResponse, RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse,
};
use rand::RngExt;

use crate::fill_keys::FillKeys;
use crate::keys::{Keys, PREFIX, PREFIX_END, end_of_prefix};
use crate::lease_flood::{Existing, LeaseFlood};
use crate::options::Workload;
use crate::partial_response::{Chunk, Page};

const PUT: &str = "/etcdserverpb.KV/Put";
const TXN: &str = "/etcdserverpb.KV/Txn";
const RANGE: &str = "/etcdserverpb.KV/Range";
const RANGE_STREAM: &str = "/etcdserverpb.KV/RangeStream";

/// A client.
pub struct Worker {
    connection: Connection,
    keys: Keys,
    operation: Operation,
}

/// The operation that a client repeats, with its state.
enum Operation {
    Put,
    TxnPut,
    Range { span: Span, way: ReadWay },
    Fill { fill_keys: FillKeys, key_size: usize },
    Mixed { read_percent: u32 },
    LeaseFlood(LeaseFlood),
}

/// How a span is read.
#[derive(Clone, Copy)]
enum ReadWay {
    /// With Range requests of at most `page` keys, 0 for no limit; only the first `pages` of
    /// them, 0 for all.
    Pages { page: i64, pages: u64 },
    /// With a RangeStream request.
    Stream,
    /// With a Range request that returns only the number of keys.
    Count,
}

/// A span of keys to read.
struct Span {
    start: Bytes,
    end: Bytes,
    /// The expected number of keys, if it is known.
    count: Option<u64>,
}

impl Worker {
    /// Creates the client with the index `index` of the workload. `existing` are the Leases that it
    /// renews in the workload lease-flood with `--existing`.
    pub fn new(
        workload: &Workload,
        keys: Keys,
        fill_keys: Option<&FillKeys>,
        existing: Vec<Existing>,
        connection: Connection,
        index: u64,
    ) -> Self {
        let operation = match workload {
            Workload::Put | Workload::Watch { .. } => Operation::Put,
            Workload::TxnPut => Operation::TxnPut,
            Workload::Range { page, pages, count_only, stream, prefix } => {
                let span = Span::new(prefix.as_deref(), keys.count);
                let way = match () {
                    () if *count_only => ReadWay::Count,
                    () if *stream => ReadWay::Stream,
                    () => ReadWay::Pages { page: *page, pages: *pages },
                };
                Operation::Range { span, way }
            }
            Workload::Fill { .. } => {
                let fill_keys = fill_keys.expect("the workload fill has fill keys").clone();
                Operation::Fill { fill_keys, key_size: keys.size }
            }
            Workload::Mixed { read_percent } => Operation::Mixed { read_percent: *read_percent },
            Workload::LeaseFlood { existing: true, .. } => {
                Operation::LeaseFlood(LeaseFlood::existing(existing))
            }
            Workload::LeaseFlood { leases, .. } => {
                Operation::LeaseFlood(LeaseFlood::new(index * leases, *leases))
            }
            Workload::Replay(_) => unreachable!("a replay has no workers"),
        };
        Worker { connection, keys, operation }
    }

    /// Creates the Leases of lease-flood. Other workloads need no preparation.
    pub async fn prepare(&mut self) -> Result<(), Failure> {
        match &mut self.operation {
            Operation::LeaseFlood(leases) => leases.create(&self.connection).await,
            _ => Ok(()),
        }
    }

    /// Executes the next operation.
    pub async fn execute_operation(&mut self) -> Result<(), Failure> {
        match &mut self.operation {
            Operation::Put => put(&self.connection, self.keys.put(self.keys.random())).await,
            Operation::TxnPut => {
                let put = Request::RequestPut(self.keys.put(self.keys.random()));
                let success = vec![RequestOp { request: Some(put) }];
                let request = TxnRequest { success, ..Default::default() };
                self.connection.call::<TxnResponse>(TXN, &request).await.map(drop)
            }
            Operation::Range { span, way } => match *way {
                ReadWay::Stream => read_with_range_stream(&self.connection, span).await,
                ReadWay::Count => count(&self.connection, span).await,
                ReadWay::Pages { page, pages } => {
                    read_in_pages(&self.connection, span, page, pages).await
                }
            },
            Operation::Fill { fill_keys, key_size } => {
                put(&self.connection, fill_keys.next_put(*key_size)).await
            }
            Operation::Mixed { read_percent } => {
                let is_read = rand::rng().random_range(0..100) < *read_percent;
                let key = self.keys.random();
                if is_read {
                    let request = RangeRequest { key, ..Default::default() };
                    self.connection.call::<RangeResponse>(RANGE, &request).await.map(drop)
                } else {
                    put(&self.connection, self.keys.put(key)).await
                }
            }
            Operation::LeaseFlood(leases) => leases.renew_next(&self.connection).await,
        }
    }
}

/// Writes one key.
pub async fn put(connection: &Connection, request: PutRequest) -> Result<(), Failure> {
    connection.call::<PutResponse>(PUT, &request).await.map(drop)
}

impl Span {
    /// All keys with `prefix`; without a prefix, the key space with `count` keys.
    fn new(prefix: Option<&str>, count: u64) -> Self {
        match prefix {
            Some(prefix) => {
                Span { start: prefix.to_owned().into(), end: end_of_prefix(prefix), count: None }
            }
            None => Span { start: PREFIX.into(), end: PREFIX_END.into(), count: Some(count) },
        }
    }

    /// A request for all keys of the span.
    fn request(&self) -> RangeRequest {
        RangeRequest { key: self.start.clone(), range_end: self.end.clone(), ..Default::default() }
    }

    /// Fails if a read returned no pairs, or another number of pairs than expected.
    fn check_count(&self, found: usize) -> Result<(), Failure> {
        match self.count {
            Some(count) if count != found as u64 => {
                Err(Failure("a read returned more or fewer keys than were written".into()))
            }
            _ if found == 0 => Err(Failure("a read returned no keys".into())),
            _ => Ok(()),
        }
    }
}

/// Counts the keys of a span.
async fn count(connection: &Connection, span: &Span) -> Result<(), Failure> {
    let request = RangeRequest { count_only: true, ..span.request() };
    let response: Page = connection.call(RANGE, &request).await?;
    span.check_count(response.count as usize)
}

/// Reads a span with Range requests of at most `page` keys; 0 means a single request. Stops
/// after `pages` requests, unless it is 0.
async fn read_in_pages(
    connection: &Connection,
    span: &Span,
    page: i64,
    pages: u64,
) -> Result<(), Failure> {
    let mut request = RangeRequest { limit: page, ..span.request() };
    let (mut found, mut read) = (0, 0);
    loop {
        let response: Page = connection.call(RANGE, &request).await?;
        found += response.pairs.len();
        read += 1;
        if read == pages && response.more {
            return span.check_count(response.count as usize);
        }
        let Some(last) = response.last_key().filter(|_| response.more) else {
            return span.check_count(found);
        };
        request.key = [&last[..], &[0]].concat().into();
        request.revision = response.revision();
    }
}

/// Reads a span with a RangeStream request.
async fn read_with_range_stream(connection: &Connection, span: &Span) -> Result<(), Failure> {
    let (_, mut responses) = connection.start::<Chunk>(RANGE_STREAM, &span.request(), true).await?;
    let mut found = 0;
    while let Some(chunk) = responses.next().await? {
        found += chunk.page.map_or(0, |page| page.pairs.len());
    }
    span.check_count(found)
}
