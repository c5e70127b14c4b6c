//! Limits what a client may send that is of no use.
//!
//! A frame that changes nothing costs the server more than the client, and so does a short
//! block of fields that is long when it is decoded. Clients send a few such frames, so single
//! ones are accepted. They are counted, and useful frames reduce the count.

use crate::event::ConnectionError;
use crate::frame::ErrorCode;
use crate::hpack::DEFAULT_TABLE_BYTES;

/// The connection is closed when its count exceeds this number.
const MAX_WASTE: u32 = 10_000;
/// How much an invalid frame counts. It costs an RST_STREAM frame.
pub(super) const INVALID_FRAME_WASTE: u32 = 10;
/// How much a valid request reduces the count.
pub(super) const REQUEST_CREDIT: u32 = 10;
/// Decoded bytes for which each encoded byte of a block of fields pays: a single byte can stand
/// for an entry of the static table, which has up to 60 bytes with its overhead.
const DECODED_BYTES_PER_BYTE: usize = 64;
/// How many decoded bytes beyond that count as a useless frame. It takes about as long to
/// decode and validate them.
const EXCESS_BYTES: usize = 128;
/// How many streams whose windows a SETTINGS frame changes count as a useless frame.
const CHANGED_WINDOWS: usize = 128;

/// The count of useless frames.
#[derive(Default)]
pub(super) struct Waste(u32);

impl Waste {
    /// Counts a useless frame. Fails if there were too many.
    pub(super) fn add(&mut self, waste: u32) -> Result<(), ConnectionError> {
        self.0 = self.0.saturating_add(waste);
        let (code, message) = (ErrorCode::EnhanceYourCalm, "too many useless frames");
        if self.0 > MAX_WASTE { Err(ConnectionError { code, message }) } else { Ok(()) }
    }

    /// Counts a block of fields that is much longer decoded than encoded. An encoder that refers
    /// to each entry of the dynamic table at most once in a block makes no such block. Fails if
    /// there were too many.
    pub(super) fn add_block(
        &mut self,
        encoded_bytes: usize,
        decoded_bytes: usize,
    ) -> Result<(), ConnectionError> {
        let paid = DEFAULT_TABLE_BYTES + DECODED_BYTES_PER_BYTE * encoded_bytes;
        match decoded_bytes.saturating_sub(paid) / EXCESS_BYTES {
            0 => Ok(()),
            excess => self.add(excess as u32),
        }
    }

    /// Counts a change of the windows of `streams` open streams. Fails if there were too many.
    pub(super) fn add_window_changes(&mut self, streams: usize) -> Result<(), ConnectionError> {
        self.add(streams.div_ceil(CHANGED_WINDOWS) as u32)
    }

    /// Reduces the count after a useful frame.
    pub(super) fn reduce(&mut self, credit: u32) {
        self.0 = self.0.saturating_sub(credit);
    }
}
