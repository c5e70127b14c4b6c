//! Leases from the store: all of them, and their changes.
//!
//! A stored value is what kube-apiserver sends, except for the `resourceVersion`: see `StoredLease` in the
//! crate `node_lease`. The value before a change is not asked for, because the cache has it.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use etcd_client::{
    Connection, Driver, Failure, REQUIRE_LEADER, Responses, SendStream, TlsFiles, with_prefix,
};
use etcdpb::KeyValue;
use etcdpb::mvccpb::event::EventType;
use etcdpb::rpc::watch_request::RequestUnion;
use etcdpb::rpc::{
    RangeRequest, RangeResponse, WatchCreateRequest, WatchProgressRequest, WatchRequest,
    WatchResponse,
};
use futures_util::FutureExt as _;
use node_lease::StoredLease;

use super::cache::{LastChange, StoredChange};
use super::content::INITIAL_EVENTS_END;
use super::kind::Kind;
use super::object::Object;
use super::store_position::{Position, Replaced};
use super::wire::{put_bytes, put_envelope_head, put_envelope_tail};

const RANGE: &str = "/etcdserverpb.KV/Range";
const WATCH: &str = "/etcdserverpb.Watch/Watch";
/// Timeout for connecting, with the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// A store must answer within this time.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Leases that are read at once.
const PAGE: i64 = 1000;
/// Responses that are taken at once. The others follow.
const MAX_RESPONSES: usize = 1000;
/// The text of a status with the code `PermissionDenied`, as etcd writes it.
const DENIED: &str = "permission denied";
/// The text of the error for a revision before the last compaction.
const COMPACTED: &str = "required revision has been compacted";

/// Why Leases cannot be served from this store.
#[derive(Debug)]
pub struct Unreadable(String);

impl std::error::Error for Unreadable {}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The store has nothing of a revision, because it was compacted since.
#[derive(Debug)]
pub struct Compacted;

impl std::error::Error for Compacted {}

impl fmt::Display for Compacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the store was compacted after the last known revision")
    }
}

/// A connection to the store.
pub struct StoreSource {
    connection: Connection,
    driver: Running,
    keys: Keys,
}

/// What does the input and output of a connection.
struct Running(Driver);

/// How far the store is, when it answers.
pub type PositionAnswer = Pin<Box<dyn Future<Output = Result<Position>> + Send>>;

/// The keys of all Leases.
#[derive(Clone, Debug)]
pub struct Keys {
    /// What they begin with. It ends with a slash.
    prefix: String,
}

impl Keys {
    /// The keys of all Leases below kube-apiserver's `--etcd-prefix`.
    pub fn new(etcd_prefix: &str) -> Keys {
        Keys { prefix: format!("{etcd_prefix}/leases/") }
    }

    fn start(&self) -> Bytes {
        self.prefix.clone().into()
    }

    /// The first key after all of them.
    fn end(&self) -> Bytes {
        // The character after the slash.
        format!("{}0", self.prefix.trim_end_matches('/')).into()
    }

    /// The key without the prefix.
    fn strip<'a>(&self, key: &'a [u8]) -> Option<&'a [u8]> {
        key.strip_prefix(self.prefix.as_bytes())
    }

    /// Returns the Lease that an API server sends for a pair of the store.
    fn object(&self, pair: &KeyValue) -> Result<Object, Unreadable> {
        let parse = || {
            let lease = StoredLease::parse(pair.value())?;
            let is_own = self.strip(pair.key())? == [lease.namespace, b"/", lease.name].concat();
            let bytes = is_own.then(|| lease.sent(pair.mod_revision().cast_unsigned()))?;
            Object::parse(Kind::Leases, bytes.into())
        };
        parse().ok_or_else(|| {
            let key = String::from_utf8_lossy(pair.key());
            Unreadable(format!(
                "the value of the key {key} is not a Lease of coordination.k8s.io/v1 as kube-apiserver 1.37 stores \
                 it in protobuf; watches and lists of Leases are forwarded"
            ))
        })
    }

    fn change(&self, event: &etcdpb::mvccpb::Event) -> Result<StoredChange> {
        let pair = event.kv.as_ref().context("an event of the store has no key")?;
        if event.r#type() == EventType::Put {
            return Ok(StoredChange::Put(self.object(pair)?));
        }
        let key = self.strip(pair.key()).context("an event of the store has another key")?;
        let version = pair.mod_revision().cast_unsigned();
        Ok(StoredChange::Deleted { key: key.into(), version })
    }
}

