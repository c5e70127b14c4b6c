//! A change of an object, and what it is to a watch.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::frame::{EventType, Frame};
use super::object::Object;
use super::selector::Selector;

/// Bytes of an event besides its objects, about.
const EVENT_SIZE: usize = 256;

/// A change of an object.
pub struct Event {
    version: u64,
    before: Option<Arc<Object>>,
    after: Option<Arc<Object>>,
    /// The object of a deletion, as the API server sent it: the last one, with the version of the deletion.
    deleted: Option<Bytes>,
    /// What is sent, by type. Watches share it.
    frames: [OnceLock<Frame>; 3],
}

impl Event {
    /// A change at a version. `before` is the object before it.
    pub fn changed(before: Option<Arc<Object>>, after: Arc<Object>) -> Event {
        let version = after.version();
        Event { version, before, after: Some(after), deleted: None, frames: Default::default() }
    }

    /// A deletion. `last` is the object with the version of the deletion.
    pub fn deleted(before: Arc<Object>, last: &Object) -> Event {
        let (version, deleted) = (last.version(), Some(last.envelope().clone()));
        Event { version, before: Some(before), after: None, deleted, frames: Default::default() }
    }

    /// The bytes that are kept for this event and for no object that is known after it.
    pub fn size(&self) -> usize {
        let before = self.before.as_ref().map_or(0, |object| object.size());
        before + self.deleted.as_ref().map_or(0, Bytes::len) + EVENT_SIZE
    }

    /// Several changes of an object as one: from what it was `before` to what the last one made of it.
    pub fn merged(before: Option<Arc<Object>>, last: &Event) -> Event {
        let (after, deleted) = (last.after.clone(), last.deleted.clone());
        Event { version: last.version, before, after, deleted, frames: Default::default() }
    }

    /// Whether the object was deleted.
    pub fn is_deletion(&self) -> bool {
        self.deleted.is_some()
    }

    /// The object before the change.
    pub fn before(&self) -> Option<&Arc<Object>> {
        self.before.as_ref()
    }

    /// The version of the change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The object before and after the change.
    pub fn objects(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.before.iter().chain(&self.after)
    }

    /// Returns what a watch with a selector must be sent. As in kube-apiserver, an object that is selected
    /// after the change only was added, and one that was selected before it only was deleted: it is sent
    /// as it was, with the version of the change.
    pub fn frame(&self, selector: &Selector) -> Option<Frame> {
        let selects = |object: &Option<Arc<Object>>| {
            object.as_ref().is_some_and(|object| selector.selects(object))
        };
        let event = match (selects(&self.before), selects(&self.after)) {
            (false, false) => return None,
            (false, true) => EventType::Added,
            (true, true) => EventType::Modified,
            (true, false) => EventType::Deleted,
        };
        let frame = || Frame::new(event, self.object(event).unwrap_or_default());
        Some(self.frames[event as usize].get_or_init(frame).clone())
    }

    fn object(&self, event: EventType) -> Option<Bytes> {
        match event {
            EventType::Deleted => {
                let before = || self.before.as_ref().map(|it| it.with_version(self.version));
                self.deleted.clone().or_else(before)
            }
            _ => self.after.as_ref().map(|after| after.envelope().clone()),
        }
    }
}
