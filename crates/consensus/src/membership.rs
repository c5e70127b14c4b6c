//! The members of the cluster, and the changes of this set.
//!
//! The membership is part of the replicated state: it changes when an entry with a [`Change`] is
//! committed. The rules by which a change is allowed are in [`Membership::check`]. Every replica
//! evaluates them again when the entry is committed, so a change that is not allowed any more has
//! no effect, on all replicas alike.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use raft::eraftpb::{ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState};
use raft::prelude::ConfChangeSingle;

use crate::id::MemberId;
use crate::wire::{DecodeError, Reader, put_bytes, put_list, put_number};

/// A member. Its name and its peer URLs are stored in the log. A member that was added by a command and has
/// not started has no name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberInfo {
    /// The identity.
    pub id: MemberId,
    /// The name. A restarted member that lost its log is recognized by it.
    pub name: String,
    /// The URLs at which other members reach it.
    pub peer_urls: Vec<String>,
    /// The URLs at which clients reach it; empty until it has said so.
    pub client_urls: Vec<String>,
}

/// A change of the members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds a member that receives the log, but does not vote.
    AddLearner(MemberInfo),
    /// Adds a member that receives the log, and becomes a voter when it has it ([`crate::rejoin`]).
    AddVoter(MemberInfo),
    /// Gives the identity of a member that was added without a name to the process that was found at its
    /// peer URLs. The identity is given once: another process never gets it, because it would not know
    /// what the first one has acknowledged.
    Claim {
        /// The member.
        id: MemberId,
        /// The random identity with which the process began.
        process: MemberId,
        /// The name of the process.
        name: String,
    },
    /// Makes a learner a voter.
    Promote(MemberId),
    /// Removes a voter or a learner.
    Remove(MemberId),
    /// Makes the learner `new` a voter and removes the voter `old`, in one step (a joint
    /// configuration). Both have the same name: `old` has lost its log.
    Replace {
        /// The voter that does not exist any more.
        old: MemberId,
        /// The learner that takes its place.
        new: MemberId,
    },
    /// Ends the joint configuration of a [`Change::Replace`]. The leader proposes it by itself.
    LeaveJoint,
    /// Changes the peer URLs of a member.
    SetPeerUrls {
        /// The member.
        id: MemberId,
        /// The new URLs.
        peer_urls: Vec<String>,
    },
    /// Changes the client URLs of a member.
    SetClientUrls {
        /// The member.
        id: MemberId,
        /// The new URLs.
        client_urls: Vec<String>,
    },
}

/// The reason why a change is not allowed.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ChangeError {
    /// There is such a member.
    #[error("member {0} exists already")]
    Exists(MemberId),
    /// There is no such member.
    #[error("there is no member {0}")]
    NotFound(MemberId),
    /// The member is a voter.
    #[error("member {0} is not a learner")]
    NotLearner(MemberId),
    /// The member is a learner.
    #[error("member {0} is not a voter")]
    NotVoter(MemberId),
    /// The cluster would have no voter.
    #[error("the last voter cannot be removed")]
    LastVoter,
    /// Another member has one of the peer URLs.
    #[error("member {0} has one of the peer URLs")]
    PeerUrlExists(MemberId),
    /// The member has started.
    #[error("member {0} has started already")]
    Started(MemberId),
    /// Another member has the name, or the process.
    #[error("member {0} has the same name, or the process {1}")]
    Claimed(MemberId, MemberId),
    /// The two members of a replacement have different names.
    #[error("members {0} and {1} have different names")]
    OtherName(MemberId, MemberId),
    /// The learner has the name of a voter.
    #[error("member {0} has the name of voter {1}, and can only replace it")]
    Replaces(MemberId, MemberId),
    /// Another replacement has not ended.
    #[error("a replacement of a member is in progress: try again")]
    Joint,
    /// There is no replacement that could end.
    #[error("no replacement of a member is in progress")]
    NotJoint,
}

