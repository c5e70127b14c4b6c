//! A minimal gRPC client for etcd's API.
//!
//! [`Connection`] makes calls of all kinds from any thread, with the crate `h2`. [`unary`] makes many small calls of one
//! thread for less CPU, with the crate `http2`.

#![warn(missing_docs)]

mod dial;
pub mod unary;

use std::pin::Pin;
use std::sync::Arc;

use anyhow::Result;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::RecvStream;
use h2::client::SendRequest;
use http::{HeaderMap, Request, Uri};
use prost::Message;

use self::dial::{Io, dial};

pub use self::dial::TlsFiles;
/// Sends the further requests of a call, each with its [prefix](with_prefix).
pub use h2::SendStream;

/// Flow-control window of a stream for data from the server.
const STREAM_WINDOW_BYTES: u32 = 16 << 20;
/// Flow-control window of a connection for data from the server.
const CONNECTION_WINDOW_BYTES: u32 = 64 << 20;

/// The reason why an operation failed: `code CODE: MESSAGE` for a gRPC status, otherwise the
/// description of another error.
#[derive(Debug)]
pub struct Failure(pub String);

impl From<h2::Error> for Failure {
    fn from(error: h2::Error) -> Self {
        Failure(format!("connection: {error}"))
    }
}

/// An HTTP/2 connection. Clones share the connection.
#[derive(Clone)]
pub struct Connection {
    send: SendRequest<Bytes>,
    /// The URL of the server without a path.
    base_url: Arc<str>,
    /// What is sent with each call.
    metadata: Metadata,
}

/// Names and values that are sent with a call, in lower case.
pub type Metadata = &'static [(&'static str, &'static str)];

/// Lets a member of etcd refuse a call, and end a watch, while it has no leader. As `WithRequireLeader` in etcd's client.
pub const REQUIRE_LEADER: Metadata = &[("hasleader", "true")];

/// Does the input and output of a connection. The caller must run it. It ends with the connection;
/// then every call on it fails and returns an error.
pub type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Connects to an endpoint, a URL or a host with a port.
///
/// # Errors
/// If the endpoint is not valid or does not answer, or a file cannot be read.
pub async fn connect(endpoint: &str, files: &TlsFiles) -> Result<(Connection, Driver)> {
    let (io, target) = dial(endpoint, files).await?;
    handshake(io, &target.base_url()).await
}

/// Starts HTTP/2 on a connection.
async fn handshake(io: Box<dyn Io>, base_url: &str) -> Result<(Connection, Driver)> {
    let (send, connection) = h2::client::Builder::new()
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .handshake(io)
        .await?;
    let driver = Box::pin(async move { connection.await.unwrap_or_default() });
    Ok((Connection { send, base_url: base_url.into(), metadata: &[] }, driver))
}

impl Connection {
    /// The same connection, whose calls are sent with metadata.
    #[must_use]
    pub fn with_metadata(&self, metadata: Metadata) -> Connection {
        Connection { metadata, ..self.clone() }
    }

    /// Makes a unary call and returns the response.
    ///
    /// # Errors
    /// If the connection fails, or the status of the call is not OK.
    pub async fn call<R: Message + Default>(
        &self,
        path: &str,
        request: &impl Message,
    ) -> Result<R, Failure> {
        let mut responses = self.start(path, request, true).await?.1;
        let response = responses.next().await?;
        let response = response.ok_or_else(|| Failure("the response is missing".into()))?;
        responses.finish().await?;
        Ok(response)
    }

    /// Starts a call with its first request. `is_last` means that the client sends no further
    /// requests. Returns after the response headers have arrived.
    ///
    /// # Errors
    /// As [`Connection::call`].
    pub async fn start<R: Message + Default>(
        &self,
        path: &str,
        request: &impl Message,
        is_last: bool,
    ) -> Result<(SendStream<Bytes>, Responses<R>), Failure> {
        let uri: Uri =
            format!("{}{path}", self.base_url).parse().expect("base URL and path are valid");
        let mut head =
            Request::post(uri).header("content-type", "application/grpc").header("te", "trailers");
        for (name, value) in self.metadata {
            head = head.header(*name, *value);
        }
        let head = head.body(()).expect("the header fields are valid");
        let mut send = self.send.clone().ready().await?;
        let (response, mut requests) = send.send_request(head, false)?;
        requests.send_data(with_prefix(request), is_last)?;
        let response = response.await?;
        check_status(response.headers())?;
        Ok((requests, Responses::new(response.into_body())))
    }
}

/// The responses of a call.
pub struct Responses<R> {
    body: RecvStream,
    /// Received data that is not decoded yet.
    buffer: BytesMut,
    _response: std::marker::PhantomData<R>,
}

impl<R: Message + Default> Responses<R> {
    fn new(body: RecvStream) -> Self {
        Responses { body, buffer: BytesMut::new(), _response: std::marker::PhantomData }
    }

    /// Waits for the next response. Returns `None` at the end of a successful call.
    ///
    /// # Errors
    /// As [`Connection::call`].
    pub async fn next(&mut self) -> Result<Option<R>, Failure> {
        loop {
            if let Some(message) = take_message(&mut self.buffer) {
                let decoded = R::decode(message);
                return decoded
                    .map(Some)
                    .map_err(|error| Failure(format!("decode the response: {error}")));
            }
            match self.body.data().await {
                Some(data) => {
                    let data = data?;
                    self.body.flow_control().release_capacity(data.len())?;
                    self.buffer.extend_from_slice(&data);
                }
                None => {
                    let trailers = self.body.trailers().await?;
                    check_status(&trailers.unwrap_or_default())?;
                    return Ok(None);
                }
            }
        }
    }

    /// Reads the call to its end, to check the status in the trailers.
    async fn finish(&mut self) -> Result<(), Failure> {
        while self.next().await?.is_some() {}
        Ok(())
    }
}

/// Encodes a message with gRPC's prefix of 5 bytes: the compression flag and the length.
pub fn with_prefix(message: &impl Message) -> Bytes {
    let len = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(5 + len);
    bytes.put_u8(0);
    bytes.put_u32(len as u32);
    message.encode(&mut bytes).expect("the buffer has enough capacity");
    bytes.freeze()
}

/// Removes the first message and its prefix from `buffer`. Returns `None` if the message is
/// incomplete.
fn take_message(buffer: &mut BytesMut) -> Option<Bytes> {
    let prefix = buffer.first_chunk::<5>()?;
    let len = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
    if buffer.len() < 5 + len {
        buffer.reserve(5 + len - buffer.len());
        return None;
    }
    buffer.advance(5);
    Some(buffer.split_to(len).freeze())
}

/// Fails if headers or trailers contain a gRPC status other than OK.
fn check_status(headers: &HeaderMap) -> Result<(), Failure> {
    match headers.get("grpc-status").map(|status| status.as_bytes()) {
        None | Some(b"0") => Ok(()),
        Some(code) => {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let message = headers.get("grpc-message").map_or(String::new(), |m| text(m.as_bytes()));
            Err(Failure(format!("code {}: {message}", text(code))))
        }
    }
}
