//! Bounds the memory of answers that wait for slow clients.
//!
//! HTTP/2's windows bound what one connection holds. This is the bound over all of them: beyond it,
//! the gateway does not read from the API servers' connections of those clients that hold more than
//! an equal share. TCP then stops the API server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::task::Waker;

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

/// A connection publishes what it holds when that has changed by this many bytes, so that small
/// answers share no memory between the cores.
const STEP: i64 = 16 << 10;
/// A client may always hold this many bytes, one frame, or it would not progress.
const MIN_SHARE: i64 = STEP;

/// What all connections hold together.
pub struct Buffers {
    max: AtomicI64,
    held: AtomicI64,
    /// Connections that hold something.
    holders: AtomicI64,
    stopped: Mutex<Vec<Waker>>,
    /// Times a connection was stopped.
    stops: AtomicU64,
    /// Connections that are stopped.
    stopped_now: AtomicUsize,
}

/// The state of the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferStatus {
    /// Bytes that wait for clients.
    pub held: u64,
    /// Connections to API servers that are not read.
    pub stopped: usize,
    /// How often a connection was stopped.
    pub stops: u64,
}

/// What one connection to an API server holds: bytes of answers that were read from it and were not
/// passed on.
pub struct Held {
    buffers: Arc<Buffers>,
    bytes: AtomicI64,
    published: AtomicI64,
    /// Bodies that may have more bytes. Without any, nothing is held, which corrects what is lost
    /// with a cancelled answer.
    filled: AtomicUsize,
    /// Whether reading is stopped.
    stopped: AtomicBool,
    /// Whether the connection has become a tunnel, whose bytes are not buffered.
    is_tunnel: AtomicBool,
    reader: AtomicWaker,
}

/// One body of a connection.
pub struct HeldBody {
    held: Arc<Held>,
    is_filled: bool,
}

impl Buffers {
    /// A bound of `max` bytes.
    pub fn new(max: u64) -> Buffers {
        let buffers = Buffers {
            max: AtomicI64::new(0),
            held: AtomicI64::new(0),
            holders: AtomicI64::new(0),
            stopped: Mutex::default(),
            stops: AtomicU64::new(0),
            stopped_now: AtomicUsize::new(0),
        };
        buffers.configure(max);
        buffers
    }

    /// Replaces the bound.
    pub fn configure(&self, max: u64) {
        self.max.store(i64::try_from(max).unwrap_or(i64::MAX), Relaxed);
        self.wake_stopped();
    }

    /// The current state.
    pub fn status(&self) -> BufferStatus {
        BufferStatus {
            held: self.held.load(Relaxed).try_into().unwrap_or_default(),
            stopped: self.stopped_now.load(Relaxed),
            stops: self.stops.load(Relaxed),
        }
    }

    fn is_over(&self) -> bool {
        self.held.load(Relaxed) > self.max.load(Relaxed)
    }

    fn share(&self) -> i64 {
        (self.max.load(Relaxed) / self.holders.load(Relaxed).max(1)).max(MIN_SHARE)
    }

    fn change(&self, before: i64, after: i64) {
        self.held.fetch_add(after - before, Relaxed);
        self.holders.fetch_add(i64::from(after > 0) - i64::from(before > 0), Relaxed);
        if after < before && self.stopped_now.load(Relaxed) > 0 && !self.is_over() {
            self.wake_stopped();
        }
    }