/// The members and their roles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    members: BTreeMap<MemberId, MemberInfo>,
    voters: BTreeSet<MemberId>,
    /// The voters of the old configuration while a member is replaced; otherwise empty. A decision
    /// then needs a majority of both configurations.
    outgoing: BTreeSet<MemberId>,
    /// The learners that become voters when they have the log.
    staged: BTreeSet<MemberId>,
    /// The processes to which the identities of added members were given ([`Change::Claim`]).
    claims: BTreeMap<MemberId, MemberId>,
}

/// What a member is, or is about to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It votes.
    Voter,
    /// It becomes a voter by itself when it has the log.
    Joining,
    /// It stays a learner until it is promoted.
    Learner,
}

impl Membership {
    /// Returns the membership of a new cluster, in which all members are voters.
    pub fn of_voters(members: impl IntoIterator<Item = MemberInfo>) -> Membership {
        let members: BTreeMap<_, _> = members.into_iter().map(|info| (info.id, info)).collect();
        let voters = members.keys().copied().collect();
        Membership { members, voters, ..Membership::default() }
    }

    /// Returns all members in the order of their IDs.
    pub fn members(&self) -> impl ExactSizeIterator<Item = &MemberInfo> {
        self.members.values()
    }

    /// Returns a member.
    pub fn get(&self, id: MemberId) -> Option<&MemberInfo> {
        self.members.get(&id)
    }

    /// Returns the voters of the current configuration.
    pub fn voters(&self) -> &BTreeSet<MemberId> {
        &self.voters
    }

    /// Returns the voters of the current configuration, and of the one that ends.
    #[cfg(test)]
    pub(crate) fn configurations(&self) -> impl Iterator<Item = &BTreeSet<MemberId>> {
        [&self.voters, &self.outgoing].into_iter()
    }

    /// Whether the member votes, in the current configuration or in the one that ends.
    pub fn is_voter(&self, id: MemberId) -> bool {
        self.voters.contains(&id) || self.outgoing.contains(&id)
    }

    /// Whether the cluster survives the failure of others as if the member had always voted: it votes, and
    /// takes the place of no other one any more. While a member is replaced, a majority is needed with each of
    /// both identities, so the new one helps only when the replacement has ended.
    pub fn counts(&self, id: MemberId) -> bool {
        self.voters.contains(&id) && (!self.is_joint() || self.outgoing.contains(&id))
    }

    /// Whether the member exists and does not vote.
    pub fn is_learner(&self, id: MemberId) -> bool {
        self.members.contains_key(&id) && !self.is_voter(id)
    }

    /// Returns what a member is; `None` if there is no such member.
    pub fn standing(&self, id: MemberId) -> Option<Standing> {
        let member = self.members.get(&id)?;
        if self.is_voter(id) {
            return Some(Standing::Voter);
        }
        let becomes =
            |other: &MemberInfo| self.is_voter(other.id) || self.staged.contains(&other.id);
        let replaces = |other: &MemberInfo| {
            !member.name.is_empty() && other.name == member.name && becomes(other)
        };
        let joins = self.staged.contains(&id) || self.members.values().any(replaces);
        Some(if joins { Standing::Joining } else { Standing::Learner })
    }

    /// Whether a learner becomes a voter when it has the log.
    pub fn is_staged(&self, id: MemberId) -> bool {
        self.staged.contains(&id)
    }

    /// Returns the learners that become voters when they have the log.
    pub(crate) fn staged(&self) -> impl Iterator<Item = MemberId> {
        self.staged.iter().copied()
    }

    /// Returns the processes to which identities were given, by these identities.
    pub fn claims(&self) -> &BTreeMap<MemberId, MemberId> {
        &self.claims
    }

