//! Shutdown signals.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// Installs handlers for SIGTERM and SIGINT. The returned future waits for one of these
/// signals and returns its name.
pub fn install_signal_handlers() -> io::Result<impl Future<Output = &'static str>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    })
}
