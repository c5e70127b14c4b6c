//! What the gateway follows in the body of an answer.

use http::{StatusCode, Uri};

use super::framing::Framing;
use super::list::ListAnswer;
use super::shared::Shared;
use super::watch::WatchEnd;
use crate::protect::Reservation;
use crate::request_info::{RequestInfo, query_flag, query_values};

/// Whether a watch sends the existing objects first. Such a watch only ends early after a mark that
/// they are complete, which only a WatchList has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum InitialEvents {
    Sent,
    NotSent,
}

/// What the head of an answer says about its body.
pub struct Content<'a> {
    /// `Content-Type`.
    pub media_type: &'a [u8],
    /// `Content-Encoding`.
    pub encoding: &'a [u8],
}

/// Returns what a watch was asked to send first, if the request is a watch.
pub fn watch_of(info: &RequestInfo, uri: &Uri) -> Option<InitialEvents> {
    if info.verb != "watch" {
        return None;
    }
    let version = query_values(uri, "resourceVersion").next().unwrap_or_default();
    Some(if query_flag(uri, "sendInitialEvents") || matches!(&*version, "" | "0") {
        InitialEvents::Sent
    } else {
        InitialEvents::NotSent
    })
}

/// Follows the body of an answer: the size of a LIST, and the events of a watch.
#[derive(Default)]
pub struct Followed {
    list: Option<ListAnswer>,
    watch: Option<Box<WatchEnd>>,
}

impl Followed {
    /// Starts with an answer that has this head. `reservation` is that of its LIST, and `watch` what
    /// the request asked for.
    pub fn new<'a>(
        shared: &Shared,
        status: StatusCode,
        content: impl FnOnce() -> Content<'a>,
        reservation: Option<Reservation>,
        watch: Option<InitialEvents>,
    ) -> Followed {
        // An error is small, whatever was predicted.
        if status != StatusCode::OK || (reservation.is_none() && watch.is_none()) {
            return Followed::default();
        }
        let Content { media_type, encoding } = content();
        if let Some(initial_events) = watch {
            let sent = initial_events == InitialEvents::Sent;
            let framing = Framing::new(media_type, encoding, sent);
            let watch = WatchEnd::new(framing, reservation, shared.freshness.clone());
            return Followed { list: None, watch: Some(Box::new(watch)) };
        }
        let list = reservation.map(|reservation| ListAnswer::new(encoding, reservation));
        Followed { list, watch: None }
    }

    /// Follows further bytes.
    pub fn follow(&mut self, bytes: &[u8]) {
        if let Some(watch) = &mut self.watch {
            watch.follow(bytes);
        } else if let Some(list) = &mut self.list {
            list.follow(bytes);
        }
    }

    /// Notes that the body is complete.
    pub fn complete(&mut self) {
        if let Some(list) = self.list.take() {
            list.complete();
        }
    }

    /// The watch, if the answer is one.
    pub fn watch(&self) -> Option<&WatchEnd> {
        self.watch.as_deref()
    }
}
