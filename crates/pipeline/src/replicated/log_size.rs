//! How much of the log stays in memory, for members that lag behind. One that needs older entries
//! gets the whole state.

use std::collections::VecDeque;

use consensus::id::Index;

/// Size in bytes of the payloads of committed entries that stay in memory.
const KEPT_BYTES: u64 = 64 << 20;
/// The same while the state is sent to a member, which needs the entries after it.
const KEPT_BYTES_WHILE_SENDING: u64 = 1 << 30;
/// What an entry counts in addition to its payload, in bytes.
const ENTRY_BYTES: u64 = 128;

/// The sizes of the applied entries in memory.
#[derive(Default)]
pub(super) struct LogSize {
    entries: VecDeque<(Index, u64)>,
    bytes: u64,
}

impl LogSize {
    /// Notes that an entry with a payload of this size is applied.
    pub(super) fn add(&mut self, index: Index, payload_bytes: usize) {
        let bytes = payload_bytes as u64 + ENTRY_BYTES;
        self.entries.push_back((index, bytes));
        self.bytes += bytes;
    }

    /// Notes that a state has replaced all entries.
    pub(super) fn clear(&mut self) {
        *self = LogSize::default();
    }

    /// Returns the last entry that need not stay in memory.
    pub(super) fn compact(&mut self, is_sending: bool) -> Option<Index> {
        let limit = if is_sending { KEPT_BYTES_WHILE_SENDING } else { KEPT_BYTES };
        let mut last = None;
        while self.bytes > limit
            && let Some((index, bytes)) = self.entries.pop_front()
        {
            self.bytes -= bytes;
            last = Some(index);
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_stays_in_memory_while_the_state_is_sent() {
        let mut size = LogSize::default();
        (1..=200).for_each(|index| size.add(index, 1 << 20));
        assert_eq!(size.compact(true), None);
        let last = size.compact(false).unwrap();
        assert!((130..140).contains(&last), "{last}");
        assert_eq!(size.compact(false), None);
        size.clear();
        assert_eq!(size.bytes, 0);
    }
}
