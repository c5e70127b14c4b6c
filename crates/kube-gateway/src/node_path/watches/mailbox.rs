//! Events on their way to the watches of one client.

use std::sync::Arc;
use std::task::Waker;

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

use super::frame::Frame;
use super::wake_list::WakeList;

/// Items that wait for a session. Beyond that the client's watches end; they are watched on from the last
/// event that was delivered. A session takes its items as soon as its thread has time.
const MAX_ITEMS: usize = 4096;

/// What happens to a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// An event to be sent.
    Event(Frame),
    /// The watch must end.
    End,
}

/// The events for all watches of one client, in their order.
#[derive(Default)]
pub struct Mailbox {
    queue: Mutex<Queue>,
    /// Wakes the session.
    waker: AtomicWaker,
    /// Wakes the sessions of its thread; `None` if it is woken alone.
    wake_list: Option<Arc<WakeList>>,
}

#[derive(Default)]
struct Queue {
    items: Vec<(u32, Item)>,
    /// Streams whose watches have something to pull.
    announced: Vec<u32>,
    /// Whether items were dropped. What is in the queue precedes them.
    overflowed: bool,
}

/// The content of a mailbox.
pub struct Delivery {
    /// The items, each with the stream of its watch.
    pub items: Vec<(u32, Item)>,
    /// Streams whose watches have something to pull.
    pub announced: Vec<u32>,
    /// Whether further ones were dropped, so that all watches must end.
    pub overflowed: bool,
}

impl Mailbox {
    /// A mailbox of a session on the thread of this list.
    pub fn new(wake_list: Arc<WakeList>) -> Mailbox {
        Mailbox { wake_list: Some(wake_list), ..Mailbox::default() }
    }

    fn wake(&self) {
        let Some(waker) = self.waker.take() else { return };
        match &self.wake_list {
            Some(list) => list.add(waker),
            None => waker.wake(),
        }
    }

    /// Adds an item for the watch of a stream, and wakes the session.
    pub fn push(&self, stream: u32, item: Item) {
        let mut queue = self.queue.lock();
        if queue.items.len() >= MAX_ITEMS {
            queue.overflowed = true;
        }
        // Nothing may follow what was dropped.
        if !queue.overflowed {
            queue.items.push((stream, item));
        }
        drop(queue);
        self.wake();
    }

    /// Notes that the watch of a stream has something to pull, and wakes the session.
    pub fn announce(&self, stream: u32) {
        let mut queue = self.queue.lock();
        if queue.announced.contains(&stream) {
            return;
        }
        queue.announced.push(stream);
        drop(queue);
        self.wake();
    }

    /// Notes whom to wake. Must be called before [`Mailbox::take`].
    pub fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    /// Takes everything. A mailbox that has overflowed is empty from then on.
    pub fn take(&self) -> Delivery {
        let mut queue = self.queue.lock();
        let (items, announced) =
            (std::mem::take(&mut queue.items), std::mem::take(&mut queue.announced));
        Delivery { items, announced, overflowed: queue.overflowed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_stay_in_order_and_are_bounded() {
        let mailbox = Mailbox::default();
        for stream in 0..MAX_ITEMS as u32 {
            mailbox.push(stream, Item::End);
        }
        let delivery = mailbox.take();
        assert!(!delivery.overflowed);
        assert!(delivery.items.iter().map(|(stream, _)| *stream).eq(0..MAX_ITEMS as u32));
        for stream in 0..MAX_ITEMS as u32 + 1 {
            mailbox.push(stream, Item::End);
        }
        let delivery = mailbox.take();
        assert!(delivery.overflowed && delivery.items.len() == MAX_ITEMS);
        mailbox.push(1, Item::End);
        assert!(mailbox.take().items.is_empty(), "something is missing before it");
    }

    #[test]
    fn a_stream_is_announced_once_until_it_is_taken() {
        let mailbox = Mailbox::default();
        for stream in [3, 5, 3] {
            mailbox.announce(stream);
        }
        assert_eq!(mailbox.take().announced, [3, 5]);
        assert!(mailbox.take().announced.is_empty());
        mailbox.announce(3);
        assert_eq!(mailbox.take().announced, [3]);
    }
}
