//! A link to a server, which dials again when its connection ends.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use anyhow::Result;
use rand::RngExt as _;

use super::answer::{Failure, Receiver};
use super::endpoint::Endpoint;
use super::exchange::{Limit, Queued};
use super::request::Request;
use super::session::{End, Session, Source};

/// The delay after the first dial that failed. It doubles with each further one.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// The longest delay.
const LAST_DELAY: Duration = Duration::from_secs(10);

/// After a connection that took no longer, there is a delay before the next one, so that a server that
/// closes every connection is not overrun.
const SHORT: Duration = Duration::from_secs(1);

/// Learns about the connections of links.
pub trait Observer {
    /// A connection was opened.
    fn opened(&self);

    /// A connection ended, with an error or as agreed.
    fn closed(&self, result: &Result<()>);

    /// A connection could not be opened.
    fn dial_failed(&self, error: &anyhow::Error);
}

/// A connection to a server, and the requests that wait for it.
pub struct Link<T> {
    endpoint: Rc<Endpoint>,
    queue: RefCell<VecDeque<Queued<T>>>,
    /// Watches that were cancelled and may be open.
    cancelled: RefCell<Vec<T>>,
    /// The task of the link, and those that finish earlier connections.
    wakers: RefCell<Vec<Waker>>,
    /// Whether the task of the link runs now. Then it is woken afterwards, and only once.
    is_running: Cell<bool>,
    was_woken: Cell<bool>,
    is_closed: Cell<bool>,
}

impl<T: Copy + PartialEq + 'static> Link<T> {
    /// Creates a link. It does nothing until [`run`](Self::run) is polled.
    pub fn new(endpoint: Rc<Endpoint>) -> Rc<Link<T>> {
        Rc::new(Link {
            endpoint,
            queue: RefCell::default(),
            cancelled: RefCell::default(),
            wakers: RefCell::default(),
            is_running: Cell::default(),
            was_woken: Cell::default(),
            is_closed: Cell::default(),
        })
    }

    /// Sends a request as soon as possible. The answer may take as long as `limit` says.
    pub fn send(&self, tag: T, request: Request, limit: Limit) {
        self.put(Queued { tag, request, since: Instant::now(), limit });
    }

    /// Starts a watch as soon as possible.
    pub fn watch(&self, tag: T, request: Request) {
        self.send(tag, request, Limit::Watch);
    }

    /// Ends a watch. The receiver learns of the end. The tag must not be used again.
    pub fn cancel(&self, tag: T) {
        self.cancelled.borrow_mut().push(tag);
        self.wake();
    }

    /// Closes the connection. Requests without an answer fail, also those that wait.
    pub fn close(&self) {
        self.is_closed.set(true);
        self.wake();
    }

    fn put(&self, queued: Queued<T>) {
        self.queue.borrow_mut().push_back(queued);
        self.wake();
    }

    fn wake(&self) {
        if self.is_running.get() {
            return self.was_woken.set(true);
        }
        let wakers = std::mem::take(&mut *self.wakers.borrow_mut());
        wakers.into_iter().for_each(Waker::wake);
    }

    fn register(&self, waker: &Waker) {
        let mut wakers = self.wakers.borrow_mut();
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }

    /// Runs the link until it is closed.
    pub async fn run(self: Rc<Self>, receiver: Rc<dyn Receiver<T>>, observer: Rc<dyn Observer>) {
        let mut failures = 0;
        while self.wait_for_request().await {
            match self.endpoint.connect().await {
                Ok(channel) => {
                    failures = 0;
                    observer.opened();
                    let start = Instant::now();
                    self.serve(Session::new(channel), &receiver, &observer).await;
                    if start.elapsed() < SHORT {
                        self.pause(failures).await;
                    }
                }
                Err(error) => {
                    observer.dial_failed(&error);
                    self.fail_queue(&*receiver);
                    self.pause(failures).await;
                    failures += 1;
                }
            }
        }
        self.fail_queue(&*receiver);
    }

    /// Waits until there is a request to be sent. Returns false if the link was closed.
    async fn wait_for_request(&self) -> bool {
        poll_fn(|cx| {
            if self.is_closed.get() {
                return Poll::Ready(false);
            }
            if !self.queue.borrow().is_empty() {
                return Poll::Ready(true);
            }
            self.register(cx.waker());
            Poll::Pending
        })
        .await
    }

    async fn serve(
        self: &Rc<Self>,
        mut session: Session<T>,
        receiver: &Rc<dyn Receiver<T>>,
        observer: &Rc<dyn Observer>,
    ) {
        let end = poll_fn(|cx| {
            self.is_running.set(true);
            let end = session.poll(cx, &**self, &self.endpoint.fields, &**receiver);
            self.is_running.set(false);
            if self.was_woken.take() {
                cx.waker().wake_by_ref();
            }
            if end.is_pending() {
                self.register(cx.waker());
            }
            end
        })
        .await;
        match end {
            End::Closed(result) => observer.closed(&result),
            End::Leaving => {
                let rest = self.clone().finish(session, receiver.clone(), observer.clone());
                tokio::task::spawn_local(rest);
            }
        }
    }

    /// Finishes the requests of a connection that takes no new ones.
    async fn finish(
        self: Rc<Self>,
        mut session: Session<T>,
        receiver: Rc<dyn Receiver<T>>,
        observer: Rc<dyn Observer>,
    ) {
        let end = poll_fn(|cx| {
            let end = session.poll_rest(cx, &*self, &*receiver);
            if end.is_pending() {
                self.register(cx.waker());
            }
            end
        });
        if let End::Closed(result) = end.await {
            observer.closed(&result);
        }
    }

    /// Reports all requests that wait as failed, as client-go does when it cannot dial.
    fn fail_queue(&self, receiver: &dyn Receiver<T>) {
        // The receiver may put further requests into the queue.
        let queue = std::mem::take(&mut *self.queue.borrow_mut());
        queue.into_iter().for_each(|queued| queued.fail(Failure::Connection, receiver));
    }

    /// Waits before the next dial. Requests that are made in the meantime wait too.
    async fn pause(&self, failures: u32) {
        let delay = FIRST_DELAY.saturating_mul(1 << failures.min(16)).min(LAST_DELAY);
        let jitter = rand::rng().random_range(0.5..1.0);
        tokio::time::sleep(delay.mul_f64(jitter)).await;
    }
}

impl<T: Copy + PartialEq> Source<T> for Link<T> {
    fn next(&self, now: Instant) -> Option<Queued<T>> {
        let mut queue = self.queue.borrow_mut();
        match queue.front()?.is_congested(now) {
            true => queue.pop_back(),
            false => queue.pop_front(),
        }
    }

    fn take_cancelled(&self) -> Vec<T> {
        std::mem::take(&mut *self.cancelled.borrow_mut())
    }

    fn remove(&self, tag: T) -> Option<Queued<T>> {
        let mut queue = self.queue.borrow_mut();
        let place = queue.iter().position(|queued| queued.tag == tag)?;
        queue.remove(place)
    }

    fn is_closed(&self) -> bool {
        self.is_closed.get()
    }
}
