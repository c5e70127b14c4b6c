//! The creations and deletions of keys since the last compaction. With them, the number of
//! keys at an earlier revision is computed from the current number, without visiting the keys.
//!
//! Changes are stored in blocks. A count needs all changes after its revision. It visits those
//! of the newest and of the oldest block one by one. In the blocks between, it searches the
//! first and the last change of its span in key order, for which the first count sorts a block.

use std::collections::VecDeque;
use std::sync::OnceLock;

use etcdpb::Record;

use crate::index::Index;
use crate::span::Span;

/// Number of changes of a complete block. Sorting a block takes a fraction of a millisecond.
const BLOCK_LEN: usize = 1024;

/// Approximate cost of a search in a sorted block, as a number of visited changes.
const SEARCH_COST: usize = 16;

/// The creations and deletions of keys, oldest first.
#[derive(Default)]
pub(crate) struct KeyChanges {
    /// All blocks but the last are complete.
    blocks: VecDeque<Block>,
    /// Number of blocks that were removed.
    removed: usize,
    /// Number of times that changes were taken back. Counts in progress then begin again.
    undone: u64,
}

/// Consecutive changes.
#[derive(Default)]
struct Block {
    /// The records of the changes: a tombstone for a deletion.
    records: Vec<Record>,
    sorted: OnceLock<SortedBlock>,
}

/// The changes of a complete block in the order of their keys.
struct SortedBlock {
    /// Positions in the block.
    order: Box<[u16]>,
    /// For each position in `order`, and for its end, the creations minus the deletions before
    /// it.
    net_before: Box<[i16]>,
}

impl KeyChanges {
    /// Adds a record that creates or deletes its key.
    pub(crate) fn push(&mut self, record: Record) {
        if self.blocks.back().is_none_or(|last| last.records.len() == BLOCK_LEN) {
            self.blocks.push_back(Block::default());
        }
        self.blocks.back_mut().expect("there is a block").records.push(record);
    }

    /// Removes the oldest changes that no count at `revision` or later needs: about
    /// `max_changes` of them.
    pub(crate) fn remove(&mut self, revision: i64, max_changes: usize) {
        let is_old = |record: &Record| record.mod_revision() <= revision;
        for _ in 0..=max_changes / BLOCK_LEN {
            if !self.blocks.front().and_then(|block| block.records.last()).is_some_and(is_old) {
                return;
            }
            self.blocks.pop_front();
            self.removed += 1;
        }
    }

    /// Takes back the changes that are newer than `revision`.
    pub(crate) fn remove_newer(&mut self, revision: i64) {
        while let Some(block) = self.blocks.back_mut() {
            let kept = block.records.partition_point(|record| record.mod_revision() <= revision);
            if kept == block.records.len() {
                return;
            }
            self.undone += 1;
            block.records.truncate(kept);
            block.sorted = OnceLock::new();
            if kept > 0 {
                return;
            }
            self.blocks.pop_back();
        }
    }

    /// Returns the number of stored changes.
    pub(crate) fn len(&self) -> usize {
        self.blocks.iter().map(|block| block.records.len()).sum()
    }

    /// Returns the end of the changes: the number of a block, and a position in it.
    fn end(&self) -> (usize, usize) {
        let last = self.blocks.len().saturating_sub(1);
        (self.removed + last, self.blocks.back().map_or(0, |block| block.records.len()))
    }

    /// Returns the block with this number, unless it was removed.
    fn block(&self, number: usize) -> Option<&Block> {
        self.blocks.get(number.checked_sub(self.removed)?)
    }
}

impl Block {
    /// Returns the creations minus the deletions in `span` between two positions, and the cost
    /// as a number of visited changes.
    fn net(&self, span: &Span, from: usize, end: usize) -> (i64, usize) {
        if (from, end) != (0, BLOCK_LEN) {
            let in_span = self.records[from..end].iter().filter(|r| span.contains(r.key()));
            return (in_span.map(net).sum(), end - from);
        }
        let cost = if self.sorted.get().is_some() { SEARCH_COST } else { BLOCK_LEN };
        let sorted = self.sorted.get_or_init(|| SortedBlock::new(&self.records));
        (sorted.net(&self.records, span), cost)
    }
}

