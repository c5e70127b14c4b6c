//! The workload lease-flood: the Leases of a client, which it renews in turn as kube-apiserver does, with a
//! transaction that compares the mod revision.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use bytes::Bytes;
use etcd_client::{Connection, Failure};
use etcdpb::KeyValue;
use etcdpb::rpc::compare::{CompareResult, CompareTarget, TargetUnion};
use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::response_op::Response;
use etcdpb::rpc::{
    Compare, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse,
};

use crate::keys::end_of_prefix;
use crate::node_lease::{NodeLease, PREFIX, Time};
use crate::stored_lease::{StoredLease, is_renewed};

const TXN: &str = "/etcdserverpb.KV/Txn";
const RANGE: &str = "/etcdserverpb.KV/Range";

/// Maximum number of existing Leases in one response.
const PAGE: i64 = 5_000;
/// How often a renewal is tried if other clients change the Lease all the time.
const MAX_RENEWAL_TRIES: u32 = 5;

/// An existing Lease with its mod revision.
pub type Existing = (StoredLease, i64);

/// The Leases of a client. `next` is the index of the one that is renewed next.
pub struct LeaseFlood {
    leases: Vec<Held>,
    next: usize,
}

/// A Lease with its current mod revision; 0 if it does not exist yet.
struct Held {
    lease: Lease,
    revision: i64,
}

enum Lease {
    /// Created by this program.
    Own(NodeLease),
    /// Found in the store.
    Stored(StoredLease),
}

impl LeaseFlood {
    /// `count` Leases to create, those of the nodes from `first` on.
    pub fn new(first: u64, count: u64) -> Self {
        let own = |n| Held { lease: Lease::Own(NodeLease::new(first + n)), revision: 0 };
        LeaseFlood { leases: (0..count).map(own).collect(), next: 0 }
    }

    /// Leases that exist.
    pub fn existing(share: Vec<Existing>) -> Self {
        let held = |(lease, revision)| Held { lease: Lease::Stored(lease), revision };
        LeaseFlood { leases: share.into_iter().map(held).collect(), next: 0 }
    }

    /// Creates the Leases that this program creates.
    pub async fn create(&mut self, connection: &Connection) -> Result<(), Failure> {
        for held in &mut self.leases {
            if matches!(held.lease, Lease::Own(_)) {
                held.create(connection).await?;
            }
        }
        Ok(())
    }

    /// Renews the next Lease.
    pub async fn renew_next(&mut self, connection: &Connection) -> Result<(), Failure> {
        let index = self.next;
        self.next = (index + 1) % self.leases.len();
        self.leases[index].renew(connection).await
    }
}

impl Held {
    /// Creates the Lease, or finds its mod revision if it exists. etcd rejects requests if thousands
    /// arrive at the same time; a rejected request is retried for about 30 s.
    async fn create(&mut self, connection: &Connection) -> Result<(), Failure> {
        const REJECTED: &str = "too many requests";
        const MAX_TRIES: u32 = 60;
        const PAUSE: Duration = Duration::from_millis(500);
        let mut tries = 0;
        loop {
            tries += 1;
            match self.replace(connection).await {
                Err(Failure(reason)) if reason.contains(REJECTED) && tries < MAX_TRIES => {
                    tokio::time::sleep(PAUSE).await;
                }
                Ok(Replaced::Written(revision)) => self.revision = revision,
                Ok(Replaced::Changed(Some(found))) => self.revision = found.mod_revision(),
                Ok(Replaced::Changed(None)) => return Err(Failure("a Lease was deleted".into())),
                Err(failure) => return Err(failure),
            }
            if self.revision > 0 {
                return Ok(());
            }
        }
    }

    /// Renews the Lease. One that was found in the store is taken over again if another client has
    /// changed it; one that this program created belongs to it alone.
    async fn renew(&mut self, connection: &Connection) -> Result<(), Failure> {
        let is_own = matches!(self.lease, Lease::Own(_));
        for _ in 0..MAX_RENEWAL_TRIES {
            match self.replace(connection).await? {
                Replaced::Written(revision) => {
                    self.revision = revision;
                    return Ok(());
                }
                Replaced::Changed(None) => return Err(Failure("a Lease was deleted".into())),
                Replaced::Changed(Some(_)) if is_own => break,
                Replaced::Changed(Some(found)) => {
                    let (lease, revision) = existing(&found).map_err(Failure)?;
                    (self.lease, self.revision) = (Lease::Stored(lease), revision);
                }
            }
        }
        Err(Failure("a Lease was changed by another client".into()))
    }

    /// Puts the renewed Lease if its mod revision is the known one, and otherwise gets the Lease.
    async fn replace(&self, connection: &Connection) -> Result<Replaced, Failure> {
        let (key, value) = match &self.lease {
            Lease::Own(lease) => (lease.key(), lease.encode_renewed(Time::now())),
            Lease::Stored(lease) => (lease.key(), lease.encode_renewed(Time::now())),
        };
        let request = replace_request(key, value.into(), self.revision);
        let response: TxnResponse = connection.call(TXN, &request).await?;
        Ok(Replaced::from(response))
    }
}

