//! Acknowledgements of a stream that this member receives: what the member has taken, and that this
//! side is alive.

use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::config::Timeouts;
use crate::connection::Writer;
use crate::frame::{Kind, numbers, put_numbers, write_all};
use crate::window::ReceiveWindow;

/// How long an acknowledgement waits for further ones, while the sender has room in the window.
const DELAY: Duration = Duration::from_millis(20);

/// The last ping of the sender.
#[derive(Default)]
pub(crate) struct LastPing {
    number: AtomicU64,
    changed: Notify,
}

impl LastPing {
    /// Notes a ping, which is answered at once.
    pub(crate) fn set(&self, body: Bytes) -> io::Result<()> {
        let [number] = numbers(body)?;
        self.number.store(number, Ordering::Relaxed);
        self.changed.notify_one();
        Ok(())
    }
}

/// Sends acknowledgements until the stream fails.
pub(crate) async fn run(
    writer: &mut Writer,
    window: &ReceiveWindow,
    last_ping: &LastPing,
    timeouts: &Timeouts,
) -> io::Result<Infallible> {
    let mut out = Vec::new();
    loop {
        tokio::select! {
            () = window.wait(DELAY) => {}
            () = last_ping.changed.notified() => {}
            () = sleep(timeouts.ping_interval) => {}
        }
        let numbers = [window.acknowledge(), last_ping.number.load(Ordering::Relaxed)];
        put_numbers(Kind::Acknowledgement, &numbers, &mut out);
        write_all(writer, &out, timeouts.silence).await?;
        out.clear();
    }
}
