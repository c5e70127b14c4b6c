//! The answer to a LIST, and its reservation.

use crate::protect::{AnswerSize, Reservation};

/// Follows the answer to a LIST that has a reservation.
pub struct ListAnswer {
    size: AnswerSize,
    reservation: Reservation,
}

impl ListAnswer {
    /// Starts with an answer with this `Content-Encoding`.
    pub fn new(content_encoding: &[u8], reservation: Reservation) -> ListAnswer {
        ListAnswer { size: AnswerSize::new(content_encoding, reservation.ratio()), reservation }
    }

    /// Follows further bytes.
    pub fn follow(&mut self, bytes: &[u8]) {
        self.size.follow(bytes);
        self.reservation.received(self.size.so_far());
    }

    /// Ends the reservation after the last byte.
    pub fn complete(self) {
        let (bytes, ratio) = self.size.at_end();
        self.reservation.complete(bytes, ratio);
    }
}
