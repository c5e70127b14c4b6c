//! The connection of one thread to the store.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use etcd_client::TlsFiles;
use etcd_client::unary::{self, CallError, Caller, Method, Options};
use etcdpb::rpc::compare::{CompareResult, CompareTarget, TargetUnion};
use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::{
    Compare, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse,
};
use parking_lot::Mutex;
use tokio::time::timeout;

use super::Reason;

const TXN: &str = "/etcdserverpb.KV/Txn";
const RANGE: &str = "/etcdserverpb.KV/Range";
/// Calls of one thread at once: further renewals are forwarded, further comparisons left out. A store that does not
/// answer within the timeout is connected again. Calls are collected, so that the store handles many at once. A kubelet
/// waits 10 s for an answer.
const OPTIONS: Options = Options {
    max_calls: 512,
    timeout: Duration::from_secs(1),
    collect: Duration::from_millis(5),
    max_batch: 64,
};
/// Timeout for connecting, with the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Time before the first and before any later attempt to connect again.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How the store is reached.
#[derive(Clone, Debug)]
pub struct Endpoints {
    /// The URLs.
    pub urls: Vec<String>,
    /// The files of the TLS configuration.
    pub files: TlsFiles,
}

/// The connection of one thread. Calls are multiplexed on it.
#[derive(Default)]
pub struct Link {
    connection: Mutex<Option<Arc<Connection>>>,
}

/// A connection, and the methods that are called on it.
struct Connection {
    caller: Caller,
    txn: Method,
    range: Method,
}

impl Connection {
    fn new(caller: Caller) -> Connection {
        let (txn, range) = (caller.method(TXN), caller.method(RANGE));
        Connection { caller, txn, range }
    }
}

impl Link {
    /// Keeps a connection until the process ends.
    pub async fn run_forever(self: Arc<Self>, endpoints: Arc<Endpoints>) {
        let mut pause = BACK_OFF.0;
        for url in endpoints.urls.iter().cycle() {
            let connect = unary::connect(url, &endpoints.files, OPTIONS);
            let connected = timeout(CONNECT_TIMEOUT, connect).await;
            match connected.map_err(anyhow::Error::from).and_then(|result| result) {
                Ok((caller, driver)) => {
                    tracing::debug!(url, "connected to the store");
                    pause = BACK_OFF.0;
                    *self.connection.lock() = Some(Arc::new(Connection::new(caller)));
                    driver.await;
                    *self.connection.lock() = None;
                    tracing::warn!(url, "the connection to the store ended");
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::warn!(url, error, "failed to connect to the store");
                }
            }
            tokio::time::sleep(pause.mul_f64(rand::random_range(0.8..1.2))).await;
            pause = (pause * 2).min(BACK_OFF.1);
        }
    }

    fn connection(&self) -> Result<Arc<Connection>, Reason> {
        self.connection.lock().clone().ok_or(Reason::StoreDown)
    }

    /// Writes a value if the key has this revision in the store. Returns the revision of the write.
    ///
    /// # Errors
    /// With the reason. After [`Reason::NoAnswer`] the value may have been written.
    pub async fn replace(&self, key: Bytes, revision: i64, value: Bytes) -> Result<i64, Reason> {
        let connection = self.connection()?;
        let compare = Compare {
            result: CompareResult::Equal as i32,
            target: CompareTarget::Mod as i32,
            key: key.clone(),
            target_union: Some(TargetUnion::ModRevision(revision)),
            ..Default::default()
        };
        let put = Request::RequestPut(PutRequest { key, value, ..Default::default() });
        let success = vec![RequestOp { request: Some(put) }];
        let request = TxnRequest { compare: vec![compare], success, ..Default::default() };
        let answer = connection.caller.call::<TxnResponse>(&connection.txn, &request).await;
        let answer = answer.map_err(reason)?;
        match (answer.succeeded, answer.header) {
            (true, Some(header)) => Ok(header.revision),
            (true, None) => Err(Reason::NoAnswer),
            (false, _) => Err(Reason::Conflict),
        }
    }

    /// Reads the value that a key got at a revision.
    ///
    /// # Errors
    /// With the reason.
    pub async fn read(&self, key: Bytes, revision: i64) -> Result<Option<Vec<u8>>, Reason> {
        let connection = self.connection()?;
        let request = RangeRequest { key, revision, ..Default::default() };
        let answer = connection.caller.call::<RangeResponse>(&connection.range, &request).await;
        let answer = answer.map_err(reason)?;
        let written = |pair: &&etcdpb::KeyValue| pair.mod_revision() == revision;
        Ok(answer.kvs.first().filter(written).map(|pair| pair.value().to_vec()))
    }
}

fn reason(error: CallError) -> Reason {
    tracing::debug!(%error, "a call to the store failed");
    match error {
        CallError::Busy => Reason::Busy,
        CallError::Closed => Reason::StoreDown,
        CallError::Status(_) => Reason::Refused,
        CallError::Broken(_) => Reason::NoAnswer,
    }
}
