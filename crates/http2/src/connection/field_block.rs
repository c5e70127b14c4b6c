//! A block of fields that HEADERS starts and CONTINUATION frames continue.

/// A block of fields and the flags of its HEADERS frame.
pub(super) struct FieldBlock {
    pub(super) stream: u32,
    pub(super) end_stream: bool,
    /// Whether the frame's priority made the stream depend on itself, which is invalid.
    pub(super) depends_on_itself: bool,
    /// The encoded fields that have been received so far; empty if HEADERS contains all.
    pub(super) bytes: Vec<u8>,
    /// Size of the frames that have been received so far, with their frame headers.
    pub(super) received_bytes: usize,
}
