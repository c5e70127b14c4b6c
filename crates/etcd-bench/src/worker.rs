//! What one client does, one operation after the other.

use std::time::Duration;

use bytes::Bytes;
use etcdpb::rpc::compare::{CompareResult, CompareTarget, TargetUnion};
use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::{
    Compare, PutRequest, PutResponse, RangeRequest, RangeResponse, RequestOp, TxnRequest,
    TxnResponse,
};
use rand::RngExt;

use crate::connection::{Connection, Failure};
use crate::glance::{Chunk, Page};
use crate::lease::NodeLease;
use crate::options::{Load, Workload};
use crate::population::Population;

const PUT: &str = "/etcdserverpb.KV/Put";
const TXN: &str = "/etcdserverpb.KV/Txn";
const RANGE: &str = "/etcdserverpb.KV/Range";
const RANGE_STREAM: &str = "/etcdserverpb.KV/RangeStream";

/// All keys of the load begin like this; lease-flood uses Kubernetes' own.
pub const PREFIX: &[u8] = b"/bench/";
/// Its end as a range.
pub const PREFIX_END: &[u8] = b"/bench0";

/// One client.
pub struct Worker {
    connection: Connection,
    keys: Keys,
    kind: Kind,
}

enum Kind {
    Put,
    TxnPut,
    Range { span: Span, page: i64, stream: bool },
    Fill { population: Population, key_size: usize },
    Mixed { read_percent: u32 },
    LeaseFlood { leases: Vec<(NodeLease, i64)>, next: usize },
}

/// Neighbouring keys to read.
struct Span {
    start: Bytes,
    end: Bytes,
    /// How many there are, if that is known.
    count: Option<u64>,
}

/// The keys and the value of the load.
#[derive(Clone)]
pub struct Keys {
    space: u64,
    size: usize,
    value: Bytes,
}

impl Keys {
    pub fn new(load: &Load) -> Self {
        let value = (0..load.val_size).map(|_| rand::random::<u8>()).collect();
        Keys { space: load.key_space_size, size: load.key_size, value }
    }

    /// Key number `n`, of the size that was asked for.
    pub fn key(&self, n: u64) -> Bytes {
        let digits = self.size.saturating_sub(PREFIX.len());
        let mut key = PREFIX.to_vec();
        key.extend_from_slice(format!("{n:0digits$}").as_bytes());
        key.into()
    }

    fn random(&self) -> Bytes {
        self.key(rand::rng().random_range(0..self.space))
    }

    /// A write of key number `n`.
    pub fn put(&self, key: Bytes) -> PutRequest {
        PutRequest { key, value: self.value.clone(), ..Default::default() }
    }
}

impl Worker {
    /// Client number `index` of the workload.
    pub fn new(
        workload: &Workload,
        keys: Keys,
        population: Option<&Population>,
        connection: Connection,
        index: u64,
    ) -> Self {
        let kind = match workload {
            Workload::Put | Workload::Watch { .. } => Kind::Put,
            Workload::TxnPut => Kind::TxnPut,
            Workload::Range { page, stream, prefix } => {
                let span = Span::new(prefix.as_deref(), keys.space);
                Kind::Range { span, page: *page, stream: *stream }
            }
            Workload::Fill { .. } => {
                let population = population.expect("fill has one").clone();
                Kind::Fill { population, key_size: keys.size }
            }
            Workload::Mixed { read_percent } => Kind::Mixed { read_percent: *read_percent },
            Workload::LeaseFlood { leases } => Kind::LeaseFlood {
                leases: (0..*leases).map(|n| (NodeLease::new(index * leases + n), 0)).collect(),
                next: 0,
            },
            Workload::Replay(_) => unreachable!("a replay has no clients of its own"),
        };
        Worker { connection, keys, kind }
    }

    /// What has to be there before the first operation.
    pub async fn prepare(&mut self) -> Result<(), Failure> {
        if let Kind::LeaseFlood { leases, .. } = &mut self.kind {
            for (lease, revision) in leases {
                *revision = create(&self.connection, lease).await?;
            }
        }
        Ok(())
    }

    /// One operation.
    pub async fn operate(&mut self) -> Result<(), Failure> {
        match &mut self.kind {
            Kind::Put => put(&self.connection, self.keys.put(self.keys.random())).await,
            Kind::TxnPut => {
                let put = Request::RequestPut(self.keys.put(self.keys.random()));
                let success = vec![RequestOp { request: Some(put) }];
                let request = TxnRequest { success, ..Default::default() };
                self.connection.call::<TxnResponse>(TXN, &request).await.map(drop)
            }
            Kind::Range { span, stream: true, .. } => stream_all(&self.connection, span).await,
            Kind::Range { span, page, .. } => read_all(&self.connection, span, *page).await,
            Kind::Fill { population, key_size } => {
                put(&self.connection, population.next_put(*key_size)).await
            }
            Kind::Mixed { read_percent } => {
                let reads = rand::rng().random_range(0..100) < *read_percent;
                let key = self.keys.random();
                if reads {
                    let request = RangeRequest { key, ..Default::default() };
                    self.connection.call::<RangeResponse>(RANGE, &request).await.map(drop)
                } else {
                    put(&self.connection, self.keys.put(key)).await
                }
            }
            Kind::LeaseFlood { leases, next } => {
                let (lease, revision) = &mut leases[*next];
                *revision = replace(&self.connection, lease, *revision).await?;
                *next = (*next + 1) % leases.len();
                Ok(())
            }
        }
    }
}