    /// Whether a replacement is in progress.
    pub fn is_joint(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Checks whether a change is allowed.
    pub fn check(&self, change: &Change) -> Result<(), ChangeError> {
        let joint = self.is_joint();
        match change {
            Change::LeaveJoint if joint => Ok(()),
            Change::LeaveJoint => Err(ChangeError::NotJoint),
            Change::SetPeerUrls { id, peer_urls } => self.check_set_peer_urls(*id, peer_urls),
            Change::SetClientUrls { id, .. } => self.check_exists(*id),
            Change::Claim { id, process, name } => self.check_claim(*id, *process, name),
            _ if joint => Err(ChangeError::Joint),
            Change::AddLearner(info) | Change::AddVoter(info) => self.check_add(info),
            Change::Promote(id) => self.check_promote(*id),
            Change::Remove(id) => self.check_remove(*id),
            Change::Replace { old, new } => self.check_replace(*old, *new),
        }
    }

    fn check_exists(&self, id: MemberId) -> Result<(), ChangeError> {
        self.members.contains_key(&id).then_some(()).ok_or(ChangeError::NotFound(id))
    }

    /// A member with a name takes the place of another one, and has its URLs. One without a name is new.
    fn check_add(&self, info: &MemberInfo) -> Result<(), ChangeError> {
        if self.members.contains_key(&info.id) {
            return Err(ChangeError::Exists(info.id));
        }
        if let Some((member, _)) = self.claims.iter().find(|(_, process)| **process == info.id) {
            return Err(ChangeError::Claimed(*member, info.id));
        }
        match info.name.is_empty() {
            true => self.check_peer_urls(&info.peer_urls, |_| true),
            false => Ok(()),
        }
    }

    fn check_set_peer_urls(&self, id: MemberId, urls: &[String]) -> Result<(), ChangeError> {
        self.check_exists(id)?;
        let name = &self.members[&id].name;
        // The identities of a member that has lost its log have the same URLs.
        let is_other = |m: &MemberInfo| m.id != id && (name.is_empty() || m.name != *name);
        self.check_peer_urls(urls, is_other)
    }

    /// Fails if one of those that `concerns` selects has one of the URLs.
    fn check_peer_urls(
        &self,
        urls: &[String],
        concerns: impl Fn(&MemberInfo) -> bool,
    ) -> Result<(), ChangeError> {
        let has_url = |m: &&MemberInfo| m.peer_urls.iter().any(|url| urls.contains(url));
        let other = self.members.values().filter(|m| concerns(m)).find(has_url);
        other.map_or(Ok(()), |other| Err(ChangeError::PeerUrlExists(other.id)))
    }

    fn check_claim(&self, id: MemberId, process: MemberId, name: &str) -> Result<(), ChangeError> {
        self.check_exists(id)?;
        if !self.members[&id].name.is_empty() {
            return Err(ChangeError::Started(id));
        }
        let is_other = |m: &&MemberInfo| {
            m.id == process || m.name == name || self.claims.get(&m.id) == Some(&process)
        };
        match self.members.values().find(is_other) {
            Some(other) => Err(ChangeError::Claimed(other.id, process)),
            None => Ok(()),
        }
    }

    fn check_learner(&self, id: MemberId) -> Result<(), ChangeError> {
        self.check_exists(id)?;
        self.is_learner(id).then_some(()).ok_or(ChangeError::NotLearner(id))
    }

    /// A learner with the name of a voter takes its place. It cannot vote besides it.
    fn check_promote(&self, id: MemberId) -> Result<(), ChangeError> {
        self.check_learner(id)?;
        let name = &self.members[&id].name;
        let has_name = |voter: &&MemberId| !name.is_empty() && self.members[voter].name == *name;
        let same = self.voters.iter().find(has_name);
        same.map_or(Ok(()), |voter| Err(ChangeError::Replaces(id, *voter)))
    }

    fn check_remove(&self, id: MemberId) -> Result<(), ChangeError> {
        self.check_exists(id)?;
        let last = self.voters.len() == 1 && self.voters.contains(&id);
        if last { Err(ChangeError::LastVoter) } else { Ok(()) }
    }

    fn check_replace(&self, old: MemberId, new: MemberId) -> Result<(), ChangeError> {
        self.check_exists(old)?;
        if !self.is_voter(old) {
            return Err(ChangeError::NotVoter(old));
        }
        self.check_learner(new)?;
        let same = self.members[&old].name == self.members[&new].name;
        same.then_some(()).ok_or(ChangeError::OtherName(old, new))
    }

    /// Makes a change that [`Membership::check`] allows.
    pub(crate) fn apply(&mut self, change: &Change) {
        match change {
            Change::AddLearner(info) => {
                self.members.insert(info.id, info.clone());
            }
            Change::AddVoter(info) => {
                self.members.insert(info.id, info.clone());
                self.staged.insert(info.id);
            }
            Change::Claim { id, process, name } => {
                if let Some(info) = self.members.get_mut(id) {
                    info.name = name.clone();
                }
                self.claims.insert(*id, *process);
            }
            Change::Promote(id) => {
                self.voters.insert(*id);
                self.staged.remove(id);
            }
            Change::Remove(id) => {
                self.voters.remove(id);
                self.forget(*id);
            }
            Change::Replace { old, new } => {
                self.outgoing = self.voters.clone();
                self.voters.remove(old);
                self.voters.insert(*new);
                self.staged.remove(new);
            }
            Change::LeaveJoint => {
                let outgoing = std::mem::take(&mut self.outgoing);
                let removed: Vec<_> = outgoing.difference(&self.voters).copied().collect();
                removed.into_iter().for_each(|id| self.forget(id));
            }
            Change::SetPeerUrls { id, peer_urls } => {
                if let Some(info) = self.members.get_mut(id) {
                    info.peer_urls = peer_urls.clone();
                }
            }
            Change::SetClientUrls { id, client_urls } => {
                if let Some(info) = self.members.get_mut(id) {
                    info.client_urls = client_urls.clone();
                }
            }
        }
    }

    fn forget(&mut self, id: MemberId) {
        self.members.remove(&id);
        self.staged.remove(&id);
        self.claims.remove(&id);
    }

    /// Returns the configuration as the library represents it.
    pub(crate) fn conf_state(&self) -> ConfState {
        let ids = |set: &BTreeSet<MemberId>| set.iter().map(|id| id.get()).collect();
        let learners = self.members.keys().filter(|id| self.is_learner(**id));
        ConfState {
            voters: ids(&self.voters),
            voters_outgoing: ids(&self.outgoing),
            learners: learners.map(|id| id.get()).collect(),
            ..ConfState::default()
        }
    }

    /// Whether a configuration of the library has the same voters and learners.
    pub(crate) fn equals(&self, state: &ConfState) -> bool {
        let sorted = |ids: &[u64]| {
            let mut ids = ids.to_vec();
            ids.sort_unstable();
            ids
        };
        let own = self.conf_state();
        sorted(&state.voters) == own.voters
            && sorted(&state.voters_outgoing) == own.voters_outgoing
            && sorted(&state.learners) == own.learners
            && state.learners_next.is_empty()
    }

    pub(crate) fn encode(&self, buf: &mut Vec<u8>) {
        put_list(self.members.values(), buf, |info, buf| info.encode(buf));
        put_list(self.voters.iter(), buf, |id, buf| put_number(id.get(), buf));
        put_list(self.outgoing.iter(), buf, |id, buf| put_number(id.get(), buf));
        // Earlier versions do not know them.
        if !self.staged.is_empty() || !self.claims.is_empty() {
            put_list(self.staged.iter(), buf, |id, buf| put_number(id.get(), buf));
            put_list(self.claims.iter(), buf, |(id, process), buf| {
                put_number(id.get(), buf);
                put_number(process.get(), buf);
            });
        }
    }

    pub(crate) fn decode(reader: &mut Reader) -> Result<Membership, DecodeError> {
        let members: Vec<MemberInfo> = reader.list(MemberInfo::read)?;
        let mut membership = Membership {
            members: members.into_iter().map(|info| (info.id, info)).collect(),
            voters: reader.list(Reader::member)?,
            outgoing: reader.list(Reader::member)?,
            ..Membership::default()
        };
        if !reader.is_empty() {
            membership.staged = reader.list(Reader::member)?;
            membership.claims = reader.list(|reader| Ok((reader.member()?, reader.member()?)))?;
        }
        let Membership { voters, outgoing, staged, claims, .. } = &membership;
        let mut ids = voters.iter().chain(outgoing).chain(staged).chain(claims.keys());
        let known = ids.all(|id| membership.members.contains_key(id));
        let valid = known && !membership.voters.is_empty();
        valid.then_some(membership).ok_or(DecodeError::Invalid("membership"))
    }
}

impl MemberInfo {
    /// Appends the member to `buf`.
    pub fn encode(&self, buf: &mut Vec<u8>) {
        put_number(self.id.get(), buf);
        put_bytes(self.name.as_bytes(), buf);
        put_urls(&self.peer_urls, buf);
        put_urls(&self.client_urls, buf);
    }

