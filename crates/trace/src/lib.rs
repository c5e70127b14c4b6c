//! Recordings of what an etcd is asked and answers: the lines they are made of
//! (`docs/trace-format.md`), their files, and what a line is about.
//!
//! # Invariants
//! - Keys are always there; of values there is what [`Values`] says.
//! - A message that cannot be decoded is a line all the same, with its sizes.
//! - What is missing is said in the file, at the place where it is missing.
//! - A file whose writer was killed can be read up to its last flush.

mod decode;
mod file;
mod key;
mod line;
mod object;
mod shape;

pub use decode::{is_stream, request, response};
pub use file::{Compression, Error, Reader, Writer};
pub use key::Key;
pub use line::*;
pub use object::{Object, object};
pub use shape::{Class, Shape, shape, span};