impl StoreSource {
    /// Connects to the store.
    ///
    /// # Errors
    /// If that is not possible in 3 s.
    pub async fn connect(url: &str, files: &TlsFiles, keys: Keys) -> Result<StoreSource> {
        let connect = etcd_client::connect(url, files);
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, connect).await;
        let (connection, driver) = connected.context("no connection in time")??;
        Ok(StoreSource { connection, driver: Running(driver), keys })
    }

    /// Reads all Leases at one revision. Returns the position of the store with them.
    ///
    /// # Errors
    /// If a call fails, or a value is not as expected ([`Unreadable`]).
    pub async fn read_all(&mut self) -> Result<(Position, Vec<Object>)> {
        let (mut key, mut read_at, mut objects) = (self.keys.start(), None, Vec::new());
        loop {
            let range_end = self.keys.end();
            let revision = read_at.map_or(0, |it: Position| it.revision.cast_signed());
            let request =
                RangeRequest { key, range_end, revision, limit: PAGE, ..Default::default() };
            let page = self.range(&request).await?;
            let position = match read_at {
                Some(position) => position,
                None => position(&page)?,
            };
            read_at = Some(position);
            for pair in &page.kvs {
                objects.push(self.keys.object(pair)?);
            }
            match page.kvs.last() {
                // The next possible key.
                Some(last) if page.more => key = [last.key(), b"\0"].concat().into(),
                _ => return Ok((position, objects)),
            }
        }
    }

    async fn range(&mut self, request: &RangeRequest) -> Result<RangeResponse> {
        let call = range(&self.connection, &self.keys, request);
        self.driver.during(call).await
    }

    /// Asks how far the store is.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn position(&mut self) -> Result<Position> {
        let answer = ask_position(self.connection.clone(), self.keys.clone());
        self.driver.during(answer).await
    }

    /// Checks that the store has a change.
    ///
    /// # Errors
    /// If it has not ([`Replaced`]), or cannot say it any more ([`Compacted`]).
    pub async fn check_has(&mut self, change: &LastChange) -> Result<()> {
        let request = RangeRequest {
            key: [&self.keys.start(), &change.key[..]].concat().into(),
            revision: change.version.cast_signed(),
            ..Default::default()
        };
        let answer = self.range(&request).await?;
        let object = answer.kvs.first().map(|pair| self.keys.object(pair)).transpose()?;
        if object.as_ref().map(Object::envelope) != change.object.as_ref() {
            let text = format!("the store has no longer the change of revision {}", change.version);
            return Err(Replaced(text).into());
        }
        Ok(())
    }

    /// Watches all Leases after a revision. A member of the store that loses the others ends the watch.
    ///
    /// # Errors
    /// If the call fails.
    pub async fn watch(mut self, after: u64) -> Result<StoreWatch> {
        let create = WatchCreateRequest {
            key: self.keys.start(),
            range_end: self.keys.end(),
            start_revision: after.cast_signed() + 1,
            progress_notify: true,
            ..Default::default()
        };
        let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let connection = self.connection.with_metadata(REQUIRE_LEADER);
        let start = in_time(&self.keys, connection.start(WATCH, &request, false));
        let (requests, responses) = self.driver.during(start).await?;
        let StoreSource { connection, driver, keys } = self;
        Ok(StoreWatch { connection, driver, requests, responses, keys })
    }
}

impl Running {
    /// Does some work on the connection.
    async fn during<T>(&mut self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            done = work => done,
            () = &mut self.0 => bail!("the connection to the store ended"),
        }
    }
}

/// Waits for a call, and explains why it failed.
async fn in_time<T>(keys: &Keys, call: impl Future<Output = Result<T, Failure>>) -> Result<T> {
    let answer = tokio::time::timeout(CALL_TIMEOUT, call).await;
    answer.context("the store does not answer")?.map_err(|Failure(text)| {
        if text.contains(DENIED) {
            return denied(keys, &text).into();
        }
        match text.contains(COMPACTED) {
            true => Compacted.into(),
            false => anyhow::Error::msg(text),
        }
    })
}

/// Sends a linearizable read: a member of the store that has lost the others does not answer.
async fn range(
    connection: &Connection,
    keys: &Keys,
    request: &RangeRequest,
) -> Result<RangeResponse> {
    in_time(keys, connection.call(RANGE, request)).await
}

