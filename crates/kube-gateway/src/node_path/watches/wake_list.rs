//! Wakes tasks of one thread together.
//!
//! To wake a task of another thread takes a system call, for each task. An event of a Service concerns all kubelets, and
//! their wakers are used while the cache is locked. So the wakers are put into a list for each thread, and a task
//! of this thread uses them, which takes no system call. Only the first one in the list has to wake that task.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

/// Tasks of one thread that are to be woken.
#[derive(Default)]
pub struct WakeList {
    wakers: Mutex<Vec<Waker>>,
    task: AtomicWaker,
}

impl WakeList {
    /// Wakes a task soon.
    pub fn add(&self, waker: Waker) {
        let mut wakers = self.wakers.lock();
        wakers.push(waker);
        let is_first = wakers.len() == 1;
        drop(wakers);
        if is_first {
            self.task.wake();
        }
    }

    /// Wakes the tasks of this thread until the process ends.
    pub async fn run_forever(self: Arc<Self>) {
        let mut taken = Vec::new();
        poll_fn(|cx| self.wake(cx, &mut taken)).await
    }

    fn wake(&self, cx: &Context<'_>, taken: &mut Vec<Waker>) -> Poll<()> {
        // What is added from now on wakes this task again.
        self.task.register(cx.waker());
        std::mem::swap(&mut *self.wakers.lock(), taken);
        taken.drain(..).for_each(Waker::wake);
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn all_tasks_are_woken_by_one_of_their_thread() {
        let list = Arc::new(WakeList::default());
        let (task, clients) = (Arc::<Count>::default(), Arc::<Count>::default());
        let waker = Waker::from(task.clone());
        let mut running = Box::pin(list.clone().run_forever());
        let mut run = || {
            assert!(running.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        };
        run();
        for round in 1..3 {
            (0..100).for_each(|_| list.add(clients.clone().into()));
            assert_eq!((task.0.load(Relaxed), clients.0.load(Relaxed)), (round, 100 * (round - 1)));
            run();
            assert_eq!((task.0.load(Relaxed), clients.0.load(Relaxed)), (round, 100 * round));
        }
    }

    #[test]
    fn what_was_added_before_the_task_ran_is_not_lost() {
        let (list, client) = (Arc::new(WakeList::default()), Arc::<Count>::default());
        list.add(client.clone().into());
        let mut running = Box::pin(list.run_forever());
        assert!(running.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(client.0.load(Relaxed), 1);
    }
}
