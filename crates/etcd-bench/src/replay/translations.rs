//! Derives translations of revisions and lease IDs from pairs of a recorded and a replayed
//! response.

use std::collections::BTreeMap;

use trace::{Request, Response};

use super::revisions::Revisions;

/// Adds translations to `revisions`: from each revision and lease ID of the recorded response
/// to that of the replayed response. Removes the translation of a revoked lease.
pub fn add_translations(
    revisions: &mut Revisions,
    request: &Request,
    recorded: &Response,
    replayed: &Response,
) {
    revisions.add_header_revision(recorded.revision, replayed.revision);
    let replayed_revisions: BTreeMap<_, _> = mod_revisions(request, replayed).into_iter().collect();
    for (key, recorded_revision) in mod_revisions(request, recorded) {
        if let Some(replayed_revision) = replayed_revisions.get(key) {
            revisions.add_mod_revision(key, recorded_revision, *replayed_revision);
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

/// Returns each key whose current mod revision follows from the request and its response, with
/// this mod revision. The revision is 0 if the key does not exist.
fn mod_revisions<'a>(request: &'a Request, response: &Response) -> Vec<(&'a [u8], i64)> {
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
            // With several ranges, `response` contains no mod revision.
            let has_one_get = gets.count() == 1;
            branch
                .iter()
                .filter(|request| has_one_get || !matches!(request, Request::Range(_)))
                .flat_map(|request| mod_revisions(request, response))
                .collect()
        }
        _ => Vec::new(),
    }
}
