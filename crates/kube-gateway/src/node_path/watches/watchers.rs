//! The open watches of one kind, by what they select.

use std::collections::HashMap;
use std::sync::Arc;

use super::event::Event;
use super::kind::Kind;
use super::mailbox::{Item, Mailbox};
use super::object::{Object, Traits};
use super::selector::Selector;

/// An open watch.
pub struct Watcher {
    /// The client.
    pub mailbox: Arc<Mailbox>,
    /// The stream of the client.
    pub stream: u32,
    /// Changes up to this version are not sent.
    pub floor: u64,
}

type Group = HashMap<u64, Watcher>;

/// All open watches. A change visits only those that it can concern.
pub struct Watchers {
    kind: Kind,
    groups: HashMap<Selector, Group>,
    /// Selectors in `groups` that every change can concern.
    broad: Vec<Traits>,
    next: u64,
    count: usize,
}

impl Watchers {
    /// No watches.
    pub fn new(kind: Kind) -> Watchers {
        Watchers { kind, groups: HashMap::new(), broad: Vec::new(), next: 0, count: 0 }
    }

    /// Adds a watch, and returns its number.
    pub fn add(&mut self, selector: &Selector, watcher: Watcher) -> u64 {
        let number = self.next;
        self.next += 1;
        self.count += 1;
        if let Selector::Without(traits) = selector
            && !self.broad.contains(traits)
        {
            self.broad.push(*traits);
        }
        self.groups.entry(selector.clone()).or_default().insert(number, watcher);
        number
    }

    /// Removes a watch, unless it was removed before.
    pub fn remove(&mut self, selector: &Selector, number: u64) {
        let Some(group) = self.groups.get_mut(selector) else { return };
        self.count -= usize::from(group.remove(&number).is_some());
        if group.is_empty() {
            self.groups.remove(selector);
            self.broad.retain(|traits| *selector != Selector::Without(*traits));
        }
    }

    /// The number of watches.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Delivers a change to all watches that it concerns. Returns to how many.
    pub fn deliver(&self, event: &Event) -> usize {
        let mut delivered = 0;
        for selector in self.concerned(event) {
            let Some(group) = self.groups.get(&selector) else { continue };
            let Some(frame) = event.frame(&selector) else { continue };
            for watcher in group.values().filter(|watcher| watcher.floor < event.version()) {
                watcher.mailbox.push(watcher.stream, Item::Event(frame.clone()));
                delivered += 1;
            }
        }
        delivered
    }

    /// Tells all watches that there is something to be pulled.
    pub fn announce(&self) {
        for watcher in self.groups.values().flat_map(Group::values) {
            watcher.mailbox.announce(watcher.stream);
        }
    }

    /// The selectors that a change can concern, each once.
    fn concerned(&self, event: &Event) -> Vec<Selector> {
        let mut selectors: Vec<Selector> =
            self.broad.iter().map(|traits| Selector::Without(*traits)).collect();
        let mut add = |selector: Selector| {
            if !selectors.contains(&selector) {
                selectors.push(selector);
            }
        };
        for object in event.objects() {
            if self.kind.is_referenced() {
                let (namespace, name) = (object.namespace().into(), object.name().into());
                add(Selector::Object { namespace, name });
                continue;
            }
            add(Selector::Name(object.name().into()));
            add(Selector::Node(Object::node(object).into()));
        }
        selectors
    }

    /// Ends all watches.
    pub fn end(&mut self) {
        for watcher in self.groups.drain().flat_map(|(_, group)| group.into_values()) {
            watcher.mailbox.push(watcher.stream, Item::End);
        }
        self.broad.clear();
        self.count = 0;
    }
}
