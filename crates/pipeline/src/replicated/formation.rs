//! How members without state form a cluster, or find the one that exists.
//!
//! A member without state has a random identity, and asks at the peer URLs of all others who is
//! there. If all answer and none has state, each of them knows the same identities, and begins with
//! the same membership. If some member has state, this one joins that cluster: it waits until the
//! leader finds it, and sends it the state.
//!
//! The ID of a cluster depends on the identities of its first members. So if a member restarts while
//! others form the cluster, members with different memberships never talk to each other. Its upper
//! half depends on the token only, so members with another token are recognized.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use consensus::id::ClusterId;
use consensus::membership::{MemberInfo, Membership};
use crc32c::crc32c;
use peer::{Identity, PeerUrl, Transport};

/// Interval between two attempts.
const INTERVAL: Duration = Duration::from_millis(100);
/// Interval at which the member logs for whom it waits.
pub(super) const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// The members with which a cluster begins: names and peer URLs.
pub(super) type InitialCluster = [(String, Vec<PeerUrl>)];

/// What the members have agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Formed {
    /// A new cluster with these members.
    New(ClusterId, Membership),
    /// A cluster that exists.
    Existing(ClusterId),
}

/// Returns the ID that a member has before it belongs to a cluster. Members with other flags have
/// another one.
pub(super) fn unformed(token: &str, initial: &InitialCluster) -> ClusterId {
    let mut members: Vec<String> = initial
        .iter()
        .map(|(name, urls)| {
            let urls: Vec<_> = urls.iter().map(PeerUrl::to_string).collect();
            format!("{name}={}\n", urls.join(","))
        })
        .collect();
    members.sort_unstable();
    id(token, members.concat().as_bytes())
}

/// Returns the ID of the cluster that begins with these members.
pub(super) fn formed(token: &str, membership: &Membership) -> ClusterId {
    let mut text = String::new();
    membership.members().for_each(|member| text += &format!("{}={}\n", member.name, member.id));
    id(token, text.as_bytes())
}

fn id(token: &str, content: &[u8]) -> ClusterId {
    ClusterId(u64::from(crc32c(token.as_bytes())) << 32 | u64::from(crc32c(content).max(1)))
}

fn has_token(cluster: ClusterId, token: &str) -> bool {
    cluster.0 >> 32 == u64::from(crc32c(token.as_bytes()))
}

/// Decides with what is known about the others, by name; `None` if not enough is known.
fn decide(
    own: &MemberInfo,
    token: &str,
    initial: &InitialCluster,
    is_existing: bool,
    others: &BTreeMap<String, Identity>,
) -> Option<Formed> {
    let own_id = unformed(token, initial);
    // As in etcd, a member that joins does not need to know the token.
    let with_state = others
        .values()
        .find(|other| !other.is_blank && (is_existing || has_token(other.cluster, token)));
    let is_complete =
        initial.iter().all(|(name, _)| *name == own.name || others.contains_key(name));
    if is_complete && !is_existing {
        let members = others.values().map(|other| other.member.clone()).chain([own.clone()]);
        let membership = Membership::of_voters(members);
        let cluster = formed(token, &membership);
        let agrees = |other: &Identity| match other.is_blank {
            true => other.cluster == own_id,
            false => other.cluster == cluster,
        };
        if others.values().all(agrees) {
            return Some(Formed::New(cluster, membership));
        }
    }
    with_state.map(|other| Formed::Existing(other.cluster))
}

/// What a member without state needs to know.
pub(super) struct Formation<'a> {
    pub(super) transport: &'a Transport,
    pub(super) own: &'a MemberInfo,
    pub(super) token: &'a str,
    pub(super) initial: &'a InitialCluster,
    pub(super) is_existing: bool,
}

