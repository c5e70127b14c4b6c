//! Waits until a watch may end early.

use std::pin::Pin;
use std::task::Context;

use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::forward::watch::{RETRY, WatchEnd};

/// Ends a watch after its connection was told to move.
pub struct EarlyEnd {
    moved: Pin<Box<WaitForCancellationFutureOwned>>,
    is_moved: bool,
    retry: Option<Pin<Box<Sleep>>>,
}

impl EarlyEnd {
    /// For a watch whose connection is told to move by `moved`.
    pub fn new(moved: CancellationToken) -> EarlyEnd {
        EarlyEnd { moved: Box::pin(moved.cancelled_owned()), is_moved: false, retry: None }
    }

    /// Whether `watch` ends now. Otherwise the task is woken when it may.
    pub fn poll(&mut self, watch: &WatchEnd, cx: &mut Context<'_>) -> bool {
        if !self.is_moved {
            self.is_moved = self.moved.as_mut().poll(cx).is_ready();
        }
        if !self.is_moved {
            return false;
        }
        if watch.may_end() {
            return true;
        }
        let retry = self.retry.get_or_insert_with(|| Box::pin(sleep_until(next_look())));
        while retry.as_mut().poll(cx).is_ready() {
            retry.as_mut().reset(next_look());
        }
        false
    }
}

fn next_look() -> Instant {
    Instant::now() + RETRY
}
