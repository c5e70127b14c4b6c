//! Compares what an API server did with what would have been done.

use http::StatusCode;
use node_lease::Lease;

/// Bytes that a description shows.
const SHOWN: usize = 24;

/// What an answer says about the prediction that the renewal succeeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checked {
    /// The bodies are equal. The stored value must be this one.
    Equal(Vec<u8>),
    /// They differ, as described.
    Different(String),
    /// Nothing: the request failed for a reason of which the store would have told too, or which has
    /// nothing to do with the Lease.
    Nothing,
}

/// Compares the answer to a request with the predicted one. The second in which an API server
/// executed the request is only known from its answer.
pub fn check_answer(request: &Lease<'_>, status: StatusCode, body: &[u8]) -> Checked {
    match status {
        StatusCode::OK => {}
        // Somebody else has changed or deleted the Lease.
        StatusCode::CONFLICT | StatusCode::NOT_FOUND => return Checked::Nothing,
        StatusCode::TOO_MANY_REQUESTS => return Checked::Nothing,
        _ if status.is_server_error() => return Checked::Nothing,
        _ => return Checked::Different(format!("the status is {}, not 200", status.as_u16())),
    }
    let Some(answer) = Lease::parse(body) else {
        return Checked::Different("the answer is not a Lease of the expected form".into());
    };
    let Some(version) = answer.resource_version else {
        return Checked::Different("the answer has no resourceVersion".into());
    };
    match difference(&request.answer(answer.managed_time, version), body) {
        Some(text) => Checked::Different(format!("the answer {text}")),
        None => Checked::Equal(request.stored(answer.managed_time)),
    }
}

/// Compares a stored value with the predicted one.
pub fn check_stored(expected: &[u8], found: &[u8]) -> Option<String> {
    difference(expected, found).map(|text| format!("the stored value {text}"))
}

/// Describes the first difference.
fn difference(expected: &[u8], found: &[u8]) -> Option<String> {
    if expected == found {
        return None;
    }
    let at = expected.iter().zip(found).take_while(|(expected, found)| expected == found).count();
    let part = |bytes: &[u8]| bytes[at..bytes.len().min(at + SHOWN)].escape_ascii().to_string();
    Some(format!(
        "differs at byte {at}: expected \"{}\" of {} bytes, found \"{}\" of {} bytes",
        part(expected),
        expected.len(),
        part(found),
        found.len()
    ))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::super::sample;
    use super::*;

    #[test]
    fn an_answer_is_equal_whatever_its_time_and_version() {
        let body = sample::lease("node-1", 7, 110, "kubelet");
        let request = Lease::parse(&body).unwrap();
        let answer = request.answer(1234, NonZeroU64::new(99).unwrap());
        let stored = request.stored(1234);
        assert_eq!(check_answer(&request, StatusCode::OK, &answer), Checked::Equal(stored.clone()));
        assert_eq!(check_stored(&stored, &stored), None);
    }

    #[test]
    fn differences_are_described() {
        let body = sample::lease("node-1", 7, 110, "kubelet");
        let request = Lease::parse(&body).unwrap();
        let other = sample::lease("node-2", 8, 110, "kubelet");
        let found = check_answer(&request, StatusCode::OK, &other);
        let Checked::Different(text) = found else { panic!("{found:?}") };
        assert!(text.starts_with("the answer differs at byte") && text.contains("\"1"), "{text}");
        let text = check_stored(b"abc", b"ab").unwrap();
        let expected =
            "the stored value differs at byte 2: expected \"c\" of 3 bytes, found \"\" of 2 bytes";
        assert_eq!(text, expected);
        for (status, body) in [(200, &b"{}"[..]), (403, b""), (422, b""), (401, b"")] {
            let status = StatusCode::from_u16(status).unwrap();
            let found = check_answer(&request, status, body);
            assert!(matches!(found, Checked::Different(_)), "{status}");
        }
    }

    #[test]
    fn failures_that_the_store_would_have_too_say_nothing() {
        let body = sample::lease("node-1", 7, 110, "kubelet");
        let request = Lease::parse(&body).unwrap();
        for status in [404, 409, 429, 500, 503, 504] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(check_answer(&request, status, b""), Checked::Nothing, "{status}");
        }
    }
}
