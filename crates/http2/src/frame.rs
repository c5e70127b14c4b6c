//! The layout of HTTP/2 frames (RFC 9113, sections 4 and 6).

/// Size of a frame header in bytes.
pub const HEADER_BYTES: usize = 9;
/// The largest payload in bytes that this server accepts and sends. Every peer accepts
/// it: it is the minimum of SETTINGS_MAX_FRAME_SIZE.
pub const MAX_PAYLOAD_BYTES: usize = 16_384;
/// The first bytes that a client sends.
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Types of frames.
#[allow(missing_docs)]
pub mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PUSH_PROMISE: u8 = 5;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

/// Flags of frames.
#[allow(missing_docs)]
pub mod flag {
    pub const ACK: u8 = 0x1;
    pub const END_STREAM: u8 = 0x1;
    pub const END_HEADERS: u8 = 0x4;
    pub const PADDED: u8 = 0x8;
    pub const PRIORITY: u8 = 0x20;
}

/// Identifiers of the parameters in SETTINGS frames.
#[allow(missing_docs)]
pub mod setting {
    pub const HEADER_TABLE_SIZE: u16 = 1;
    pub const ENABLE_PUSH: u16 = 2;
    pub const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub const INITIAL_WINDOW_SIZE: u16 = 4;
    pub const MAX_FRAME_SIZE: u16 = 5;
    pub const MAX_HEADER_LIST_SIZE: u16 = 6;
    pub const ENABLE_CONNECT_PROTOCOL: u16 = 8;
}

/// Error codes of RST_STREAM and GOAWAY frames (RFC 9113, section 7).
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorCode {
    NoError = 0,
    ProtocolError = 1,
    InternalError = 2,
    FlowControlError = 3,
    SettingsTimeout = 4,
    StreamClosed = 5,
    FrameSizeError = 6,
    RefusedStream = 7,
    Cancel = 8,
    CompressionError = 9,
    ConnectError = 10,
    EnhanceYourCalm = 11,
    InadequateSecurity = 12,
    Http11Required = 13,
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Length of the payload in bytes.
    pub len: usize,
    /// The frame's type, see [`kind`].
    pub kind: u8,
    /// The frame's flags, see [`flag`].
    pub flags: u8,
    /// The stream's ID, or 0 for the connection.
    pub stream: u32,
}

impl FrameHeader {
    /// Decodes the header at the start of `bytes`; `None` if it is incomplete.
    pub fn peek(bytes: &[u8]) -> Option<FrameHeader> {
        let [l2, l1, l0, kind, flags, s3, s2, s1, s0] = *bytes.first_chunk::<HEADER_BYTES>()?;
        Some(FrameHeader {
            len: u32::from_be_bytes([0, l2, l1, l0]) as usize,
            kind,
            flags,
            stream: u32::from_be_bytes([s3, s2, s1, s0]) & 0x7fff_ffff,
        })
    }

    /// Whether `flag` is set.
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Encodes the header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let [_, l2, l1, l0] = (self.len as u32).to_be_bytes();
        let [s3, s2, s1, s0] = self.stream.to_be_bytes();
        [l2, l1, l0, self.kind, self.flags, s3, s2, s1, s0]
    }
}

/// Decodes the big-endian number at the start of `payload`; `None` if it is shorter than
/// four bytes.
pub fn read_u32(payload: &[u8]) -> Option<u32> {
    payload.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}