    /// Decodes a member.
    ///
    /// # Errors
    /// If the bytes are not exactly one member.
    pub fn decode(bytes: Bytes) -> Result<MemberInfo, DecodeError> {
        let mut reader = Reader::new(bytes);
        let info = MemberInfo::read(&mut reader)?;
        reader.finish()?;
        Ok(info)
    }

    fn read(reader: &mut Reader) -> Result<MemberInfo, DecodeError> {
        let (id, name) = (reader.member()?, reader.string()?);
        let peer_urls = reader.list(Reader::string)?;
        Ok(MemberInfo { id, name, peer_urls, client_urls: reader.list(Reader::string)? })
    }
}

fn put_urls(urls: &[String], buf: &mut Vec<u8>) {
    put_list(urls.iter(), buf, |url, buf| put_bytes(url.as_bytes(), buf));
}

// The kinds of changes. They are stored in logs, so they never change.
const ADD_LEARNER: u8 = 1;
const PROMOTE: u8 = 2;
const REMOVE: u8 = 3;
const REPLACE: u8 = 4;
const LEAVE_JOINT: u8 = 5;
const SET_PEER_URLS: u8 = 6;
const SET_CLIENT_URLS: u8 = 7;
const ADD_VOTER: u8 = 8;
const CLAIM: u8 = 9;

impl Change {
    pub(crate) fn encode(&self, buf: &mut Vec<u8>) {
        match self {
            Change::AddLearner(info) => {
                buf.push(ADD_LEARNER);
                info.encode(buf);
            }
            Change::AddVoter(info) => {
                buf.push(ADD_VOTER);
                info.encode(buf);
            }
            Change::Claim { id, process, name } => {
                buf.push(CLAIM);
                put_number(id.get(), buf);
                put_number(process.get(), buf);
                put_bytes(name.as_bytes(), buf);
            }
            Change::Promote(id) => {
                buf.push(PROMOTE);
                put_number(id.get(), buf);
            }
            Change::Remove(id) => {
                buf.push(REMOVE);
                put_number(id.get(), buf);
            }
            Change::Replace { old, new } => {
                buf.push(REPLACE);
                put_number(old.get(), buf);
                put_number(new.get(), buf);
            }
            Change::LeaveJoint => buf.push(LEAVE_JOINT),
            Change::SetPeerUrls { id, peer_urls } => {
                buf.push(SET_PEER_URLS);
                put_number(id.get(), buf);
                put_urls(peer_urls, buf);
            }
            Change::SetClientUrls { id, client_urls } => {
                buf.push(SET_CLIENT_URLS);
                put_number(id.get(), buf);
                put_urls(client_urls, buf);
            }
        }
    }

