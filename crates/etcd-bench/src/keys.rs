//! The keys and values that the workloads write.

use bytes::Bytes;
use etcdpb::rpc::PutRequest;
use rand::RngExt;

use crate::load::Load;

/// The prefix of all keys, except those of lease-flood and fill.
pub const PREFIX: &[u8] = b"/bench/";
/// The end of the range of [`PREFIX`].
pub const PREFIX_END: &[u8] = b"/bench0";

/// The keys and the value that clients write.
#[derive(Clone)]
pub struct Keys {
    /// Number of different keys.
    pub space: u64,
    /// Key size in bytes.
    pub size: usize,
    value: Bytes,
}

impl Keys {
    /// Keys and a random value of the configured sizes.
    pub fn new(load: &Load) -> Self {
        let value = (0..load.val_size).map(|_| rand::random::<u8>()).collect();
        Keys { space: load.key_space_size, size: load.key_size, value }
    }

    /// Key number `n`, padded to the configured size.
    pub fn key(&self, n: u64) -> Bytes {
        let digits = self.size.saturating_sub(PREFIX.len());
        let mut key = PREFIX.to_vec();
        key.extend_from_slice(format!("{n:0digits$}").as_bytes());
        key.into()
    }

    /// A random key.
    pub fn random(&self) -> Bytes {
        self.key(rand::rng().random_range(0..self.space))
    }

    /// A put of `key`.
    pub fn put(&self, key: Bytes) -> PutRequest {
        PutRequest { key, value: self.value.clone(), ..Default::default() }
    }
}
