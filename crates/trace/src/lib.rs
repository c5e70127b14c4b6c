//! Traces of etcd requests and responses: the records of a trace, their file format
//! (`docs/trace-format.md`), and the analysis of single requests.
//!
//! # Reading order
//! `record` defines the records; `request`, `response`, `key` and `value` define their
//! parts. `file` reads and writes trace files. `decode` converts gRPC messages to requests
//! and responses. `shape` and `object` classify requests for reports.
//!
//! # Invariants
//! - A trace contains the keys of decoded requests and of watch events. Of the pairs that a
//!   range returns, it contains the number, not the keys. [`Values`] determines how much of
//!   each value in a request it contains.
//! - A message that cannot be decoded is recorded with its size.
//! - If records could not be written, a [`Missing`] record in their place contains the count
//!   of the missing records.
//! - If the writer was killed, the records up to its last flush can be read.

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

pub use decode::{decode_request, decode_response, is_stream};
pub use file::{Compression, Error, Reader, Writer};
pub use key::Key;
pub use object::{Object, object_of_key};
pub use record::{
    AbortedBy, Call, ClientMessage, End, Head, Missing, Open, Outcome, Record, ServerMessage,
    VERSION,
};
pub use request::{Compare, Delete, Operand, Put, Range, Request, Txn, WatchCreate};
pub use response::{Event, Lease, Response, WatchResponse};
pub use shape::{Class, Shape, shape, span_kind};
pub use value::{MAX_VALUE_BYTES, Value, Values};
