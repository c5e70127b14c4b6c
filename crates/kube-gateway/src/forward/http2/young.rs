//! Watches that have not sent anything yet.
//!
//! client-go answers a watch that ends within a second and without an event with a new list. If the
//! API server of such a watch is lost, the request is sent again, and the new answer goes on with the
//! old one: the client has had only its head, which is the same.

use std::time::{Duration, Instant};

use http::StatusCode;
use http2::Fields;

use crate::forward::watch::MIN_AGE;

/// Fields of a head that say how the body is read.
const FORMAT: [&[u8]; 3] = [b"content-type", b"content-encoding", CONTENT_LENGTH];
const CONTENT_LENGTH: &[u8] = b"content-length";
/// The client can end an older watch without a new list.
const MAX_AGE: Duration = MIN_AGE;

/// The head of a watch that the client has.
pub struct Given {
    format: [Option<Vec<u8>>; 3],
    since: Instant,
}

impl Given {
    /// Keeps a head that is sent now; `None` if no other answer can go on with it, as it is an error
    /// or states the length of the body.
    pub fn new(status: StatusCode, fields: &Fields, now: Instant) -> Option<Given> {
        let format = format_of(fields);
        let can_go_on = status == StatusCode::OK && fields.get(CONTENT_LENGTH).is_none();
        can_go_on.then_some(Given { format, since: now })
    }

    /// Whether an answer with this head can go on with the one that has begun.
    pub fn is_like(&self, status: StatusCode, fields: &Fields) -> bool {
        status == StatusCode::OK && self.format == format_of(fields)
    }

    /// Whether the answer began a short time ago.
    pub fn is_young(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < MAX_AGE
    }
}

fn format_of(fields: &Fields) -> [Option<Vec<u8>>; 3] {
    FORMAT.map(|name| fields.get(name).map(<[u8]>::to_vec))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&str, &str)]) -> Fields {
        pairs.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect()
    }

    #[test]
    fn errors_and_bodies_of_known_length_do_not_go_on() {
        let now = Instant::now();
        assert!(Given::new(StatusCode::GONE, &Fields::default(), now).is_none());
        assert!(Given::new(StatusCode::OK, &fields(&[("content-length", "7")]), now).is_none());
    }

    #[test]
    fn only_a_body_of_the_same_format_goes_on() {
        let json = fields(&[("content-type", "application/json"), ("audit-id", "a")]);
        let given = Given::new(StatusCode::OK, &json, Instant::now()).unwrap();
        let other_id = fields(&[("audit-id", "b"), ("content-type", "application/json")]);
        assert!(given.is_like(StatusCode::OK, &other_id));
        assert!(!given.is_like(StatusCode::GATEWAY_TIMEOUT, &json));
        for more in [("content-encoding", "gzip"), ("content-length", "7")] {
            let unlike = fields(&[("content-type", "application/json"), more]);
            assert!(!given.is_like(StatusCode::OK, &unlike));
        }
        let protobuf = fields(&[("content-type", "application/vnd.kubernetes.protobuf")]);
        assert!(!given.is_like(StatusCode::OK, &protobuf));
    }

    #[test]
    fn it_is_young_for_a_short_time() {
        let now = Instant::now();
        let given = Given::new(StatusCode::OK, &Fields::default(), now).unwrap();
        assert!(given.is_young(now + MAX_AGE - Duration::from_millis(1)));
        assert!(!given.is_young(now + MAX_AGE));
    }
}
