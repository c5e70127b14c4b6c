//! Totals of lease requests, and of puts with a lease.

use std::collections::{BTreeMap, HashMap};

use trace::{Put, Request};

use super::shape_and_kind_totals::{MAX_NAMES, MAX_TRACKED};
use super::summary::Leases;

/// The totals of the lease requests so far.
#[derive(Default)]
pub struct LeaseTotals {
    leases: Leases,
    /// Number of grants by TTL in seconds. TTLs beyond [`MAX_NAMES`] are counted under 0.
    ttls: BTreeMap<i64, u64>,
    /// Number of puts by lease ID.
    puts_by_lease: HashMap<i64, u64>,
}

impl LeaseTotals {
    /// Adds a request, if it is a lease request or contains a put with a lease.
    pub fn add(&mut self, request: &Request) {
        match request {
            Request::LeaseGrant { ttl, .. } => {
                self.leases.granted += 1;
                let has_room = self.ttls.len() < MAX_NAMES;
                *self.ttls.entry(if has_room { *ttl } else { 0 }).or_default() += 1;
            }
            Request::LeaseRevoke { .. } => self.leases.revoked += 1,
            Request::LeaseKeepAlive { .. } => self.leases.keep_alives += 1,
            Request::Put(put) => self.add_put(put),
            Request::Txn(txn) => {
                txn.success.iter().chain(&txn.failure).for_each(|request| self.add(request));
            }
            _ => {}
        }
    }

    fn add_put(&mut self, put: &Put) {
        if put.lease == 0 {
            return;
        }
        self.leases.attached_puts += 1;
        if self.puts_by_lease.len() < MAX_TRACKED || self.puts_by_lease.contains_key(&put.lease) {
            *self.puts_by_lease.entry(put.lease).or_default() += 1;
        }
    }

    /// Converts to the section of the report.
    pub fn finish(mut self) -> Leases {
        self.leases.ttls = self.ttls.into_iter().collect();
        self.leases.attached_leases = self.puts_by_lease.len() as u64;
        self.leases.puts_per_lease_max = self.puts_by_lease.values().copied().max().unwrap_or(0);
        self.leases
    }
}