/// Writes one key.
pub async fn put(connection: &Connection, request: PutRequest) -> Result<(), Failure> {
    connection.call::<PutResponse>(PUT, &request).await.map(drop)
}

/// Creates the lease. etcd refuses that when thousands come at the same time, and is asked
/// again for half a minute.
async fn create(connection: &Connection, lease: &NodeLease) -> Result<i64, Failure> {
    const REFUSED: &str = "too many requests";
    const TRIES: u32 = 60;
    const PAUSE: Duration = Duration::from_millis(500);
    let mut tries = 0;
    loop {
        tries += 1;
        match replace(connection, lease, 0).await {
            Err(Failure(reason)) if reason.contains(REFUSED) && tries < TRIES => {
                tokio::time::sleep(PAUSE).await;
            }
            done => return done,
        }
    }
}

/// Stores the lease, renewed now, over its `revision`, as the API server does:
/// a comparison, a write, and a read for the case that somebody was faster.
/// Returns the new revision; a lease that was there already is taken over.
async fn replace(
    connection: &Connection,
    lease: &NodeLease,
    revision: i64,
) -> Result<i64, Failure> {
    let key = Bytes::from(lease.key());
    let compare = Compare {
        result: CompareResult::Equal as i32,
        target: CompareTarget::Mod as i32,
        key: key.clone(),
        target_union: Some(TargetUnion::ModRevision(revision)),
        ..Default::default()
    };
    let write =
        PutRequest { key: key.clone(), value: lease.renewed().into(), ..Default::default() };
    let read = RangeRequest { key, ..Default::default() };
    let op = |request| vec![RequestOp { request: Some(request) }];
    let request = TxnRequest {
        compare: vec![compare],
        success: op(Request::RequestPut(write)),
        failure: op(Request::RequestRange(read)),
    };
    let response: TxnResponse = connection.call(TXN, &request).await?;
    if response.succeeded {
        return Ok(response.header.map_or(0, |header| header.revision));
    }
    let found = response.responses.into_iter().find_map(|op| match op.response {
        Some(etcdpb::rpc::response_op::Response::ResponseRange(range)) => {
            range.kvs.first().map(|kv| kv.mod_revision())
        }
        _ => None,
    });
    match found {
        Some(found) if revision == 0 => Ok(found),
        _ => Err(Failure("a lease was changed by somebody else".into())),
    }
}

impl Span {
    /// All keys below `prefix`, or those of the load, `space` in number.
    fn new(prefix: Option<&str>, space: u64) -> Self {
        match prefix {
            Some(prefix) => {
                let mut end = prefix.as_bytes().to_vec();
                // A prefix is text, so its last byte is never the highest.
                end.last_mut().into_iter().for_each(|byte| *byte += 1);
                Span { start: prefix.to_owned().into(), end: end.into(), count: None }
            }
            None => Span { start: PREFIX.into(), end: PREFIX_END.into(), count: Some(space) },
        }
    }

    fn request(&self) -> RangeRequest {
        RangeRequest { key: self.start.clone(), range_end: self.end.clone(), ..Default::default() }
    }

    /// Fails a read that found more or fewer pairs than there are.
    fn check(&self, found: usize) -> Result<(), Failure> {
        match self.count {
            Some(count) if count != found as u64 => {
                Err(Failure("a read found more or fewer keys than were written".into()))
            }
            _ if found == 0 => Err(Failure("a read found nothing".into())),
            _ => Ok(()),
        }
    }
}

async fn read_all(connection: &Connection, span: &Span, page: i64) -> Result<(), Failure> {
    let mut request = RangeRequest { limit: page, ..span.request() };
    let mut found = 0;
    loop {
        let response: Page = connection.call(RANGE, &request).await?;
        found += response.pairs.len();
        let Some(last) = response.last_key().filter(|_| response.more) else {
            return span.check(found);
        };
        request.key = [&last[..], &[0]].concat().into();
        request.revision = response.revision();
    }
}

async fn stream_all(connection: &Connection, span: &Span) -> Result<(), Failure> {
    let (_, mut responses) = connection.start::<Chunk>(RANGE_STREAM, &span.request(), true).await?;
    let mut found = 0;
    while let Some(chunk) = responses.next().await? {
        found += chunk.page.map_or(0, |page| page.pairs.len());
    }
    span.check(found)
}
