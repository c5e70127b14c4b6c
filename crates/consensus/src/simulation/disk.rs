//! The disk of a simulated member.

use std::collections::VecDeque;

use super::machine::State;
use super::random::Random;
use crate::Start;
use crate::entry::{Entry, HardState, Snapshot};
use crate::identity::{LogMode, StoredIdentity};
use crate::output::{Write, WriteNumber};

/// What a process finds when it starts.
#[derive(Clone, Default)]
pub(super) struct Content {
    pub(super) identity: Option<StoredIdentity>,
    hard_state: HardState,
    snapshot: Snapshot,
    state: State,
    entries: Vec<Entry>,
}

#[derive(Default)]
pub(super) struct Disk {
    /// Finished writes.
    content: Content,
    /// Writes that are not finished, with the content of a snapshot.
    unfinished: VecDeque<(Write, Option<State>)>,
    /// In mode buffered: what is on the disk, and not only in the cache of the machine.
    synced: Content,
}

impl Disk {
    pub(super) fn identity(&self) -> Option<&StoredIdentity> {
        self.content.identity.as_ref()
    }

    /// Replaces everything by the state of a member that begins.
    pub(super) fn format(&mut self, identity: StoredIdentity, start: &Start) {
        self.content = Content {
            identity: Some(identity),
            hard_state: start.hard_state,
            snapshot: start.snapshot.clone(),
            ..Content::default()
        };
        self.synced = self.content.clone();
        self.unfinished.clear();
    }

    pub(super) fn begin(&mut self, write: Write, state: Option<State>) {
        self.unfinished.push_back((write, state));
    }

    pub(super) fn finish(&mut self, number: WriteNumber) {
        while self.unfinished.front().is_some_and(|(write, _)| write.number <= number) {
            self.finish_first();
        }
    }

    fn finish_first(&mut self) {
        let Some((write, state)) = self.unfinished.pop_front() else { return };
        let content = &mut self.content;
        if let (Some(snapshot), Some(state)) = (write.snapshot, state) {
            (content.snapshot, content.state) = (snapshot, state);
            content.entries.clear();
        }
        if let Some(first) = write.entries.first() {
            content.entries.retain(|entry| entry.position.index < first.position.index);
            content.entries.extend(write.entries);
        }
        if let Some(hard_state) = write.hard_state {
            content.hard_state = hard_state;
        }
    }

    /// Stores a snapshot of the applied state, and removes the entries before it.
    pub(super) fn compact(&mut self, snapshot: Snapshot, state: State) {
        self.content.entries.retain(|entry| entry.position.index > snapshot.position.index);
        (self.content.snapshot, self.content.state) = (snapshot, state);
    }

    /// Writes the cache of the machine to the disk.
    pub(super) fn sync(&mut self) {
        self.synced = self.content.clone();
    }

    /// Ends the process, and with `reboot` the machine. Some of the unfinished writes survive.
    pub(super) fn crash(&mut self, mode: LogMode, reboot: bool, random: &mut Random) {
        let survive = random.below(self.unfinished.len() as u64 + 1);
        (0..survive).for_each(|_| self.finish_first());
        self.unfinished.clear();
        match mode {
            LogMode::Fsync => {}
            LogMode::Buffered if !reboot => {}
            LogMode::Buffered => self.content = self.synced.clone(),
            LogMode::Memory => {
                let identity = self.content.identity.take();
                self.content = Content { identity, ..Content::default() };
            }
        }
    }

    /// Returns what a process starts with.
    pub(super) fn start(&self) -> (Start, State) {
        let Content { hard_state, snapshot, state, entries, .. } = self.content.clone();
        let base = snapshot.position;
        (Start { snapshot, base, entries, hard_state }, state)
    }
}