    fn wake_stopped(&self) {
        let wakers = std::mem::take(&mut *self.stopped.lock());
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Held {
    /// A connection that holds nothing.
    pub fn new(buffers: Arc<Buffers>) -> Arc<Held> {
        Arc::new(Held {
            buffers,
            bytes: AtomicI64::new(0),
            published: AtomicI64::new(0),
            filled: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
            is_tunnel: AtomicBool::new(false),
            reader: AtomicWaker::new(),
        })
    }

    /// Whether the connection may be read. Otherwise `waker` is woken when it may.
    pub fn may_read(&self, waker: &Waker) -> bool {
        if self.is_within_share() {
            self.set_stopped(false);
            return true;
        }
        self.reader.register(waker);
        self.buffers.stopped.lock().push(waker.clone());
        self.set_stopped(true);
        // What was passed on since the first look has woken nobody.
        if self.is_within_share() {
            self.set_stopped(false);
            return true;
        }
        false
    }

    fn is_within_share(&self) -> bool {
        !self.buffers.is_over() || self.bytes.load(Relaxed) <= self.buffers.share()
    }

    fn set_stopped(&self, stopped: bool) {
        if self.stopped.load(Relaxed) == stopped || self.stopped.swap(stopped, Relaxed) == stopped {
            return;
        }
        if stopped {
            self.buffers.stops.fetch_add(1, Relaxed);
            self.buffers.stopped_now.fetch_add(1, Relaxed);
        } else {
            self.buffers.stopped_now.fetch_sub(1, Relaxed);
        }
    }

    /// Notes that the connection has become a tunnel. It is not counted any more.
    pub fn becomes_tunnel(&self) {
        self.is_tunnel.store(true, Relaxed);
        self.emptied();
    }

    /// Notes how many bytes the connection holds, for a caller that counts them itself.
    pub fn set(&self, bytes: usize) {
        let bytes = bytes as i64;
        if self.bytes.load(Relaxed) != bytes {
            self.bytes.store(bytes, Relaxed);
            self.publish(if bytes == 0 { 0 } else { STEP });
        }
    }

    /// Counts bytes of answers that were read.
    pub fn read(&self, bytes: usize) {
        if self.is_tunnel.load(Relaxed) {
            return;
        }
        self.bytes.fetch_add(bytes as i64, Relaxed);
        self.publish(STEP);
    }

    fn passed(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes as i64, Relaxed);
        self.publish(STEP);
        self.wake_reader();
    }

    fn emptied(&self) {
        self.bytes.store(0, Relaxed);
        self.publish(0);
        self.wake_reader();
    }

    fn wake_reader(&self) {
        if self.stopped.load(Relaxed) && self.is_within_share() {
            self.reader.wake();
        }
    }

    fn publish(&self, step: i64) {
        let held = self.bytes.load(Relaxed).max(0);
        if (held - self.published.load(Relaxed)).abs() > step {
            let before = self.published.swap(held, Relaxed);
            self.buffers.change(before, held);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.set_stopped(false);
        self.bytes.store(0, Relaxed);
        self.publish(0);
    }
}

impl HeldBody {
    /// A body whose bytes may have been read already.
    pub fn new(held: Arc<Held>) -> HeldBody {
        held.filled.fetch_add(1, Relaxed);
        HeldBody { held, is_filled: true }
    }

    /// Notes that bytes of the body were passed on. There may be more.
    pub fn passed(&mut self, bytes: usize) {
        if !self.is_filled {
            self.is_filled = true;
            self.held.filled.fetch_add(1, Relaxed);
        }
        self.held.passed(bytes);
    }

    /// Notes that all bytes that were read of this body were passed on.
    pub fn is_empty(&mut self) {
        if self.is_filled {
            self.is_filled = false;
            if self.held.filled.fetch_sub(1, Relaxed) == 1 {
                self.held.emptied();
            }
        }
    }
}

impl Drop for HeldBody {
    fn drop(&mut self) {
        self.is_empty();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn filled(buffers: &Arc<Buffers>, bytes: u64) -> (Arc<Held>, HeldBody) {
        let held = Held::new(buffers.clone());
        held.read(bytes as usize);
        (held.clone(), HeldBody::new(held))
    }

    #[test]
    fn beyond_the_bound_only_the_largest_holders_stop() {
        let buffers = Arc::new(Buffers::new(4 * MIB));
        let waker = Waker::noop();
        let (large, mut body) = filled(&buffers, 3 * MIB);
        assert!(large.may_read(waker));
        let (small, _small_body) = filled(&buffers, 2 * MIB);
        let (other, _other_body) = filled(&buffers, MIB / 2);
        assert_eq!(buffers.status().held, 5 * MIB + MIB / 2);
        assert!(!large.may_read(waker) && !small.may_read(waker) && other.may_read(waker));
        assert_eq!(buffers.status().stopped, 2);
        body.passed(2 * MIB as usize);
        assert!(large.may_read(waker) && small.may_read(waker), "within the bound");
        let status = buffers.status();
        assert_eq!((status.stopped, status.stops), (0, 2));
    }

    #[test]
    fn whoever_is_stopped_is_woken() {
        let buffers = Arc::new(Buffers::new(MIB));
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let (first, mut body) = filled(&buffers, 2 * MIB);
        let (second, other) = filled(&buffers, 2 * MIB);
        assert!(!first.may_read(&waker) && !second.may_read(&waker));
        body.passed((2 * MIB - MIB / 4) as usize);
        assert_eq!(count.0.load(Relaxed), 1, "the first one holds less than its share");
        drop(other);
        assert_eq!(buffers.status().held, MIB / 4);
        assert!(count.0.load(Relaxed) >= 2, "nobody is over the bound");
        drop((first, second, body));
        assert_eq!(buffers.status(), BufferStatus { held: 0, stopped: 0, stops: 2 });
    }

    #[test]
    fn a_cancelled_answer_leaves_nothing_behind() {
        let buffers = Arc::new(Buffers::new(MIB));
        let (held, mut body) = filled(&buffers, MIB);
        let cancelled = HeldBody::new(held.clone());
        drop(cancelled);
        assert_eq!(buffers.status().held, MIB, "another body may hold them");
        body.is_empty();
        assert_eq!(buffers.status().held, 0);
        body.passed(0);
        held.read(MIB as usize);
        body.passed(MIB as usize);
        assert_eq!(buffers.status().held, 0);
        held.becomes_tunnel();
        held.read(MIB as usize);
        assert_eq!(buffers.status().held, 0);
    }
}
