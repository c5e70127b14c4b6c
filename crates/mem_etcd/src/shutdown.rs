//! The end, asked for by a signal.

use tokio::signal::unix::{SignalKind, signal};

/// Returns when the process is asked to end (SIGTERM or SIGINT).
pub async fn requested() -> std::io::Result<&'static str> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    })
}
