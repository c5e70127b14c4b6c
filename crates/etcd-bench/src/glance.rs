//! Responses as far as the load looks at them: what is not declared here is
//! passed over, and what is repeated stays a slice of the receive buffer. The
//! client shares its time with the server that it measures; decoding a hundred
//! megabytes of values that nobody looks at would count as the server's.

use bytes::Bytes;
use prost::Message;

/// Of a `RangeResponse`.
#[derive(Message)]
pub struct Page {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    /// Pairs, still encoded.
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub pairs: Vec<Bytes>,
    #[prost(bool, tag = "3")]
    pub more: bool,
}

/// Of a `RangeStreamResponse`.
#[derive(Message)]
pub struct Chunk {
    #[prost(message, optional, tag = "1")]
    pub page: Option<Page>,
}

/// Of a `WatchResponse`.
#[derive(Message)]
pub struct Told {
    #[prost(int64, tag = "2")]
    pub watch_id: i64,
    #[prost(bool, tag = "3")]
    pub created: bool,
    #[prost(bool, tag = "4")]
    pub canceled: bool,
    /// Events, still encoded.
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
    /// The revision at which it was read.
    pub fn revision(&self) -> i64 {
        self.header.as_ref().map_or(0, |header| header.revision)
    }

    /// The key of its last pair.
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
    fn page_is_read_from_the_whole_message() {
        // A put has key and value where a stored pair has its key and more.
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
