//! Linearizable reads that wait for their confirmation.

use std::collections::VecDeque;
use std::time::Instant;

use consensus::reads::ReadNumber;
use futures_channel::oneshot;

use crate::Error;

/// Tells a reader that it may read the published state.
pub(super) type Reader = oneshot::Sender<Result<(), Error>>;

/// The readers by the numbers under which the replica confirms them.
#[derive(Default)]
pub(super) struct PendingReads {
    groups: VecDeque<Group>,
}

/// Readers that have arrived together.
struct Group {
    number: ReadNumber,
    deadline: Instant,
    readers: Vec<Reader>,
}

impl PendingReads {
    /// Adds readers. Numbers and deadlines grow.
    pub(super) fn add(&mut self, number: ReadNumber, deadline: Instant, readers: Vec<Reader>) {
        self.groups.push_back(Group { number, deadline, readers });
    }

    /// Lets all readers up to a number read.
    pub(super) fn confirm(&mut self, through: ReadNumber) {
        self.end_while(|group| group.number <= through, &Ok(()));
    }

    /// Fails the readers that wait for too long.
    pub(super) fn expire(&mut self, now: Instant, error: Error) {
        self.end_while(|group| group.deadline <= now, &Err(error));
    }

    /// Fails all readers.
    pub(super) fn fail(&mut self, error: Error) {
        self.end_while(|_| true, &Err(error));
    }

    fn end_while(&mut self, ends: impl Fn(&Group) -> bool, result: &Result<(), Error>) {
        while self.groups.front().is_some_and(&ends) {
            let group = self.groups.pop_front().expect("there is a first");
            // A reader that does not wait any more has dropped its side.
            group.readers.into_iter().for_each(|reader| drop(reader.send(result.clone())));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_confirmation_covers_all_earlier_readers() {
        let (now, mut reads) = (Instant::now(), PendingReads::default());
        let mut add = |number: u64| {
            let (reader, receiver) = oneshot::channel();
            reads.add(number, now + Duration::from_secs(number), vec![reader]);
            receiver
        };
        let mut receivers: Vec<_> = (1..=4).map(&mut add).collect();
        let mut result = |reader: usize| receivers[reader].try_recv().unwrap();
        reads.confirm(2);
        assert!(matches!((result(0), result(1), result(2)), (Some(Ok(())), Some(Ok(())), None)));
        reads.expire(now + Duration::from_secs(3), Error::NoLeader);
        assert!(matches!((result(2), result(3)), (Some(Err(Error::NoLeader)), None)));
        reads.fail(Error::Stopped);
        assert!(matches!(result(3), Some(Err(Error::Stopped))));
    }
}
