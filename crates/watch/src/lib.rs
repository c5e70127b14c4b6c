//! A thread locks the hub before a mailbox. It holds neither lock while it reads history.
//! A thread that has locked the store may lock the hub or a mailbox. A thread that has
//! locked one of these must not lock the store.

#![warn(missing_docs)]

mod batch;
mod delivery;
mod hub;
mod mailbox;
mod span_tree;
mod stream;
mod watch;

pub use batch::Events;
pub use delivery::{Compacted, Delivery, HistoryReader};
pub use hub::Hub;
pub use mailbox::QUEUE_EVENTS;
pub use stream::WatchStream;
pub use watch::{CreateError, Filter, Watch};
