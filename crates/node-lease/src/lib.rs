//! Leases as bytes: renewals, and what kube-apiserver sends of a stored value.
//!
//! A kubelet renews its Lease every ten seconds: it sends the Lease of the last answer with another
//! `renewTime`. kube-apiserver then stores the old value with two fields replaced, `renewTime` and
//! the time of the entry in `managedFields`, and answers with the same bytes and the new
//! `resourceVersion`. This crate computes both values from the request, without decoding it.
//!
//! ```text
//! k8s\0 Unknown { typeMeta, raw, contentEncoding "", contentType "" }
//!                           └─ Lease { metadata, spec }
//!   metadata:  head │ resourceVersion │ middle │ managedFields [ head │ time │ tail ]
//!   spec:      head │ renewTime │ tail
//! ```
//!
//! [`with_renew_time`] is the side of the client: the request that renews a Lease, from the bytes of the
//! last answer. [`with_duration`] changes for how long a Lease is valid.
//!
//! # Invariants
//! - Two Leases with the same [`Fingerprint`] differ in `renewTime`, `resourceVersion` and the time of
//!   the entry in `managedFields` at most. A client cannot find a second Lease with the fingerprint of
//!   another one.
//! - A Lease for which kube-apiserver would do anything else than replace these fields is not
//!   [renewable](Lease::is_renewable), or not parsed at all.
//!
//! # Reading order
//! `lease.rs` takes a renewal apart and puts it together; `renewal.rs` writes the request of a client;
//! `stored.rs` takes apart any Lease that is stored; `wire.rs` reads and writes protobuf.
//!
//! Sources: `k8s.io/api/coordination/v1/generated.proto`,
//! `k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto`,
//! `k8s.io/apimachinery/pkg/util/managedfields/internal`, `k8s.io/apiserver/pkg/endpoints/handlers`.

mod lease;
mod renewal;
mod stored;
mod wire;

pub use lease::{Fingerprint, Lease, Timestamp};
pub use renewal::{with_duration, with_renew_time};
pub use stored::StoredLease;
