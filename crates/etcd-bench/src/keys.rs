//! The keys and the value of the workloads, except lease-flood and fill.

use bytes::Bytes;
use etcdpb::rpc::PutRequest;
use rand::RngExt;

use crate::load::Load;

/// The prefix of the keys.
pub const PREFIX: &[u8] = b"/bench/";
/// The end of the range of [`PREFIX`].
pub const PREFIX_END: &[u8] = b"/bench0";

/// The end of the range of all keys with `prefix`, which has the next key after the last of them.
pub fn end_of_prefix(prefix: &str) -> Bytes {
    let mut end = prefix.as_bytes().to_vec();
    // The prefix is UTF-8, so its last byte is less than 255.
    end.last_mut().into_iter().for_each(|byte| *byte += 1);
    end.into()
}

/// The key space of the workload, and the value that clients write to all keys.
#[derive(Clone)]
pub struct Keys {
    /// Number of different keys.
    pub count: u64,
    /// Key size in bytes.
    pub size: usize,
    value: Bytes,
}

impl Keys {
    /// Creates the key space and a random value, with the configured sizes.
    pub fn new(load: &Load) -> Self {
        let value = (0..load.val_size).map(|_| rand::random::<u8>()).collect();
        Keys { count: load.key_space_size, size: load.key_size, value }
    }

    /// The key with number `n`. The number is padded with zeros so that the key has at least the
    /// configured size.
    pub fn key(&self, n: u64) -> Bytes {
        let digits = self.size.saturating_sub(PREFIX.len());
        let mut key = PREFIX.to_vec();
        key.extend_from_slice(format!("{n:0digits$}").as_bytes());
        key.into()
    }

    /// A random key of the key space.
    pub fn random(&self) -> Bytes {
        self.key(rand::rng().random_range(0..self.count))
    }

    /// A put of the value to `key`.
    pub fn put(&self, key: Bytes) -> PutRequest {
        PutRequest { key, value: self.value.clone(), ..Default::default() }
    }
}
