//! A request in progress.

use std::pin::Pin;
use std::time::Instant;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, StatusCode};
use http2::Fields;

use super::young::Given;
use crate::exchange::Exchange;
use crate::forward::followed::{Followed, InitialEvents};
use crate::forward::request::{Client, prepare};
use crate::forward::watch::WatchEnd;
use crate::identity::Credential;
use crate::node_path::leases::{Forwarded, Renewal};
use crate::node_path::watches::{Continuation, WaitingRead};
use crate::protect::{List, Refused, RenewalTurn, Reservation};
use crate::upstream::Speaker;

/// Bytes of a body that are kept until the answer begins, to send the request again. A longer body
/// is sent once.
const MAX_KEPT: usize = 64 << 10;

/// A request that the client has sent, until its answer is complete.
pub struct Stream {
    /// Ends with the stream.
    pub exchange: Exchange,
    /// What the stream waits for.
    pub phase: Phase,
    /// Bytes of the request that the client may not send again yet.
    pub unreleased: usize,
    /// What is special about it if it renews the Lease of a node.
    pub renewal: Option<RenewalPhase>,
    /// The watch, if a cache goes on with it after its initial events.
    pub continuation: Option<Box<Continuation>>,
}

/// What happens to a renewal of the Lease of a node.
pub enum RenewalPhase {
    /// Its body has not arrived. From then on it goes to an API server.
    Arriving(Box<Renewal>, Instant),
    /// It is being written into the store.
    Serving,
    /// An API server executes it, when it has its turn.
    Forwarded(Box<Forwarded>, Option<RenewalTurn>),
}

/// What a stream waits for.
pub enum Phase {
    /// A connection to an API server, or the turn of a LIST.
    Pending(Box<Pending>),
    /// The head of the answer.
    Sent(Place, Box<Pending>),
    /// The end of the answer.
    Answering(Place, Answering),
}

/// Where a request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The number of the connection.
    pub connection: u64,
    /// The stream's ID there.
    pub stream: u32,
}

/// What is needed to send a request, perhaps again.
pub struct Pending {
    /// The head, as the client sent it until [`Pending::prepare`].
    pub parts: Parts,
    /// What identifies the sender, until the head is prepared.
    pub credential: Option<Credential>,
    /// Who speaks for the sender.
    pub speaker: Speaker,
    /// The limit that applies, if it is a LIST.
    pub list: Option<List>,
    /// What its LIST has reserved.
    pub reservation: Option<Reservation>,
    /// What a watch was asked to send first.
    pub watch: Option<InitialEvents>,
    /// The body.
    pub body: Body,
    /// How often it was sent.
    pub attempts: usize,
    /// The head that the client has of an earlier answer, with which the next one goes on.
    pub given: Option<Given>,
}

/// A LIST that waits for its turn.
pub struct Turn {
    /// The client's stream.
    pub stream: u32,
    /// Who will answer it.
    pub from: TurnFrom,
    /// Since when it waits.
    pub started: Instant,
    /// What it will have reserved.
    pub granted: Pin<Box<dyn Future<Output = Result<Reservation, Refused>> + Send>>,
}

/// Who answers a LIST that waits for its turn.
pub enum TurnFrom {
    /// The API server of this connection.
    Server(u64),
    /// A cache.
    Cache(Box<WaitingRead>),
}

/// An answer that has begun.
#[derive(Default)]
pub struct Answering {
    /// What is followed in its body.
    pub followed: Followed,
    /// Bytes that the API server may not send again yet.
    pub unreleased: usize,
    /// The request, if it is a watch that may be sent again.
    pub again: Option<Box<Pending>>,
}

/// The body of a request, as far as it is kept.
#[derive(Default)]
pub struct Body {
    kept: Vec<Bytes>,
    bytes: usize,
    /// Whether bytes were sent and not kept.
    is_cut: bool,
    /// Whether the client has sent all of it.
    pub is_complete: bool,
}

impl Stream {
    /// A request that was not sent yet.
    pub fn new(exchange: Exchange, pending: Pending) -> Stream {
        let phase = Phase::Pending(Box::new(pending));
        Stream { exchange, phase, unreleased: 0, renewal: None, continuation: None }
    }

    /// Whether it must wait for its turn before it is sent.
    pub fn needs_turn(&self) -> bool {
        matches!(self.renewal, Some(RenewalPhase::Forwarded(_, None)))
    }

    /// Returns the turn of a renewal, which is not at its API server any more.
    pub fn return_turn(&mut self) {
        if let Some(RenewalPhase::Forwarded(_, turn)) = &mut self.renewal {
            *turn = None;
        }
    }

    /// Begins the answer from `place`. Returns what was needed to send the request; `None` if the
    /// answer had begun.
    pub fn begin_answer(&mut self, place: Place) -> Option<Box<Pending>> {
        match std::mem::replace(&mut self.phase, Phase::Answering(place, Answering::default())) {
            Phase::Pending(pending) | Phase::Sent(_, pending) => Some(pending),
            answering @ Phase::Answering(..) => {
                self.phase = answering;
                None
            }
        }
    }

    /// Begins to send a watch again of which the client has only the head. Returns whether it can.
    pub fn begin_again(&mut self, now: Instant) -> bool {
        let Phase::Answering(_, answering) = &mut self.phase else { return false };
        let is_young = |again: &mut Box<Pending>| {
            again.given.as_ref().is_some_and(|given| given.is_young(now))
        };
        let Some(pending) = answering.again.take_if(is_young) else { return false };
        self.phase = Phase::Pending(pending);
        true
    }

    /// Frees what [`Stream::begin_again`] needs.
    pub fn forget_request(&mut self) {
        if let Phase::Answering(_, answering) = &mut self.phase {
            answering.again = None;
        }
    }

