//! Opens connections to API servers.

use std::sync::Arc;

use anyhow::Result;
use tokio_util::sync::CancellationToken;

use super::shared::Shared;
use crate::upstream::{Place, Server};

/// Chooses an API server and opens a connection to it with `connect`, until one succeeds. A server
/// that cannot be reached counts as unready until the next probe. `moved` is cancelled when the
/// client must dial again.
///
/// # Errors
/// If no API server can be reached.
pub async fn dial<C, F: Future<Output = Result<C>>>(
    shared: &Shared,
    moved: &CancellationToken,
    connect: impl Fn(Arc<Server>) -> F,
) -> Result<(C, Arc<Place>)> {
    let mut failed = Vec::new();
    let mut last = anyhow::anyhow!("there is no API server");
    while let Some(server) = shared.pool.choose(&failed) {
        match connect(server.clone()).await {
            Ok(connection) => {
                return Ok((connection, Arc::new(Place::new(server, moved.clone()))));
            }
            Err(error) => {
                let address = &server.address;
                if server.set_ready(false) {
                    let error = format!("{error:#}");
                    tracing::warn!(server = address, error, "an API server cannot be reached");
                }
                last = error.context(address.clone());
                failed.push(server);
            }
        }
    }
    Err(last)
}
