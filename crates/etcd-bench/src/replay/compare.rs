//! Compares the outcomes of replayed calls with the recorded ones.

use trace::{Outcome, Response};

/// The outcome of a replayed call: the response, or the gRPC code of the error. The response is
/// `None` if traces contain no responses of the method.
pub type ReplayOutcome = Result<Option<Response>, u32>;

/// The gRPC code that stands for an outcome without a code, such as a broken connection.
pub const UNAVAILABLE: u32 = 14;

/// The name of the first difference: `code`, `succeeded`, `count`, `pairs` or `deleted`; `None`
/// if there is none. Revisions are not compared.
pub fn first_difference(
    recorded_outcome: &Outcome,
    recorded: Option<&Response>,
    replayed: &ReplayOutcome,
) -> Option<&'static str> {
    let recorded_code = recorded_outcome.code.unwrap_or(UNAVAILABLE);
    let replayed_code = replayed.as_ref().err().copied().unwrap_or(0);
    if recorded_code != replayed_code {
        return Some("code");
    }
    let (Some(recorded), Ok(Some(replayed))) = (recorded, replayed) else { return None };
    let checks = [
        ("succeeded", recorded.succeeded != replayed.succeeded),
        ("count", recorded.count != replayed.count),
        ("pairs", recorded.kvs != replayed.kvs),
        ("deleted", recorded.deleted != replayed.deleted),
    ];
    checks.into_iter().find_map(|(name, differs)| differs.then_some(name))
}

/// The gRPC code in the text of a [`etcd_client::Failure`], or [`UNAVAILABLE`] if there is
/// none.
pub fn grpc_code(failure: &str) -> u32 {
    let digits = failure.strip_prefix("code ").and_then(|rest| rest.split(':').next());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(UNAVAILABLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_found() {
        let ok = Outcome { code: Some(0), ..Outcome::default() };
        let succeeded = Response { succeeded: Some(true), revision: 5, ..Response::default() };
        let other_revision = Response { succeeded: Some(true), revision: 9, ..Response::default() };
        let failed = Response { succeeded: Some(false), ..Response::default() };
        assert_eq!(
            first_difference(&ok, Some(&succeeded), &Ok(Some(other_revision))),
            None,
            "revisions were compared"
        );
        assert_eq!(first_difference(&ok, Some(&succeeded), &Ok(Some(failed))), Some("succeeded"));
        assert_eq!(first_difference(&ok, Some(&succeeded), &Err(11)), Some("code"));
        assert_eq!(grpc_code("code 11: etcdserver: x"), 11);
        assert_eq!(grpc_code("connection: broken"), UNAVAILABLE);
    }
}
