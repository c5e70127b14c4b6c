//! Connections: TCP, TLS and the handshake of both sides, within a time limit.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls_pki_types::CertificateDer;
use sockets::Io;
use tokio::io::{ReadHalf, WriteHalf, split};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::config::Timeouts;
use crate::frame::{FrameReader, Kind, invalid, write_all};
use crate::hello::{Answer, Hello, Identity, MAX_BYTES, PREFACE, Welcome};
use crate::tls::PeerTls;
use crate::url::PeerUrl;

pub(crate) type Reader = FrameReader<ReadHalf<Box<dyn Io>>>;
pub(crate) type Writer = WriteHalf<Box<dyn Io>>;

/// Why a member was not reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// There is no connection, or no handshake.
    #[error(transparent)]
    Connection(#[from] io::Error),
    /// The peer refuses the stream, and says who it is.
    #[error("{0}")]
    Refused(Answer, Identity),
}

/// Connects to members.
#[derive(Clone)]
pub struct Dialer {
    tls: Option<Arc<PeerTls>>,
    timeouts: Timeouts,
}

/// A stream on which this side sends.
pub(crate) struct Opened {
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
    /// How many bytes may be on their way.
    pub(crate) window: u32,
}

impl Dialer {
    /// Creates a dialer. Without `tls`, it connects only to `http` URLs.
    pub fn new(tls: Option<Arc<PeerTls>>, timeouts: Timeouts) -> Dialer {
        Dialer { tls, timeouts }
    }

    /// Asks who is at this URL.
    ///
    /// # Errors
    /// If there is no member.
    pub async fn probe(&self, url: &PeerUrl) -> io::Result<Identity> {
        let welcome = self.within_time(self.greet(url, &Hello::Probe)).await?.2;
        Ok(welcome.identity)
    }

    /// Opens a stream.
    pub(crate) async fn open(&self, url: &PeerUrl, hello: &Hello) -> Result<Opened, DialError> {
        let (reader, writer, welcome) = self.within_time(self.greet(url, hello)).await?;
        match welcome.answer {
            Answer::Accepted => Ok(Opened { reader, writer, window: welcome.window }),
            answer => Err(DialError::Refused(answer, welcome.identity)),
        }
    }

    async fn within_time<T>(&self, attempt: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        timeout(self.timeouts.connect, attempt).await.unwrap_or_else(|_| Err(timed_out()))
    }

    async fn greet(&self, url: &PeerUrl, hello: &Hello) -> io::Result<(Reader, Writer, Welcome)> {
        let io = self.connect(url).await?;
        let (reader, mut writer) = split(io);
        let mut bytes = Vec::new();
        hello.encode(&mut bytes);
        write_all(&mut writer, &bytes, self.timeouts.silence).await?;
        let mut reader = FrameReader::new(reader, self.timeouts.silence);
        let welcome = match reader.next(MAX_BYTES).await? {
            Some(frame) if frame.kind == Kind::Welcome => Welcome::decode(frame.body)?,
            Some(_) => return Err(invalid("the server is not a member")),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        };
        Ok((reader, writer, welcome))
    }

    async fn connect(&self, url: &PeerUrl) -> io::Result<Box<dyn Io>> {
        let addresses = url.resolve().await?;
        let socket = TcpStream::connect(&addresses[..]).await?;
        prepare(&socket)?;
        if !url.uses_tls() {
            return Ok(Box::new(socket));
        }
        let Some(tls) = &self.tls else {
            return Err(invalid(format!("{url} needs a certificate for peers")));
        };
        let stream = tls.connector().connect(url.server_name()?, socket).await?;
        let session = stream.get_ref().1;
        let certificate = session.peer_certificates().and_then(<[_]>::first);
        if !certificate.is_some_and(|certificate| tls.is_allowed(certificate)) {
            return Err(invalid(format!("the name in the certificate of {url} is not allowed")));
        }
        Ok(Box::new(stream))
    }
}

/// A connection after the first part of the handshake.
pub(crate) struct Accepted {
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
    pub(crate) hello: Hello,
    /// The certificate of the other side; `None` without TLS.
    pub(crate) certificate: Option<CertificateDer<'static>>,
}

/// Reads who connects.
pub(crate) async fn accept(
    socket: TcpStream,
    tls: Option<&PeerTls>,
    timeouts: &Timeouts,
) -> io::Result<Accepted> {
    let accepted = timeout(timeouts.connect, accept_now(socket, tls, timeouts.silence)).await;
    accepted.unwrap_or_else(|_| Err(timed_out()))
}

async fn accept_now(
    socket: TcpStream,
    tls: Option<&PeerTls>,
    silence: Duration,
) -> io::Result<Accepted> {
    prepare(&socket)?;
    let (io, certificate): (Box<dyn Io>, _) = match tls {
        None => (Box::new(socket), None),
        Some(tls) => {
            let stream = tls.acceptor().accept(socket).await?;
            let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
            let certificate = chain.first().cloned().map(CertificateDer::into_owned);
            (Box::new(stream), Some(certificate.ok_or_else(|| invalid("no certificate"))?))
        }
    };
    let (reader, writer) = split(io);
    let mut reader = FrameReader::new(reader, silence);
    if reader.bytes(PREFACE.len()).await? != PREFACE[..] {
        return Err(invalid("not a member, or one of a version that is not supported"));
    }
    let hello = match reader.next(MAX_BYTES).await? {
        Some(frame) if frame.kind == Kind::Hello => Hello::decode(frame.body)?,
        _ => return Err(invalid("no handshake")),
    };
    Ok(Accepted { reader, writer, hello, certificate })
}

fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    if socket.peer_addr()?.ip().to_canonical().is_loopback() {
        sockets::disable_pacing(socket);
    }
    Ok(())
}

fn timed_out() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the handshake took too long")
}
