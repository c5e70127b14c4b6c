//! The connections of one client to API servers.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use anyhow::Result;
use http2::{Config, ConnectMethod, Connection, StreamMap};
use tls_socket::{ClientSide, TlsSocket};
use tokio_util::sync::CancellationToken;

use super::channel::{Channel, LIMITS, keepalive};
use super::head::AnswerHead;
use crate::forward::dial::dial;
use crate::forward::shared::Shared;
use crate::upstream::{Place, Server, Speaker};

/// A connection whose PING is not answered within this time is closed.
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// A connection to an API server.
pub struct Upstream {
    /// Distinguishes the connections of a client.
    pub number: u64,
    /// Who speaks on it.
    pub speaker: Speaker,
    /// The connection.
    pub channel: Channel<ClientSide, AnswerHead>,
    /// The client's place at the API server.
    pub place: Arc<Place>,
    /// The client's stream for each stream of the connection.
    pub streams: StreamMap<u32>,
}

type Dialed = Result<(TlsSocket<ClientSide>, Arc<Place>)>;
type Dial = Pin<Box<dyn Future<Output = Dialed> + Send>>;

/// All connections of one client. For each [`Speaker`] one of them is current and gets new requests.
/// Others were told by GOAWAY to take none, and serve what they have.
#[derive(Default)]
pub struct Upstreams {
    /// The connections.
    pub open: Vec<Upstream>,
    dials: [Option<Dial>; 2],
    next_number: u64,
    /// Streams that wait for a connection, or until the API server allows another stream.
    pub queues: [VecDeque<u32>; 2],
}

/// Both speakers.
pub const SPEAKERS: [Speaker; 2] = [Speaker::Client, Speaker::FrontProxy];

impl Upstreams {
    /// The connection that new requests of a speaker use.
    pub fn current(&mut self, speaker: Speaker) -> Option<&mut Upstream> {
        let is_current = |it: &&mut Upstream| it.speaker == speaker && !it.channel.http.is_ending();
        self.open.iter_mut().find(is_current)
    }

    /// The connection with a number.
    pub fn get(&mut self, number: u64) -> Option<&mut Upstream> {
        self.open.iter_mut().find(|it| it.number == number)
    }

    /// Starts to open a connection, unless one is being opened.
    pub fn dial(&mut self, speaker: Speaker, shared: &Arc<Shared>, moved: &CancellationToken) {
        let (shared, moved) = (shared.clone(), moved.clone());
        self.dials[speaker as usize].get_or_insert_with(|| {
            Box::pin(async move {
                let connect = |server: Arc<Server>| {
                    let connector = shared.connector.clone();
                    async move { connector.connect_http2(&server.address, speaker).await }
                };
                dial(&shared, &moved, connect).await
            })
        });
    }

    /// Whether a connection is being opened.
    pub fn is_dialing(&self, speaker: Speaker) -> bool {
        self.dials[speaker as usize].is_some()
    }

    /// Drives the dial of a speaker. Returns its result once.
    pub fn poll_dial(
        &mut self,
        speaker: Speaker,
        now: Instant,
        cx: &mut Context<'_>,
    ) -> Option<Result<()>> {
        let dial = self.dials[speaker as usize].as_mut()?;
        let Poll::Ready(dialed) = dial.as_mut().poll(cx) else { return None };
        self.dials[speaker as usize] = None;
        Some(dialed.map(|(socket, place)| {
            let (number, streams) = (self.next_number, StreamMap::default());
            self.next_number += 1;
            let channel = Channel::new(socket, Connection::client(&config(), now));
            self.open.push(Upstream { number, speaker, channel, place, streams });
        }))
    }

    /// Removes a connection.
    pub fn remove(&mut self, number: u64) -> Option<Upstream> {
        let at = self.open.iter().position(|it| it.number == number)?;
        Some(self.open.swap_remove(at))
    }
}

fn config() -> Config {
    Config {
        max_streams: 0,
        keepalive: keepalive(PING_TIMEOUT),
        connect_method: ConnectMethod::Reject,
        limits: LIMITS,
    }
}
