//! A block of header fields whose end has not been received yet.

/// A block of fields, and what its HEADERS frame announced.
pub(super) struct FieldBlock {
    pub(super) stream: u32,
    pub(super) end_stream: bool,
    /// Whether the frame's priority made the stream depend on itself, which is invalid.
    pub(super) depends_on_itself: bool,
    /// The encoded fields, as far as they have been received.
    pub(super) bytes: Vec<u8>,
}
