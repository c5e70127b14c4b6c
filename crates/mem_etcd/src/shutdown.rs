//! Shutdown signals.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// Installs handlers for SIGTERM and SIGINT. The returned future waits for one of them
/// and returns its name.
pub fn requested() -> io::Result<impl Future<Output = &'static str>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    })
}
