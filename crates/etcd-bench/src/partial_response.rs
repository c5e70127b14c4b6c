//! Partially decoded responses. Fields that the load generator does not need are skipped, and
//! repeated messages are slices of the receive buffer that are not decoded. Otherwise the time
//! to decode hundreds of megabytes of values would count as latency of the server.

use bytes::Bytes;
use prost::Message;

/// The used fields of a `RangeResponse`.
#[derive(Message)]
pub struct Page {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    /// The encoded key-value pairs.
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub pairs: Vec<Bytes>,
    #[prost(bool, tag = "3")]
    pub more: bool,
    #[prost(int64, tag = "4")]
    pub count: i64,
}

/// The used fields of a `RangeStreamResponse`.
#[derive(Message)]
pub struct Chunk {
    #[prost(message, optional, tag = "1")]
    pub page: Option<Page>,
}

/// The used fields of a `WatchResponse`.
#[derive(Message)]
pub struct WatchEvents {
    #[prost(int64, tag = "2")]
    pub watch_id: i64,
    #[prost(bool, tag = "3")]
    pub created: bool,
    #[prost(bool, tag = "4")]
    pub canceled: bool,
    /// The encoded events.
    #[prost(bytes = "bytes", repeated, tag = "11")]
    pub events: Vec<Bytes>,
}

#[derive(Message)]
struct Header {
    #[prost(int64, tag = "3")]
    revision: i64,
}

#[derive(Message)]
struct Pair {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
}

impl Page {
    /// The revision in the header.
    pub fn revision(&self) -> i64 {
        self.header.as_ref().map_or(0, |header| header.revision)
    }

    /// The key of the last pair.
    pub fn last_key(&self) -> Option<Bytes> {
        let pair = Pair::decode(self.pairs.last()?.clone()).ok()?;
        Some(pair.key)
    }
}

#[cfg(test)]
mod tests {
    use etcdpb::rpc::{PutRequest, ResponseHeader};

    use super::*;

    #[test]
    fn used_fields_are_decoded() {
        // A PutRequest has its key in the same field as a KeyValue.
        let pair = |key: &'static [u8]| PutRequest { key: key.into(), ..Default::default() };
        let header = ResponseHeader { cluster_id: 7, revision: 42, ..Default::default() };
        let mut bytes = Vec::new();
        prost::encoding::message::encode(1, &header, &mut bytes);
        prost::encoding::message::encode(2, &pair(b"/a"), &mut bytes);
        prost::encoding::message::encode(2, &pair(b"/b"), &mut bytes);
        prost::encoding::bool::encode(3, &true, &mut bytes);
        prost::encoding::int64::encode(4, &9, &mut bytes);

        let page = Page::decode(Bytes::from(bytes)).unwrap();
        assert_eq!(page.revision(), 42);
        assert_eq!(page.pairs.len(), 2);
        assert_eq!(page.last_key().unwrap(), "/b");
        assert!(page.more);
    }
}
