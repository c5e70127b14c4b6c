//! The etcd v3 API on the wire: messages, and the layout of a stored
//! key-value pair.
//!
//! All messages but one are generated from `proto/etcd`. [`KeyValue`] is
//! written by hand: it wraps a [`Record`], the form in which the store keeps a
//! pair, so that a reply is encoded straight from memory that is shared with
//! the store and never copied in between.

mod key_value;
mod record;

pub use key_value::KeyValue;
pub use record::{Key, Record};

/// Generated messages of package `mvccpb`.
#[allow(clippy::all, missing_docs)]
pub mod mvccpb {
    pub use crate::KeyValue;
    include!(concat!(env!("OUT_DIR"), "/mvccpb.rs"));
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

/// Generated messages of package `grpc.reflection.v1`, which are also those of
/// `v1alpha`.
#[allow(clippy::all, missing_docs)]
pub mod reflection {
    include!(concat!(env!("OUT_DIR"), "/grpc.reflection.v1.rs"));
}

/// A `FileDescriptorSet` of everything above.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
