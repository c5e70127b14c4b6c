//! Parts of a response.

use bytes::Bytes;

use crate::fields::Fields;

/// A field that many responses of a connection have in common. The encoder adds it to the
/// HPACK dynamic table when it is first used. In later responses it takes one byte.
#[derive(Debug, PartialEq, Eq)]
pub struct CommonField {
    /// The name in lower case.
    pub name: &'static str,
    /// The value.
    pub value: &'static str,
}

/// Header or trailer fields of a response.
#[derive(Debug)]
pub enum Headers {
    /// Fields that many responses share. A program should have few such fields: the
    /// encoder never removes one from the dynamic table, and sends those that do not fit
    /// as literals.
    Common(&'static [CommonField]),
    /// Fields of this response.
    Fields(Fields),
}

impl Headers {
    /// Memory in bytes, without what responses share.
    pub(crate) fn held_bytes(&self) -> usize {
        match self {
            Headers::Common(_) => 0,
            Headers::Fields(fields) => fields.held_bytes(),
        }
    }
}

/// The status and the header fields of a response.
#[derive(Debug)]
pub struct ResponseHead {
    /// The HTTP status code, such as 200.
    pub status: u16,
    /// The header fields, without pseudo-header fields.
    pub headers: Headers,
}

/// A part of a response's body.
pub enum Data {
    /// Bytes in memory.
    Bytes(Bytes),
    /// Bytes that an iterator produces just before they are framed, so that a large body
    /// is never completely in memory. If it ends early, the stream is reset with
    /// `ENHANCE_YOUR_CALM`.
    Lazy {
        /// The exact number of bytes that the iterator yields in total.
        len: usize,
        /// Approximate memory in bytes that the iterator holds until it is dropped.
        held_bytes: usize,
        /// The bytes in order.
        chunks: Box<dyn Iterator<Item = Bytes> + Send>,
    },
}

impl Data {
    /// Number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Data::Bytes(bytes) => bytes.len(),
            Data::Lazy { len, .. } => *len,
        }
    }

    /// Memory in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        match self {
            Data::Bytes(bytes) => bytes.len(),
            Data::Lazy { held_bytes, .. } => *held_bytes,
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Bytes> for Data {
    fn from(bytes: Bytes) -> Self {
        Data::Bytes(bytes)
    }
}
