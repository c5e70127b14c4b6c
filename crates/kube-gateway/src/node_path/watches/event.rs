//! A change of an object, and what it is to a watch.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::frame::{EventType, Frame, put_head};
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

    /// A deletion at a version, of an object that the store had until then.
    pub fn removed(before: Arc<Object>, version: u64) -> Event {
        let before = Some(before);
        Event { version, before, after: None, deleted: None, frames: Default::default() }
    }

    /// The bytes that are kept for this event and for no object that is known after it.
    pub fn size(&self) -> usize {
        let before = self.before.as_ref().map_or(0, |object| object.size());
        before + self.deleted.as_ref().map_or(0, Bytes::len) + EVENT_SIZE
    }

    /// The version of the change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The object after the change, if there is one.
    pub fn after(&self) -> Option<&Arc<Object>> {
        self.after.as_ref()
    }

    /// The object before and after the change.
    pub fn objects(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.before.iter().chain(&self.after)
    }

    /// Returns what a watch with a selector must be sent. As in kube-apiserver, an object that is selected
    /// after the change only was added, and one that was selected before it only was deleted: it is sent
    /// as it was, with the version of the change.
    pub fn frame(&self, selector: &Selector) -> Option<Frame> {
        let event = self.event_type(selector)?;
        let frame = || Frame::new(event, self.object(event).unwrap_or_default());
        Some(self.frames[event as usize].get_or_init(frame).clone())
    }

    /// Appends what a watch with a selector must be sent. Returns whether there is anything.
    pub fn put(&self, selector: &Selector, out: &mut Vec<u8>) -> bool {
        let Some(event) = self.event_type(selector) else { return false };
        let object = self.object(event).unwrap_or_default();
        put_head(out, event, object.len());
        out.extend_from_slice(&object);
        true
    }

    /// Whether a watch with a selector must be sent anything.
    pub fn concerns(&self, selector: &Selector) -> bool {
        self.event_type(selector).is_some()
    }

    fn event_type(&self, selector: &Selector) -> Option<EventType> {
        let selects = |object: &Option<Arc<Object>>| {
            object.as_ref().is_some_and(|object| selector.selects(object))
        };
        match (selects(&self.before), selects(&self.after)) {
            (false, false) => None,
            (false, true) => Some(EventType::Added),
            (true, true) => Some(EventType::Modified),
            (true, false) => Some(EventType::Deleted),
        }
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
