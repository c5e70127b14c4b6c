//! Flow control: a sender has at most a window of bytes on their way that the receiver has not
//! taken. A larger frame is sent alone. A frame counts [`FRAME_BYTES`] more than its size, so that
//! many small messages, which need more memory than bytes on the wire, are bounded too.
//!
//! So a receiver always reads its sockets, even if its member is busy: what it has to keep is
//! bounded, and it notices at once when a sender is silent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// What a frame counts in addition to its size, in bytes. Both sides use it, so it never changes.
const FRAME_BYTES: u64 = 128;

/// A violation of the flow control by the other side.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Violation {
    /// The sender ignores the window.
    #[error("more bytes than the window allows")]
    Exceeded,
    /// The receiver acknowledges what was not sent, or takes an acknowledgement back.
    #[error("an acknowledgement of bytes that were not sent")]
    Acknowledgement,
}

/// The window as the sender sees it.
pub(crate) struct SendWindow {
    window: u64,
    sent: u64,
    acknowledged: u64,
}

impl SendWindow {
    pub(crate) fn new(window: u32) -> SendWindow {
        SendWindow { window: window.into(), sent: 0, acknowledged: 0 }
    }

    /// Notes that a frame of this size in bytes is sent. Returns `false` if it has to wait.
    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        let bytes = bytes as u64 + FRAME_BYTES;
        let unacknowledged = self.sent - self.acknowledged;
        let fits = unacknowledged == 0 || unacknowledged + bytes <= self.window;
        if fits {
            self.sent += bytes;
        }
        fits
    }

    /// Notes that the receiver has taken `total` bytes since the start, as they are counted here.
    pub(crate) fn acknowledge(&mut self, total: u64) -> Result<(), Violation> {
        if total < self.acknowledged || total > self.sent {
            return Err(Violation::Acknowledgement);
        }
        self.acknowledged = total;
        Ok(())
    }
}

/// The window as the receiver sees it.
#[derive(Debug)]
pub(crate) struct ReceiveWindow {
    window: u64,
    /// Bytes that were received.
    received: AtomicU64,
    /// Bytes that the member has taken.
    taken: AtomicU64,
    /// Bytes that are acknowledged.
    acknowledged: AtomicU64,
    /// Signals that bytes were taken.
    changed: Notify,
    /// Signals that the sender may be waiting for an acknowledgement.
    urgent: Notify,
}

/// Bytes that were received and not taken yet. Dropping it takes them.
#[derive(Debug)]
pub(crate) struct Held {
    window: Arc<ReceiveWindow>,
    bytes: u64,
}

impl ReceiveWindow {
    pub(crate) fn new(window: u32) -> Arc<ReceiveWindow> {
        Arc::new(ReceiveWindow {
            window: window.into(),
            received: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            acknowledged: AtomicU64::new(0),
            changed: Notify::new(),
            urgent: Notify::new(),
        })
    }

    /// Notes that a frame of this size in bytes was received.
    pub(crate) fn receive(self: &Arc<Self>, bytes: usize) -> Result<Held, Violation> {
        let bytes = bytes as u64 + FRAME_BYTES;
        let received = self.received.load(Ordering::Relaxed);
        // The sender knows of a part of what was taken, so its own rule is stricter.
        let held = received - self.taken.load(Ordering::Acquire);
        if held > 0 && held + bytes > self.window {
            return Err(Violation::Exceeded);
        }
        self.received.store(received + bytes, Ordering::Relaxed);
        Ok(Held { window: self.clone(), bytes })
    }

    /// Waits until bytes were taken, and then for `delay`, unless the sender may be waiting.
    pub(crate) async fn wait(&self, delay: std::time::Duration) {
        self.changed.notified().await;
        tokio::select! {
            () = self.urgent.notified() => {}
            () = tokio::time::sleep(delay) => {}
        }
    }

    /// Returns the number of bytes to acknowledge now.
    pub(crate) fn acknowledge(&self) -> u64 {
        let taken = self.taken.load(Ordering::Acquire);
        self.acknowledged.store(taken, Ordering::Relaxed);
        taken
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let window = &self.window;
        let taken = window.taken.fetch_add(self.bytes, Ordering::AcqRel) + self.bytes;
        if taken - window.acknowledged.load(Ordering::Relaxed).min(taken) >= window.window / 4 {
            window.urgent.notify_one();
        }
        window.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has room for two frames of 100 bytes together.
    const WINDOW: u32 = 100 + 2 * FRAME_BYTES as u32;

    #[test]
    fn a_sender_waits_for_the_receiver() {
        let mut window = SendWindow::new(WINDOW);
        assert!(window.take(60) && window.take(40));
        assert!(!window.take(0));
        assert_eq!(window.acknowledge(60 + FRAME_BYTES), Ok(()));
        assert!(window.take(60) && !window.take(0));
        let sent = 160 + 3 * FRAME_BYTES;
        assert_eq!(window.acknowledge(sent + 1), Err(Violation::Acknowledgement));
        assert_eq!(window.acknowledge(59), Err(Violation::Acknowledgement));
        assert_eq!(window.acknowledge(sent), Ok(()));
    }

    #[test]
    fn a_frame_that_is_larger_than_the_window_is_sent_alone() {
        let mut window = SendWindow::new(WINDOW);
        assert!(window.take(1) && !window.take(1000));
        assert_eq!(window.acknowledge(1 + FRAME_BYTES), Ok(()));
        assert!(window.take(1000) && !window.take(0));
    }

    #[test]
    fn a_receiver_refuses_more_than_the_window() {
        let window = ReceiveWindow::new(WINDOW);
        let first = window.receive(1000).unwrap();
        assert_eq!(window.receive(0).err(), Some(Violation::Exceeded));
        drop(first);
        assert_eq!(window.acknowledge(), 1000 + FRAME_BYTES);
        let _second = window.receive(60).unwrap();
        let _third = window.receive(40).unwrap();
        assert_eq!(window.receive(0).err(), Some(Violation::Exceeded));
        assert_eq!(window.acknowledge(), 1000 + FRAME_BYTES);
    }
}
