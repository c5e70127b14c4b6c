//! The two sides of a TLS session, which rustls has different types for.

use std::sync::Arc;

use rustls_pki_types::ServerName;
use tokio_rustls::rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use tokio_rustls::rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use tokio_rustls::rustls::unbuffered::UnbufferedStatus;
use tokio_rustls::rustls::{ClientConfig, CommonState, Error, ServerConfig};

/// A side of a TLS session.
pub trait Side: Unpin + Send {
    /// What rustls keeps for this side.
    type Data;

    /// Handles received records until the caller has something to do.
    fn process<'c, 'i>(&'c mut self, records: &'i mut [u8])
    -> UnbufferedStatus<'c, 'i, Self::Data>;

    /// What both sides have in common: certificates of the peer, the negotiated protocol.
    fn common(&self) -> &CommonState;
}

/// The side of a server.
pub struct ServerSide(UnbufferedServerConnection);

/// The side of a client.
pub struct ClientSide(UnbufferedClientConnection);

impl ServerSide {
    pub(crate) fn new(config: Arc<ServerConfig>) -> Result<ServerSide, Error> {
        UnbufferedServerConnection::new(config).map(ServerSide)
    }
}

impl ClientSide {
    pub(crate) fn new(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<ClientSide, Error> {
        UnbufferedClientConnection::new(config, name).map(ClientSide)
    }
}

impl Side for ServerSide {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(
        &'c mut self,
        records: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.0.process_tls_records(records)
    }

    fn common(&self) -> &CommonState {
        &self.0
    }
}

impl Side for ClientSide {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(
        &'c mut self,
        records: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.0.process_tls_records(records)
    }

    fn common(&self) -> &CommonState {
        &self.0
    }
}
