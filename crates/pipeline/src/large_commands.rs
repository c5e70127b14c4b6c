//! The queue of large commands: those that may visit many keys.
//!
//! The clients take turns. So the commands of a client wait for at most a few commands of each
//! other one, and small commands, which have a queue of their own, for at most one batch of
//! large ones.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use auth::Caller;
use parking_lot::Mutex;

use crate::submission::Submission;

/// The origin of commands, such as a connection. Large commands of different clients take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientId(pub usize);

/// Where a command comes from.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Whose turn it takes.
    pub client: ClientId,
    /// Who has to be permitted to execute it.
    pub caller: Caller,
}

/// The origin of commands of the process itself, which may do everything.
impl From<ClientId> for Origin {
    fn from(client: ClientId) -> Self {
        Origin { client, caller: Caller::Store }
    }
}

/// The queued large commands.
pub(crate) struct LargeCommands {
    max: Size,
    state: Mutex<State>,
    /// Number of queued commands.
    len: AtomicUsize,
}

#[derive(Default)]
struct State {
    /// The commands of each client that has any.
    clients: HashMap<ClientId, ClientQueue>,
    /// These clients, in the order of their turns.
    turns: VecDeque<ClientId>,
    size: Size,
}

#[derive(Default)]
struct ClientQueue {
    commands: VecDeque<Submission>,
    size: Size,
}

/// The size of a queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Size {
    pub(crate) commands: usize,
    /// Total size of the requests in bytes.
    pub(crate) bytes: usize,
}

impl LargeCommands {
    /// Creates a queue of at most `max` commands and bytes. A client may use at most as much as
    /// it leaves free.
    pub(crate) fn new(max: Size) -> Arc<Self> {
        Arc::new(LargeCommands { max, state: Mutex::default(), len: AtomicUsize::new(0) })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of queued commands.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Queues a command of `client`. Returns false if the client has too many.
    pub(crate) fn push(&self, client: ClientId, submission: Submission) -> bool {
        let mut state = self.state.lock();
        let own = state.clients.get(&client).map_or(Size::default(), |queue| queue.size);
        let (own, all) = (own.with(&submission), state.size);
        if own.commands + all.commands > self.max.commands || own.bytes + all.bytes > self.max.bytes
        {
            return false;
        }
        state.size = all.with(&submission);
        let queue = state.clients.entry(client).or_default();
        queue.size = own;
        queue.commands.push_back(submission);
        if own.commands == 1 {
            state.turns.push_back(client);
        }
        self.len.store(state.size.commands, Ordering::Relaxed);
        true
    }

    /// Takes the first command of the client whose turn it is. The next turn is that of another
    /// client.
    pub(crate) fn pop(&self) -> Option<Submission> {
        let mut state = self.state.lock();
        let client = state.turns.pop_front()?;
        let queue = state.clients.get_mut(&client).expect("the client has commands");
        let submission = queue.commands.pop_front().expect("the client has commands");
        queue.size = queue.size.without(&submission);
        match queue.commands.is_empty() {
            true => drop(state.clients.remove(&client)),
            false => state.turns.push_back(client),
        }
        state.size = state.size.without(&submission);
        self.len.store(state.size.commands, Ordering::Relaxed);
        Some(submission)
    }
}

impl Size {
    fn with(self, submission: &Submission) -> Self {
        Size { commands: self.commands + 1, bytes: self.bytes + submission.bytes }
    }

    fn without(self, submission: &Submission) -> Self {
        Size { commands: self.commands - 1, bytes: self.bytes - submission.bytes }
    }
}

#[cfg(test)]
mod tests {
    use mvcc::Command;

    use super::*;
    use crate::submission::ReplyTo;

    fn submission(id: i64, bytes: usize) -> Submission {
        let (command, caller) = (Command::LeaseRevoke { id }, auth::Caller::Store);
        Submission { command, caller, bytes, reply: ReplyTo::Nobody }
    }

    fn id(submission: Submission) -> i64 {
        match submission.command {
            Command::LeaseRevoke { id } => id,
            other => panic!("unexpected command {other:?}"),
        }
    }

    #[test]
    fn clients_take_turns() {
        let queue = LargeCommands::new(Size { commands: 100, bytes: 1000 });
        let [a, b, c] = [1, 2, 3].map(ClientId);
        for (client, id) in [(a, 10), (a, 11), (a, 12), (b, 20), (c, 30), (b, 21)] {
            assert!(queue.push(client, submission(id, 1)));
        }
        let order: Vec<i64> = std::iter::from_fn(|| queue.pop().map(id)).collect();
        assert_eq!(order, [10, 20, 30, 11, 21, 12]);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_client_leaves_room_for_others() {
        let queue = LargeCommands::new(Size { commands: 100, bytes: 1000 });
        let accepted = |client, bytes| {
            let client = ClientId(client);
            (0..1000).take_while(|id| queue.push(client, submission(*id, bytes))).count()
        };
        assert_eq!([accepted(1, 0), accepted(2, 0), accepted(3, 0)], [50, 25, 13]);
        while queue.pop().is_some() {}
        assert_eq!([accepted(1, 100), accepted(2, 100)], [5, 3]);
        while queue.pop().is_some() {}
        assert_eq!(accepted(2, 10), 50);
    }
}
