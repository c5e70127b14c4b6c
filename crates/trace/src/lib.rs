//! Traces of etcd requests and responses: the records of a trace, their file format
//! (`docs/trace-format.md`), and the analysis of single requests.
//!
//! # Reading order
//! `record` defines the records; `request`, `response`, `key` and `value` are their
//! parts. `file` reads and writes trace files. `decode` converts gRPC messages to
//! requests and responses. `shape` and `object` classify requests for reports.
//!
//! # Invariants
//! - A trace contains all keys. How much of each value it contains is set by
//!   [`Values`].
//! - A message that cannot be decoded has a record with its size.
//! - If records could not be written, a [`Missing`] record in their place contains
//!   their number.
//! - If the writer was killed, the file can be read up to the last flush.

#![warn(missing_docs)]

mod decode;
mod file;
mod key;
mod object;
mod omit;
mod record;
mod request;
mod response;
mod shape;
mod value;

pub use decode::{is_stream, request, response};
pub use file::{Compression, Error, Reader, Writer};
pub use key::Key;
pub use object::{Object, object};
pub use record::{Call, Cut, End, Head, Missing, Open, Outcome, Received, Record, Sent, VERSION};
pub use request::{Compare, Delete, Operand, Put, Range, Request, Txn, WatchCreate};
pub use response::{Event, Lease, Response, WatchResponse};
pub use shape::{Class, Shape, shape, span_kind};
pub use value::{MAX_VALUE_BYTES, Value, Values};