    /// The head that the client has, if the answer goes on with an earlier one.
    pub fn given(&self) -> Option<&Given> {
        match &self.phase {
            Phase::Pending(pending) | Phase::Sent(_, pending) => pending.given.as_ref(),
            Phase::Answering(..) => None,
        }
    }

    /// Decides when the answer ends early, if it is a watch.
    pub fn watch(&self) -> Option<&WatchEnd> {
        match &self.phase {
            Phase::Answering(_, answering) => answering.followed.watch(),
            Phase::Pending(_) | Phase::Sent(..) => None,
        }
    }

    /// Where the request was sent.
    pub fn place(&self) -> Option<Place> {
        match &self.phase {
            Phase::Pending(_) => None,
            Phase::Sent(place, _) | Phase::Answering(place, _) => Some(*place),
        }
    }
}

impl Pending {
    /// Turns the head into one for an API server. Most renewals of Leases do not need it.
    pub fn prepare(&mut self, client: &Client) {
        if let Some(credential) = self.credential.take() {
            prepare(client, &mut self.parts, &credential);
        }
    }

    /// Whether the answer has no body, whatever its length says.
    pub fn answers_head(&self) -> bool {
        self.parts.method == Method::HEAD
    }

    /// Keeps the request, whose answer begins with this head, if it is a watch that may be sent
    /// again: once.
    pub fn keep(
        mut self: Box<Self>,
        status: StatusCode,
        fields: &Fields,
        now: Instant,
    ) -> Option<Box<Pending>> {
        if self.watch.is_none() || !self.reads() || self.given.is_some() {
            return None;
        }
        self.given = Some(Given::new(status, fields, now)?);
        Some(self)
    }

    /// Whether the request reads and has no body. Such a request may be executed twice.
    pub fn reads(&self) -> bool {
        matches!(self.parts.method, Method::GET | Method::HEAD)
            && self.body.is_complete
            && self.body.bytes == 0
    }
}

impl Body {
    /// A body of which nothing has arrived.
    pub fn new(is_complete: bool) -> Body {
        Body { is_complete, ..Body::default() }
    }

    /// The bytes that are kept, in one piece.
    pub fn whole(&self) -> Bytes {
        match &self.kept[..] {
            [bytes] => bytes.clone(),
            parts => parts.concat().into(),
        }
    }

    /// The number of bytes so far.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Keeps bytes that will be sent.
    pub fn keep(&mut self, bytes: Bytes) {
        self.bytes += bytes.len();
        self.kept.push(bytes);
    }

    /// Notes bytes that are sent at once.
    pub fn pass(&mut self, bytes: &Bytes) {
        self.bytes += bytes.len();
        if !self.is_cut {
            self.kept.push(bytes.clone());
            self.cut();
        }
    }

    /// Returns all bytes so far, for an attempt to send them; `None` if not all of them were kept.
    pub fn attempt(&mut self) -> Option<Vec<Bytes>> {
        if self.is_cut {
            return None;
        }
        let kept = self.kept.clone();
        self.cut();
        Some(kept)
    }

    /// Whether the body can be sent from its start.
    pub fn is_kept(&self) -> bool {
        !self.is_cut
    }

    /// Forgets a long body.
    fn cut(&mut self) {
        if self.bytes > MAX_KEPT {
            self.is_cut = true;
            self.kept = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn pending(method: &str, watch: Option<InitialEvents>) -> Box<Pending> {
        let request = Request::builder().method(method).uri("/api/v1/pods?watch=1").body(());
        let (parts, ()) = request.unwrap().into_parts();
        let (speaker, body) = (Speaker::Client, Body::new(true));
        Box::new(Pending {
            parts,
            credential: None,
            speaker,
            list: None,
            reservation: None,
            watch,
            body,
            attempts: 1,
            given: None,
        })
    }

    #[test]
    fn a_watch_is_kept_once() {
        let (now, none) = (Instant::now(), Fields::default());
        for watch in [InitialEvents::Sent, InitialEvents::NotSent] {
            let kept = pending("GET", Some(watch)).keep(StatusCode::OK, &none, now).unwrap();
            assert!(kept.keep(StatusCode::OK, &none, now).is_none());
        }
    }

    #[test]
    fn no_other_request_is_kept() {
        let (now, none) = (Instant::now(), Fields::default());
        let watch = Some(InitialEvents::NotSent);
        assert!(pending("GET", None).keep(StatusCode::OK, &none, now).is_none());
        assert!(pending("POST", watch).keep(StatusCode::OK, &none, now).is_none());
        let mut with_body = pending("GET", watch);
        with_body.body.keep("x".into());
        assert!(with_body.keep(StatusCode::OK, &none, now).is_none());
    }

    #[test]
    fn a_short_body_can_be_sent_again() {
        let mut body = Body::default();
        body.keep(Bytes::from(vec![1; MAX_KEPT - 1]));
        assert_eq!(body.attempt().unwrap().len(), 1);
        body.pass(&Bytes::from_static(b"x"));
        assert!(body.is_kept());
        assert_eq!(body.attempt().unwrap().len(), 2);
    }

    #[test]
    fn a_long_body_is_sent_once() {
        let mut body = Body::default();
        body.keep(Bytes::from(vec![1; MAX_KEPT + 1]));
        assert!(body.is_kept(), "nothing was sent");
        assert_eq!(body.attempt().unwrap().len(), 1);
        assert!(!body.is_kept() && body.attempt().is_none());
        let mut body = Body::default();
        body.keep(Bytes::from(vec![1; MAX_KEPT]));
        assert!(body.attempt().is_some());
        body.pass(&Bytes::from_static(b"x"));
        assert!(body.attempt().is_none());
    }
}
