//! The other members, and those that connect without being members as far as this one knows.
//!
//! A member that lags behind does not know the newest members, but must listen to them: one of them
//! may lead. So senders that are not members are accepted, a few at a time. They say at which URLs
//! they are answered.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use consensus::id::MemberId;
use consensus::membership::MemberInfo;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::class::Class;
use crate::hello::Answer;
use crate::outgoing;
use crate::peer::Peer;
use crate::shared::Shared;

/// Maximum number of senders that are not members. Further ones are refused.
const MAX_STRANGERS: usize = 16;
/// Number of removed members that are remembered. Older ones are treated as strangers.
const MAX_REMOVED: usize = 1024;

pub(crate) struct Peers {
    shared: Arc<Shared>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    peers: BTreeMap<MemberId, Arc<Peer>>,
    /// Former members, the oldest first. Their messages are refused, and they are told.
    removed: VecDeque<MemberId>,
}

/// A stream of a peer that is accepted. The peer is known at least until this is dropped.
pub(crate) struct Admitted<'a> {
    peers: &'a Peers,
    pub(crate) peer: Arc<Peer>,
    /// Ends the stream when the sender opens another one.
    pub(crate) replaced: CancellationToken,
}

impl Peers {
    pub(crate) fn new(shared: Arc<Shared>) -> Peers {
        Peers { shared, state: Mutex::default() }
    }

    /// Sets the members. Streams to and from former members end.
    pub(crate) fn set_members<'a>(&self, members: impl IntoIterator<Item = &'a MemberInfo>) {
        let own = self.shared.id();
        let members: BTreeMap<_, _> =
            members.into_iter().filter(|info| info.id != own).map(|info| (info.id, info)).collect();
        let mut state = self.state.lock();
        for (id, info) in &members {
            state.removed.retain(|removed| removed != id);
            match state.peers.get(id) {
                Some(peer) => {
                    peer.is_member.store(true, Ordering::Relaxed);
                    peer.set_info((*info).clone());
                }
                None => drop(self.add(&mut state, (*info).clone(), true)),
            }
        }
        let is_former =
            |peer: &Peer| peer.is_member.load(Ordering::Relaxed) && !members.contains_key(&peer.id);
        let State { peers, removed } = &mut *state;
        peers.retain(|id, peer| {
            let keep = !is_former(peer);
            if !keep {
                peer.stop.cancel();
                removed.push_back(*id);
            }
            keep
        });
        let surplus = removed.len().saturating_sub(MAX_REMOVED);
        removed.drain(..surplus);
    }

    /// Notes to which processes the identities of members were given, by these identities.
    pub(crate) fn set_claims(&self, claims: &BTreeMap<MemberId, MemberId>) {
        for peer in self.state.lock().peers.values() {
            peer.set_process(claims.get(&peer.id).copied());
        }
    }

    /// Accepts a stream of a member of the same cluster.
    pub(crate) fn admit(&self, from: MemberInfo, class: Class) -> Result<Admitted<'_>, Answer> {
        let mut state = self.state.lock();
        if from.id == self.shared.id() {
            return Err(Answer::SameMember);
        }
        if state.removed.contains(&from.id) {
            return Err(Answer::Removed);
        }
        let peer = match state.peers.get(&from.id) {
            Some(peer) => {
                // Only a member's URLs are known from elsewhere.
                if !peer.is_member.load(Ordering::Relaxed) {
                    peer.set_info(from);
                }
                peer.clone()
            }
            None if state.strangers() >= MAX_STRANGERS => return Err(Answer::TooMany),
            None => self.add(&mut state, from, false),
        };
        peer.incoming.fetch_add(1, Ordering::Relaxed);
        let replaced = peer.replace_incoming(class);
        Ok(Admitted { peers: self, peer, replaced })
    }

    fn add(&self, state: &mut State, info: MemberInfo, is_member: bool) -> Arc<Peer> {
        let peer = Arc::new(Peer::new(info, is_member, self.shared.stop.child_token()));
        for class in Class::LASTING {
            // The first messages may come before the first attempt to connect.
            peer.lane(class).queue.open();
            self.shared.tasks.spawn(outgoing::run(self.shared.clone(), peer.clone(), class));
        }
        state.peers.insert(peer.id, peer.clone());
        peer
    }

    pub(crate) fn get(&self, id: MemberId) -> Option<Arc<Peer>> {
        self.state.lock().peers.get(&id).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Peer>> {
        self.state.lock().peers.values().cloned().collect()
    }

    /// Forgets a stranger whose last stream has ended.
    fn release(&self, peer: &Arc<Peer>) {
        let mut state = self.state.lock();
        let was_last = peer.incoming.fetch_sub(1, Ordering::Relaxed) == 1;
        if was_last && !peer.is_member.load(Ordering::Relaxed) {
            peer.stop.cancel();
            // After a removal, another one may have the same identity in this map.
            if state.peers.get(&peer.id).is_some_and(|known| Arc::ptr_eq(known, peer)) {
                state.peers.remove(&peer.id);
            }
        }
    }
}

impl State {
    fn strangers(&self) -> usize {
        self.peers.values().filter(|peer| !peer.is_member.load(Ordering::Relaxed)).count()
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.peers.release(&self.peer);
    }
}
