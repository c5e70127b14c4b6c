//! The end, asked for by a signal.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// From the call on, waits for the process to be asked to end (SIGTERM or
/// SIGINT); returns the signal's name.
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