/// What a transaction has done.
#[derive(Debug, PartialEq)]
enum Replaced {
    /// The Lease was written, at this revision.
    Written(i64),
    /// The Lease has another mod revision. `None` if it does not exist.
    Changed(Option<KeyValue>),
}

impl From<TxnResponse> for Replaced {
    fn from(response: TxnResponse) -> Self {
        if response.succeeded {
            return Replaced::Written(response.header.map_or(0, |header| header.revision));
        }
        let found = response.responses.into_iter().find_map(|op| match op.response {
            Some(Response::ResponseRange(range)) => range.kvs.into_iter().next(),
            _ => None,
        });
        Replaced::Changed(found)
    }
}

/// The transaction of kube-apiserver: puts `key` if its mod revision is `revision`, and otherwise gets it.
fn replace_request(key: Bytes, value: Bytes, revision: i64) -> TxnRequest {
    let compare = Compare {
        result: CompareResult::Equal as i32,
        target: CompareTarget::Mod as i32,
        key: key.clone(),
        target_union: Some(TargetUnion::ModRevision(revision)),
        ..Default::default()
    };
    let write = PutRequest { key: key.clone(), value, ..Default::default() };
    let read = RangeRequest { key, ..Default::default() };
    let op = |request| vec![RequestOp { request: Some(request) }];
    TxnRequest {
        compare: vec![compare],
        success: op(Request::RequestPut(write)),
        failure: op(Request::RequestRange(read)),
    }
}

fn existing(pair: &KeyValue) -> Result<Existing, String> {
    let (key, value) = (Bytes::copy_from_slice(pair.key()), Bytes::copy_from_slice(pair.value()));
    Ok((StoredLease::new(key, value)?, pair.mod_revision()))
}

/// Reads the Leases of nodes in the store, and divides them among `clients`.
///
/// # Errors
/// Fails if a Lease cannot be renewed, or if there are fewer than `clients`.
pub async fn read_shares(connection: &Connection, clients: usize) -> Result<Vec<Vec<Existing>>> {
    let mut request = RangeRequest {
        key: PREFIX.into(),
        range_end: end_of_prefix(PREFIX),
        limit: PAGE,
        ..Default::default()
    };
    let mut all = Vec::new();
    loop {
        let response: RangeResponse = connection
            .call(RANGE, &request)
            .await
            .map_err(|Failure(reason)| anyhow!(reason))
            .context("read the Leases")?;
        for pair in response.kvs.iter().filter(|pair| is_renewed(pair.key())) {
            all.push(existing(pair).map_err(|reason| anyhow!(reason))?);
        }
        match response.kvs.last() {
            Some(last) if response.more => request.key = [last.key(), &[0]].concat().into(),
            _ => return shares(all, clients),
        }
    }
}

/// Divides Leases among `clients`, as evenly as possible.
fn shares<T>(all: Vec<T>, clients: usize) -> Result<Vec<Vec<T>>> {
    ensure!(
        all.len() >= clients,
        "the store has {} Leases below {PREFIX}, and each client needs one; lower --clients {clients}, or create nodes",
        all.len()
    );
    let mut shares: Vec<Vec<T>> = (0..clients).map(|_| Vec::new()).collect();
    for (index, lease) in all.into_iter().enumerate() {
        shares[index % clients].push(lease);
    }
    Ok(shares)
}

#[cfg(test)]
mod tests {
    use etcdpb::rpc::{ResponseHeader, ResponseOp};

    use super::*;

    #[test]
    fn each_lease_belongs_to_one_client() {
        let divided = shares((0..10).collect(), 4).unwrap();
        assert_eq!(divided, [vec![0, 4, 8], vec![1, 5, 9], vec![2, 6], vec![3, 7]]);
        let refused = shares(vec![1, 2], 3).unwrap_err().to_string();
        assert!(refused.contains("has 2 Leases") && refused.contains("--clients 3"), "{refused}");
    }

    #[test]
    fn a_changed_lease_is_found_in_the_response() {
        let written = TxnResponse {
            succeeded: true,
            header: Some(ResponseHeader { revision: 7, ..Default::default() }),
            ..Default::default()
        };
        assert_eq!(Replaced::from(written), Replaced::Written(7));
        let changed = |kvs| TxnResponse {
            responses: vec![ResponseOp {
                response: Some(Response::ResponseRange(RangeResponse {
                    kvs,
                    ..Default::default()
                })),
            }],
            ..Default::default()
        };
        assert_eq!(Replaced::from(changed(vec![])), Replaced::Changed(None));
        let pair = KeyValue::default();
        assert_eq!(Replaced::from(changed(vec![pair.clone()])), Replaced::Changed(Some(pair)));
    }

    #[test]
    fn a_renewal_depends_on_the_known_revision() {
        let request = replace_request("/a".into(), "b".into(), 42);
        assert_eq!(request.compare[0].target_union, Some(TargetUnion::ModRevision(42)));
        let Some(Request::RequestPut(put)) = &request.success[0].request else { panic!("no put") };
        assert_eq!((&put.key[..], &put.value[..]), (&b"/a"[..], &b"b"[..]));
        assert!(matches!(request.failure[0].request, Some(Request::RequestRange(_))));
    }
}