impl SortedBlock {
    fn new(records: &[Record]) -> Self {
        let mut order: Box<[u16]> = (0..records.len() as u16).collect();
        order.sort_unstable_by_key(|at| records[usize::from(*at)].key());
        let mut sum = 0;
        let sums = order.iter().map(|at| {
            sum += net(&records[usize::from(*at)]) as i16;
            sum
        });
        let net_before = std::iter::once(0).chain(sums).collect();
        SortedBlock { order, net_before }
    }

    /// Returns the creations minus the deletions in `span`.
    fn net(&self, records: &[Record], span: &Span) -> i64 {
        let before = |key: &[u8]| {
            let position = self.order.partition_point(|at| records[usize::from(*at)].key() < key);
            i64::from(self.net_before[position])
        };
        let all = i64::from(self.net_before[self.order.len()]);
        span.end().map_or(all, |end| before(&end)) - before(span.start())
    }
}

/// Returns 1 for a creation and -1 for a deletion.
fn net(record: &Record) -> i64 {
    if record.is_tombstone() { -1 } else { 1 }
}

/// The count of the keys of a span at a revision, in bounded steps. The store may change
/// between steps, but must not collect the history of the revision.
pub(crate) struct KeyCount {
    revision: i64,
    /// The number of keys after the changes that are left.
    count: i64,
    /// The end of the changes that are left.
    end: (usize, usize),
    /// [`KeyChanges::undone`] at the start.
    undone: u64,
    complete: bool,
}

impl KeyCount {
    /// Starts to count the keys of `span` that exist at `revision`.
    pub(crate) fn new(index: &Index, changes: &KeyChanges, span: &Span, revision: i64) -> Self {
        let count = index.count_live(span);
        let (end, undone) = (changes.end(), changes.undone);
        // A range in a transaction does not see the changes after it, which have the same revision.
        // So its count is complete at once, and does not begin again.
        let newest = changes.blocks.back().and_then(|block| block.records.last());
        let complete = newest.is_none_or(|record| record.mod_revision() <= revision);
        KeyCount { revision, count, end, undone, complete }
    }

    /// Continues the count. `span` is that of the start. Stops after the block with which at
    /// least `max_changes` changes have been visited, and returns their number. If changes were
    /// taken back since the start, begins again.
    pub(crate) fn step(
        &mut self,
        index: &Index,
        changes: &KeyChanges,
        span: &Span,
        max_changes: usize,
    ) -> usize {
        if self.undone != changes.undone && !self.complete {
            *self = KeyCount::new(index, changes, span, self.revision);
        }
        let mut visited = 0;
        while !self.complete && visited <= max_changes {
            visited += self.visit_block(changes, span);
        }
        visited
    }

    /// Visits the newest block that is left. Returns the cost.
    fn visit_block(&mut self, changes: &KeyChanges, span: &Span) -> usize {
        let (number, end) = self.end;
        // A removed block has only changes that are visible at the revision.
        let Some(block) = changes.block(number) else {
            self.complete = true;
            return 0;
        };
        let is_visible = |record: &Record| record.mod_revision() <= self.revision;
        let from = block.records[..end].partition_point(is_visible);
        let (net, cost) = block.net(span, from, end);
        self.count -= net;
        match number.checked_sub(1).filter(|_| from == 0) {
            Some(before) => self.end = (before, BLOCK_LEN),
            None => self.complete = true,
        }
        cost
    }

    /// Returns the number of keys if the count is complete.
    pub(crate) fn get(&self) -> Option<i64> {
        self.complete.then_some(self.count)
    }
}
