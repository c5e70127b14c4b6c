//! Derives the translation of revisions and lease IDs from responses.

use std::collections::BTreeMap;

use trace::{Request, Response};

use super::revisions::Revisions;

/// Adds the revisions and leases of a recorded and a replayed response to the
/// translation.
pub fn learn(
    revisions: &mut Revisions,
    request: &Request,
    recorded: &Response,
    replayed: &Response,
) {
    revisions.add_header(recorded.revision, replayed.revision);
    let replayed_states: BTreeMap<_, _> = key_states(request, replayed).into_iter().collect();
    for (key, recorded_revision) in key_states(request, recorded) {
        if let Some(replayed_revision) = replayed_states.get(key) {
            revisions.add_key(key, recorded_revision, *replayed_revision);
        }
    }
    match request {
        Request::LeaseGrant { .. } => {
            if let (Some(recorded), Some(replayed)) = (recorded.lease, replayed.lease) {
                revisions.add_lease(recorded.id, replayed.id);
            }
        }
        Request::LeaseRevoke { id } => revisions.remove_lease(*id),
        _ => {}
    }
}

/// The keys whose mod revisions a response reveals, with these revisions; 0 for a key
/// that does not exist.
fn key_states<'a>(request: &'a Request, response: &Response) -> Vec<(&'a [u8], i64)> {
    match request {
        Request::Put(put) => vec![(&put.key.0, response.revision)],
        Request::Delete(delete) if delete.range_end.is_empty() => vec![(&delete.key.0, 0)],
        Request::Range(range) if range.range_end.is_empty() && range.revision == 0 => {
            vec![(&range.key.0, response.mod_revision)]
        }
        Request::Txn(txn) => {
            let succeeded = response.succeeded == Some(true);
            let branch = if succeeded { &txn.success } else { &txn.failure };
            let gets = branch.iter().filter(|request| matches!(request, Request::Range(_)));
            let has_one_get = gets.count() == 1;
            branch
                .iter()
                .filter(|request| has_one_get || !matches!(request, Request::Range(_)))
                .flat_map(|request| key_states(request, response))
                .collect()
        }
        _ => Vec::new(),
    }
}
