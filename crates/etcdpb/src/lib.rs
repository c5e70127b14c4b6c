//! The messages of the etcd v3 API, and the in-memory layout of a key-value pair.
//!
//! All messages except [`KeyValue`] are generated from `proto/`. [`KeyValue`] is written
//! by hand: it wraps a [`Record`], which is how the store keeps a pair. A response shares
//! the records with the store, and is encoded directly from them.

#![warn(missing_docs)]

mod key;
mod key_value;
mod record;

pub use key::Key;
pub use key_value::KeyValue;
pub use record::Record;

/// Generated messages of package `mvccpb`.
#[allow(clippy::all, missing_docs)]
pub mod mvccpb {
    pub use crate::KeyValue;
    include!(concat!(env!("OUT_DIR"), "/mvccpb.rs"));
}

/// Generated messages of package `authpb`.
#[allow(clippy::all, missing_docs)]
pub mod authpb {
    include!(concat!(env!("OUT_DIR"), "/authpb.rs"));
}

/// Generated messages of package `etcdserverpb`.
#[allow(clippy::all, missing_docs)]
pub mod rpc {
    include!(concat!(env!("OUT_DIR"), "/etcdserverpb.rs"));
}

/// Generated messages of package `grpc.health.v1`.
#[allow(clippy::all, missing_docs)]
pub mod health {
    include!(concat!(env!("OUT_DIR"), "/grpc.health.v1.rs"));
}

/// Generated messages of package `grpc.reflection.v1`. The messages of package
/// `grpc.reflection.v1alpha` are identical.
#[allow(clippy::all, missing_docs)]
pub mod reflection {
    include!(concat!(env!("OUT_DIR"), "/grpc.reflection.v1.rs"));
}

/// The encoded `FileDescriptorSet` of all services above.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