impl Formation<'_> {
    /// Waits until the members have agreed.
    pub(super) async fn form(&self) -> Formed {
        let mut reported = Instant::now();
        loop {
            let others = self.probe_all().await;
            let Formation { own, token, initial, is_existing, .. } = self;
            if let Some(formed) = decide(own, token, initial, *is_existing, &others) {
                return formed;
            }
            if reported.elapsed() >= REPORT_INTERVAL {
                reported = Instant::now();
                self.report(&others);
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Asks who is at the peer URLs of the others. Returns those that answer, by name.
    async fn probe_all(&self) -> BTreeMap<String, Identity> {
        let mut found = BTreeMap::new();
        for (name, urls) in self.initial.iter().filter(|(name, _)| *name != self.own.name) {
            for url in urls {
                match self.transport.probe(url).await {
                    Ok(identity) if identity.member.name == *name => {
                        found.insert(name.clone(), identity);
                        break;
                    }
                    Ok(identity) => {
                        let found = identity.member.name;
                        tracing::warn!(%url, expected = name, found, "another member is at this URL");
                    }
                    Err(error) => tracing::debug!(%url, %error, "no member answers"),
                }
            }
        }
        found
    }

    fn report(&self, others: &BTreeMap<String, Identity>) {
        let own_id = unformed(self.token, self.initial);
        for (name, _) in self.initial.iter().filter(|(name, _)| *name != self.own.name) {
            match others.get(name) {
                None => tracing::warn!(name, "waiting for a member that does not answer"),
                Some(other) if !has_token(other.cluster, self.token) => tracing::warn!(
                    name,
                    "the member is in another cluster: check --initial-cluster-token"
                ),
                Some(other) if other.is_blank && other.cluster != own_id => {
                    tracing::warn!(name, "the member has another --initial-cluster");
                }
                Some(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use consensus::id::MemberId;

    use super::*;

    const TOKEN: &str = "token";

    fn initial() -> Vec<(String, Vec<PeerUrl>)> {
        let member = |name: &str, port: u16| {
            (name.to_owned(), vec![format!("http://127.0.0.1:{port}").parse().unwrap()])
        };
        vec![member("a", 1), member("b", 2), member("c", 3)]
    }

    fn info(name: &str, id: u64) -> MemberInfo {
        let id = MemberId::new(id).unwrap();
        MemberInfo { id, name: name.to_owned(), peer_urls: vec![], client_urls: vec![] }
    }

    fn blank(name: &str, id: u64) -> (String, Identity) {
        let cluster = unformed(TOKEN, &initial());
        (
            name.to_owned(),
            Identity { cluster, member: info(name, id), is_blank: true, is_waiting: false },
        )
    }

    fn with_state(name: &str, id: u64, cluster: ClusterId) -> (String, Identity) {
        (
            name.to_owned(),
            Identity { cluster, member: info(name, id), is_blank: false, is_waiting: false },
        )
    }

    fn decide_with<const N: usize>(others: [(String, Identity); N]) -> Option<Formed> {
        decide(&info("a", 1), TOKEN, &initial(), false, &BTreeMap::from(others))
    }

    #[test]
    fn blank_members_agree_on_a_cluster() {
        let Some(Formed::New(cluster, members)) = decide_with([blank("b", 2), blank("c", 3)])
        else {
            panic!("no cluster");
        };
        assert_eq!(members.voters().len(), 3);
        // Another member may be faster.
        let agreed = decide_with([with_state("b", 2, cluster), blank("c", 3)]);
        assert_eq!(agreed, Some(Formed::New(cluster, members.clone())));
        // All members come to the same result.
        let others = BTreeMap::from([blank("a", 1), blank("c", 3)]);
        let other = decide(&info("b", 2), TOKEN, &initial(), false, &others);
        assert_eq!(other, Some(Formed::New(cluster, members)));
    }

    #[test]
    fn nobody_decides_without_all_members() {
        assert_eq!(decide_with([blank("b", 2)]), None);
        let others = BTreeMap::from([blank("b", 2), blank("c", 3)]);
        assert_eq!(decide(&info("a", 1), TOKEN, &initial(), true, &others), None);
        let (name, mut other) = blank("c", 3);
        other.cluster = unformed("another token", &initial());
        assert_eq!(decide_with([blank("b", 2), (name, other)]), None);
    }

    #[test]
    fn a_member_without_state_joins_those_with_state() {
        let Some(Formed::New(cluster, _)) = decide_with([blank("b", 2), blank("c", 4)]) else {
            panic!("no cluster");
        };
        // Member c had another identity when the others formed the cluster.
        let existing = Some(Formed::Existing(cluster));
        assert_eq!(decide_with([with_state("b", 2, cluster), blank("c", 3)]), existing);
        assert_eq!(decide_with([with_state("b", 2, cluster)]), existing);
        let foreign = ClusterId(cluster.0 ^ (1 << 40));
        let others = BTreeMap::from([with_state("b", 2, foreign)]);
        let joined = decide(&info("a", 1), TOKEN, &initial(), true, &others);
        assert_eq!(joined, Some(Formed::Existing(foreign)));
        assert_eq!(decide_with([with_state("b", 2, foreign), blank("c", 3)]), None);
    }
}