    pub(crate) fn decode(bytes: Bytes) -> Result<Change, DecodeError> {
        let mut reader = Reader::new(bytes);
        let change = match reader.byte()? {
            ADD_LEARNER => Change::AddLearner(MemberInfo::read(&mut reader)?),
            ADD_VOTER => Change::AddVoter(MemberInfo::read(&mut reader)?),
            CLAIM => Change::Claim {
                id: reader.member()?,
                process: reader.member()?,
                name: reader.string()?,
            },
            PROMOTE => Change::Promote(reader.member()?),
            REMOVE => Change::Remove(reader.member()?),
            REPLACE => Change::Replace { old: reader.member()?, new: reader.member()? },
            LEAVE_JOINT => Change::LeaveJoint,
            SET_PEER_URLS => Change::SetPeerUrls {
                id: reader.member()?,
                peer_urls: reader.list(Reader::string)?,
            },
            SET_CLIENT_URLS => Change::SetClientUrls {
                id: reader.member()?,
                client_urls: reader.list(Reader::string)?,
            },
            _ => return Err(DecodeError::Invalid("kind of change")),
        };
        reader.finish()?;
        Ok(change)
    }

    /// Returns the change as the library represents it; `None` if the configuration of Raft stays
    /// the same.
    pub(crate) fn conf_change(&self) -> Option<ConfChangeV2> {
        use ConfChangeType::{AddLearnerNode, AddNode, RemoveNode};
        let mut conf_change = ConfChangeV2::default();
        let changes = match self {
            Change::AddLearner(info) | Change::AddVoter(info) => vec![(AddLearnerNode, info.id)],
            Change::Promote(id) => vec![(AddNode, *id)],
            Change::Remove(id) => vec![(RemoveNode, *id)],
            Change::Replace { old, new } => {
                // The library would leave the joint configuration by itself only as long as the
                // leader stays the same.
                conf_change.set_transition(ConfChangeTransition::Explicit);
                vec![(AddNode, *new), (RemoveNode, *old)]
            }
            Change::LeaveJoint => vec![],
            Change::Claim { .. } | Change::SetPeerUrls { .. } | Change::SetClientUrls { .. } => {
                return None;
            }
        };
        let single = |(change_type, id): (ConfChangeType, MemberId)| ConfChangeSingle {
            change_type,
            node_id: id.get(),
            ..ConfChangeSingle::default()
        };
        conf_change.set_changes(changes.into_iter().map(single).collect::<Vec<_>>().into());
        Some(conf_change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> MemberId {
        MemberId::new(number).unwrap()
    }

    fn info(number: u64, name: &str) -> MemberInfo {
        let peer_urls = vec![format!("https://{name}:2380")];
        let client_urls = vec![format!("https://{name}:2379")];
        MemberInfo { id: id(number), name: name.to_owned(), peer_urls, client_urls }
    }

    fn three() -> Membership {
        Membership::of_voters([info(1, "a"), info(2, "b"), info(3, "c")])
    }

    fn apply(membership: &mut Membership, change: Change) {
        membership.check(&change).unwrap();
        membership.apply(&change);
    }

    #[test]
    fn a_restarted_member_is_replaced_in_one_step() {
        let mut members = three();
        apply(&mut members, Change::AddLearner(info(4, "c")));
        assert!(members.is_learner(id(4)));
        apply(&mut members, Change::Replace { old: id(3), new: id(4) });
        assert!(members.is_joint() && members.is_voter(id(3)) && members.is_voter(id(4)));
        let counting = |members: &Membership| {
            members.members().map(|m| m.id).filter(|id| members.counts(*id)).collect::<Vec<_>>()
        };
        assert_eq!(counting(&members), [id(1), id(2)]);
        assert_eq!(members.check(&Change::Remove(id(1))), Err(ChangeError::Joint));
        apply(&mut members, Change::LeaveJoint);
        assert_eq!(members.members().map(|m| m.id.get()).collect::<Vec<_>>(), [1, 2, 4]);
        assert!(!members.is_joint());
        assert_eq!(counting(&members), [id(1), id(2), id(4)]);
    }

    #[test]
    fn an_added_member_is_claimed_once() {
        let mut members = three();
        let added = MemberInfo { peer_urls: vec!["https://d:2380".to_owned()], ..info(4, "") };
        apply(&mut members, Change::AddVoter(added.clone()));
        assert_eq!(members.standing(id(4)), Some(Standing::Joining));
        assert_eq!(members.voters().len(), 3, "it does not vote before it has the log");
        let again = MemberInfo { id: id(5), ..added };
        assert_eq!(
            members.check(&Change::AddLearner(again.clone())),
            Err(ChangeError::PeerUrlExists(id(4)))
        );
        let claim = |process, name: &str| Change::Claim { id: id(4), process, name: name.into() };
        assert_eq!(members.check(&claim(id(9), "c")), Err(ChangeError::Claimed(id(3), id(9))));
        assert_eq!(members.check(&claim(id(2), "d")), Err(ChangeError::Claimed(id(2), id(2))));
        apply(&mut members, claim(id(9), "d"));
        assert_eq!(members.check(&claim(id(8), "d")), Err(ChangeError::Started(id(4))));
        assert_eq!(members.claims()[&id(4)], id(9));
        let process = Change::AddLearner(info(9, "d"));
        assert_eq!(members.check(&process), Err(ChangeError::Claimed(id(4), id(9))));
        apply(&mut members, Change::Promote(id(4)));
        assert_eq!(members.standing(id(4)), Some(Standing::Voter));
        let urls = vec!["https://c:2380".to_owned()];
        let moved = Change::SetPeerUrls { id: id(4), peer_urls: urls };
        assert_eq!(members.check(&moved), Err(ChangeError::PeerUrlExists(id(3))));
        apply(&mut members, Change::Remove(id(4)));
        assert_eq!(members, three());
    }

    #[test]
    fn changes_that_make_no_sense_are_refused() {
        let mut members = three();
        members.apply(&Change::AddLearner(info(4, "d")));
        members.apply(&Change::AddLearner(info(5, "c")));
        let cases = [
            (Change::AddLearner(info(1, "x")), ChangeError::Exists(id(1))),
            (Change::Promote(id(9)), ChangeError::NotFound(id(9))),
            (Change::Promote(id(1)), ChangeError::NotLearner(id(1))),
            (Change::Promote(id(5)), ChangeError::Replaces(id(5), id(3))),
            (Change::Remove(id(9)), ChangeError::NotFound(id(9))),
            (Change::Replace { old: id(4), new: id(4) }, ChangeError::NotVoter(id(4))),
            (Change::Replace { old: id(1), new: id(2) }, ChangeError::NotLearner(id(2))),
            (Change::Replace { old: id(1), new: id(4) }, ChangeError::OtherName(id(1), id(4))),
            (Change::LeaveJoint, ChangeError::NotJoint),
            (Change::SetPeerUrls { id: id(9), peer_urls: vec![] }, ChangeError::NotFound(id(9))),
        ];
        for (change, error) in cases {
            assert_eq!(members.check(&change), Err(error), "{change:?}");
        }
        let single = Membership::of_voters([info(1, "a")]);
        assert_eq!(single.check(&Change::Remove(id(1))), Err(ChangeError::LastVoter));
    }

    #[test]
    fn changes_and_members_are_read_as_written() {
        let changes = [
            Change::AddLearner(info(4, "d")),
            Change::AddVoter(info(4, "")),
            Change::Claim { id: id(4), process: id(5), name: "d".to_owned() },
            Change::Promote(id(4)),
            Change::Remove(id(u64::MAX)),
            Change::Replace { old: id(1), new: id(4) },
            Change::LeaveJoint,
            Change::SetPeerUrls { id: id(2), peer_urls: vec!["http://b".to_owned(); 2] },
            Change::SetClientUrls { id: id(2), client_urls: vec!["http://c".to_owned(); 2] },
        ];
        for change in changes {
            let mut buf = Vec::new();
            change.encode(&mut buf);
            assert_eq!(Change::decode(buf.into()), Ok(change));
        }
        let mut buf = Vec::new();
        info(4, "d").encode(&mut buf);
        assert_eq!(MemberInfo::decode(buf.clone().into()), Ok(info(4, "d")));
        buf.push(0);
        assert_eq!(MemberInfo::decode(buf.into()), Err(DecodeError::Trailing(1)));
        let mut members = three();
        members.apply(&Change::AddLearner(info(4, "c")));
        members.apply(&Change::Replace { old: id(3), new: id(4) });
        let mut buf = Vec::new();
        members.encode(&mut buf);
        assert_eq!(Membership::decode(&mut Reader::new(buf.into())), Ok(members.clone()));
        members.apply(&Change::AddVoter(info(5, "")));
        members.apply(&Change::Claim { id: id(5), process: id(9), name: "e".to_owned() });
        let mut buf = Vec::new();
        members.encode(&mut buf);
        assert_eq!(Membership::decode(&mut Reader::new(buf.into())), Ok(members));
    }
}
