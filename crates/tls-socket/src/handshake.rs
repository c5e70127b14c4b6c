//! The handshake of both sides.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use rustls_pki_types::ServerName;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio_rustls::rustls::{ClientConfig, ServerConfig};

use crate::side::{ClientSide, ServerSide, Side};
use crate::socket::{TlsSocket, invalid};

/// Bytes of a handshake that are read at once.
const READ_BYTES: usize = 4 << 10;
/// Bytes that a peer may send without completing a message of the handshake.
const MAX_INCOMPLETE: usize = 128 << 10;

impl TlsSocket<ServerSide> {
    /// Does the server's side of a handshake.
    ///
    /// # Errors
    /// If the socket fails or ends, or the handshake is refused by either side.
    pub async fn accept(socket: TcpStream, config: Arc<ServerConfig>) -> io::Result<Self> {
        let side = ServerSide::new(config).map_err(invalid)?;
        TlsSocket::new(socket, side).handshake().await
    }
}

impl TlsSocket<ClientSide> {
    /// Does the client's side of a handshake with the server of this name.
    ///
    /// # Errors
    /// If the socket fails or ends, or the handshake is refused by either side.
    pub async fn connect(
        socket: TcpStream,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> io::Result<Self> {
        let side = ClientSide::new(config, name).map_err(invalid)?;
        TlsSocket::new(socket, side).handshake().await
    }
}

impl<S: Side> TlsSocket<S> {
    async fn handshake(mut self) -> io::Result<Self> {
        let mut received = Vec::new();
        loop {
            let mut plaintext = std::mem::take(&mut self.plaintext);
            let opened = self.open(&mut received, &mut |bytes| plaintext.extend_from_slice(bytes));
            self.plaintext = plaintext;
            received.drain(..opened?);
            poll_fn(|cx| self.poll_flush(cx)).await?;
            if !self.session().is_handshaking() {
                self.keep(&received)?;
                return Ok(self);
            }
            if self.peer_closed {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if received.len() > MAX_INCOMPLETE {
                return Err(invalid("message of the TLS handshake too large"));
            }
            received.reserve(READ_BYTES);
            if self.socket.read_buf(&mut received).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}
