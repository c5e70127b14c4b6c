//! In what an answer differs from the recorded one.

use trace::{Outcome, Response};

/// What came of a request here: the answer, or gRPC's code.
pub type Answer = Result<Option<Response>, u32>;

/// gRPC's code for a call whose connection broke.
pub const UNAVAILABLE: u32 = 14;

/// The first of what differs in kind, if something does: `code`, `succeeded`, `count`,
/// `pairs` or `deleted`.
pub fn difference(
    end: &Outcome,
    recorded: Option<&Response>,
    here: &Answer,
) -> Option<&'static str> {
    let recorded_code = end.code.unwrap_or(UNAVAILABLE);
    let here_code = here.as_ref().err().copied().unwrap_or(0);
    if recorded_code != here_code {
        return Some("code");
    }
    let (Some(recorded), Ok(Some(here))) = (recorded, here) else { return None };
    let checks = [
        ("succeeded", recorded.succeeded != here.succeeded),
        ("count", recorded.count != here.count),
        ("pairs", recorded.kvs != here.kvs),
        ("deleted", recorded.deleted != here.deleted),
    ];
    checks.into_iter().find_map(|(name, differs)| differs.then_some(name))
}

/// The code in the text of a failure, as `connection.rs` writes it.
pub fn code(failure: &str) -> u32 {
    let digits = failure.strip_prefix("code ").and_then(|rest| rest.split(':').next());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(UNAVAILABLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_in_kind() {
        let ok = Outcome { code: Some(0), ..Outcome::default() };
        let held = Response { succeeded: Some(true), revision: 5, ..Response::default() };
        let other = Response { succeeded: Some(true), revision: 9, ..Response::default() };
        let failed = Response { succeeded: Some(false), ..Response::default() };
        assert_eq!(difference(&ok, Some(&held), &Ok(Some(other))), None, "revisions may");
        assert_eq!(difference(&ok, Some(&held), &Ok(Some(failed))), Some("succeeded"));
        assert_eq!(difference(&ok, Some(&held), &Err(11)), Some("code"));
        assert_eq!(code("code 11: etcdserver: x"), 11);
        assert_eq!(code("connection: broken"), UNAVAILABLE);
    }
}