/// Asks how far the store is, by reading a key that the certificate may read and that does not exist.
async fn ask_position(connection: Connection, keys: Keys) -> Result<Position> {
    let request =
        RangeRequest { key: keys.start(), limit: 1, keys_only: true, ..Default::default() };
    position(&range(&connection, &keys, &request).await?)
}

fn position(answer: &RangeResponse) -> Result<Position> {
    let header = answer.header.as_ref().context("the store does not say its revision")?;
    Ok(Position { cluster: header.cluster_id, revision: header.revision.cast_unsigned() })
}

fn denied(keys: &Keys, text: &str) -> Unreadable {
    Unreadable(format!(
        "{text}: the certificate of nodePath.store needs permission to read all keys below {}; watches and lists of \
         Leases are forwarded",
        keys.prefix
    ))
}

/// A watch of all Leases.
pub struct StoreWatch {
    connection: Connection,
    driver: Running,
    requests: SendStream<Bytes>,
    responses: Responses<WatchResponse>,
    keys: Keys,
}

/// What the store reports.
#[derive(Default)]
pub struct Report {
    /// All changes of some revisions, in their order.
    pub changes: Vec<StoredChange>,
    /// Everything up to this revision was reported. It can be lower than that of a change.
    pub progress: Option<u64>,
}

impl StoreWatch {
    /// Waits for the next report. It has all that has arrived. May be cancelled.
    ///
    /// # Errors
    /// If the watch ends ([`Compacted`]), or a value is not as expected ([`Unreadable`]).
    pub async fn next(&mut self) -> Result<Report> {
        let first = tokio::select! {
            response = self.responses.next() => response,
            () = &mut self.driver.0 => bail!("the connection to the store ended"),
        };
        let (mut next, mut report) = (Some(first), Report::default());
        for _ in 0..MAX_RESPONSES {
            let Some(response) = next else { break };
            let response = response.map_err(|Failure(text)| anyhow::Error::msg(text))?;
            self.add(&mut report, &response.context("the store ended the watch")?)?;
            next = self.responses.next().now_or_never();
        }
        Ok(report)
    }

    fn add(&self, report: &mut Report, response: &WatchResponse) -> Result<()> {
        if response.compact_revision > 0 {
            return Err(Compacted.into());
        }
        if response.canceled {
            let reason = &response.cancel_reason;
            if reason.contains(DENIED) {
                return Err(denied(&self.keys, reason).into());
            }
            bail!("the store ended the watch: {reason}");
        }
        if response.events.is_empty() && !response.created {
            let header = response.header.as_ref();
            report.progress = header.map(|header| header.revision.cast_unsigned());
        }
        for event in &response.events {
            report.changes.push(self.keys.change(event)?);
        }
        Ok(())
    }

    /// Asks how far the store is. The answer arrives while [`StoreWatch::next`] waits.
    pub fn ask_position(&self) -> PositionAnswer {
        Box::pin(ask_position(self.connection.clone(), self.keys.clone()))
    }

    /// Asks up to which revision everything was reported.
    ///
    /// # Errors
    /// If the watch has ended.
    pub fn request_progress(&mut self) -> Result<()> {
        let request = RequestUnion::ProgressRequest(WatchProgressRequest {});
        let request = WatchRequest { request_union: Some(request) };
        Ok(self.requests.send_data(with_prefix(&request), false)?)
    }
}

/// The bookmark that follows the initial events of a watch of Leases, as kube-apiserver encodes it.
pub fn marked_bookmark(version: u64) -> Option<Object> {
    let mut metadata = Vec::new();
    // name, generateName, namespace, selfLink and uid
    for number in 1..=5 {
        put_bytes(&mut metadata, number, b"");
    }
    put_bytes(&mut metadata, 6, version.to_string().as_bytes());
    // generation 0 and no creationTimestamp
    metadata.extend_from_slice(&[7 << 3, 0]);
    put_bytes(&mut metadata, 8, b"");
    let mut annotation = Vec::new();
    put_bytes(&mut annotation, 1, INITIAL_EVENTS_END);
    put_bytes(&mut annotation, 2, b"true");
    put_bytes(&mut metadata, 12, &annotation);
    let mut lease = Vec::new();
    put_bytes(&mut lease, 1, &metadata);
    // spec
    put_bytes(&mut lease, 2, b"");
    let mut bytes = Vec::new();
    let names = Kind::Leases.names();
    put_envelope_head(&mut bytes, names.api_version, "Lease", lease.len());
    bytes.extend_from_slice(&lease);
    put_envelope_tail(&mut bytes);
    Object::parse(Kind::Leases, bytes.into())
}
