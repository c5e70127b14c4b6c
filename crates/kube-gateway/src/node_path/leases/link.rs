//! The connection of one thread to the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use etcd_client::{Connection, Driver, TlsFiles};
use etcdpb::rpc::compare::{CompareResult, CompareTarget, TargetUnion};
use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::{
    Compare, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse,
};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::Reason;

const TXN: &str = "/etcdserverpb.KV/Txn";
const RANGE: &str = "/etcdserverpb.KV/Range";
/// Calls of one thread at once. Further renewals are forwarded, further comparisons left out.
const MAX_CALLS: usize = 512;
/// A store that does not answer within this time is connected again. A kubelet waits 10 s.
const TIMEOUT: Duration = Duration::from_secs(1);
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
    connection: Mutex<Option<Connection>>,
    calls: AtomicUsize,
    /// Told when the store does not answer.
    broken: Notify,
}

/// A call in progress, until it is dropped.
struct Call<'a>(&'a AtomicUsize);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Link {
    /// Keeps a connection until the process ends.
    pub async fn run_forever(self: Arc<Self>, endpoints: Arc<Endpoints>) {
        let mut pause = BACK_OFF.0;
        for url in endpoints.urls.iter().cycle() {
            let connect = etcd_client::connect(url, &endpoints.files);
            let connected = timeout(CONNECT_TIMEOUT, connect).await;
            match connected.map_err(anyhow::Error::from).and_then(|result| result) {
                Ok(connected) => {
                    tracing::debug!(url, "connected to the store");
                    pause = BACK_OFF.0;
                    self.use_connection(connected).await;
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

    async fn use_connection(&self, (connection, driver): (Connection, Driver)) {
        *self.connection.lock() = Some(connection);
        tokio::select! {
            () = driver => {}
            () = self.broken.notified() => {}
        }
        *self.connection.lock() = None;
    }

    fn begin(&self) -> Result<(Connection, Call<'_>), Reason> {
        let connection = self.connection.lock().clone().ok_or(Reason::StoreDown)?;
        let others = self.calls.fetch_add(1, Relaxed);
        let call = Call(&self.calls);
        if others < MAX_CALLS { Ok((connection, call)) } else { Err(Reason::Busy) }
    }

    /// Writes a value if the key has this revision in the store. Returns the revision of the write.
    ///
    /// # Errors
    /// With the reason. After [`Reason::NoAnswer`] the value may have been written.
    pub async fn replace(&self, key: Bytes, revision: i64, value: Bytes) -> Result<i64, Reason> {
        let (connection, _call) = self.begin()?;
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
        let answer: TxnResponse = self.call(&connection, TXN, &request).await?;
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
        let (connection, _call) = self.begin()?;
        let request = RangeRequest { key, revision, ..Default::default() };
        let answer: RangeResponse = self.call(&connection, RANGE, &request).await?;
        let written = |pair: &&etcdpb::KeyValue| pair.mod_revision() == revision;
        Ok(answer.kvs.first().filter(written).map(|pair| pair.value().to_vec()))
    }

    async fn call<R: prost::Message + Default>(
        &self,
        connection: &Connection,
        path: &str,
        request: &impl prost::Message,
    ) -> Result<R, Reason> {
        match timeout(TIMEOUT, connection.call(path, request)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(failure)) => {
                tracing::debug!(error = failure.0, "a call to the store failed");
                // A status is an answer.
                let refused = failure.0.starts_with("code ");
                Err(if refused { Reason::Refused } else { Reason::NoAnswer })
            }
            Err(_) => {
                self.broken.notify_waiters();
                Err(Reason::NoAnswer)
            }
        }
    }
}
