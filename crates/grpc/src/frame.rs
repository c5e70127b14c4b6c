//! Frames of HTTP/2 (RFC 9113, section 6).

/// What comes before the payload of each frame.
pub(crate) const HEAD_BYTES: usize = 9;
/// The largest payload that we take, and the least that a peer must.
pub(crate) const PAYLOAD_BYTES: usize = 16_384;
/// What a client says first.
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const PRIORITY: u8 = 2;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PUSH_PROMISE: u8 = 5;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
}

pub(crate) mod flag {
    pub(crate) const ACK: u8 = 0x1;
    pub(crate) const END_STREAM: u8 = 0x1;
    pub(crate) const END_HEADERS: u8 = 0x4;
    pub(crate) const PADDED: u8 = 0x8;
    pub(crate) const PRIORITY: u8 = 0x20;
}

pub(crate) mod setting {
    pub(crate) const HEADER_TABLE_SIZE: u16 = 1;
    pub(crate) const ENABLE_PUSH: u16 = 2;
    pub(crate) const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;
    pub(crate) const MAX_FRAME_SIZE: u16 = 5;
    pub(crate) const MAX_HEADER_LIST_SIZE: u16 = 6;
}

/// Why a stream or a connection is ended (RFC 9113, section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Reason {
    NoError = 0,
    Protocol = 1,
    FlowControl = 3,
    StreamClosed = 5,
    FrameSize = 6,
    RefusedStream = 7,
    Compression = 9,
    EnhanceYourCalm = 11,
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) len: usize,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
}

impl Head {
    /// The head at the beginning of `bytes`, if it is there in full.
    pub(crate) fn peek(bytes: &[u8]) -> Option<Head> {
        let [l2, l1, l0, kind, flags, s3, s2, s1, s0] = *bytes.first_chunk::<HEAD_BYTES>()?;
        Some(Head {
            len: u32::from_be_bytes([0, l2, l1, l0]) as usize,
            kind,
            flags,
            stream: u32::from_be_bytes([s3, s2, s1, s0]) & 0x7fff_ffff,
        })
    }

    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(crate) fn encode(&self) -> [u8; HEAD_BYTES] {
        let [_, l2, l1, l0] = (self.len as u32).to_be_bytes();
        let [s3, s2, s1, s0] = self.stream.to_be_bytes();
        [l2, l1, l0, self.kind, self.flags, s3, s2, s1, s0]
    }
}

/// A number of 32 bits at the beginning of `payload`.
pub(crate) fn number(payload: &[u8]) -> Option<u32> {
    payload.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}
