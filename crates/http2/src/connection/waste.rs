//! Limits what a client may send that is of no use.
//!
//! A frame that changes nothing costs the server more than the client. Clients send a few
//! such frames, so single ones are accepted. They are counted, and useful frames reduce the
//! count.

use crate::event::ConnectionError;
use crate::frame::ErrorCode;

/// The connection is closed when its count exceeds this number.
const MAX_WASTE: u32 = 10_000;
/// How much an invalid frame counts. It costs an RST_STREAM frame.
pub(super) const INVALID_FRAME_WASTE: u32 = 10;
/// How much a valid request reduces the count.
pub(super) const REQUEST_CREDIT: u32 = 10;

/// The count of useless frames.
#[derive(Default)]
pub(super) struct Waste(u32);

impl Waste {
    /// Counts a useless frame. Fails if there were too many.
    pub(super) fn add(&mut self, waste: u32) -> Result<(), ConnectionError> {
        self.0 += waste;
        let (code, message) = (ErrorCode::EnhanceYourCalm, "too many useless frames");
        if self.0 > MAX_WASTE { Err(ConnectionError { code, message }) } else { Ok(()) }
    }

    /// Reduces the count after a useful frame.
    pub(super) fn reduce(&mut self, credit: u32) {
        self.0 = self.0.saturating_sub(credit);
    }
}
