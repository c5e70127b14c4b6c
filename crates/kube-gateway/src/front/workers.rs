//! The threads that serve clients.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Handle};

use crate::turns;

/// Threads with a runtime of their own. All tasks of a client's connection, and of its connection to
/// an API server, run on one thread: they wake each other without a system call, and their data
/// stays in the cache of one core. With a runtime that moves tasks between threads, a request costs
/// a quarter more CPU.
pub struct Workers {
    workers: Vec<Worker>,
}

struct Worker {
    runtime: Handle,
    connections: Arc<AtomicUsize>,
}

/// Counts a connection of a worker until it is dropped.
struct Counted(Arc<AtomicUsize>);

impl Workers {
    /// Starts one thread for each core.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start() -> Result<Workers> {
        let count = thread::available_parallelism().map_or(1, usize::from);
        let workers = (0..count).map(Worker::start).collect::<Result<_>>()?;
        Ok(Workers { workers })
    }

    /// The number of threads.
    pub fn count(&self) -> usize {
        self.workers.len()
    }

    /// Runs a future on each thread, made with the thread's number.
    pub fn on_each<F: Future<Output = ()> + Send + 'static>(&self, run: impl Fn(usize) -> F) {
        for (number, worker) in self.workers.iter().enumerate() {
            worker.runtime.spawn(run(number));
        }
    }

    /// Runs `serve` with the number of a thread and a client's connection on the thread that has the fewest connections.
    pub fn spawn<F>(
        &self,
        io: TcpStream,
        serve: impl FnOnce(usize, tokio::net::TcpStream) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send,
    {
        let numbered = self.workers.iter().enumerate();
        let idlest = numbered.min_by_key(|(_, worker)| worker.connections.load(Relaxed));
        let Some((number, worker)) = idlest else { return };
        let counted = Counted::new(&worker.connections);
        worker.runtime.spawn(async move {
            let _counted = counted;
            match tokio::net::TcpStream::from_std(io) {
                Ok(io) => serve(number, io).await,
                Err(error) => tracing::warn!(%error, "failed to serve a connection"),
            }
        });
    }
}

impl Worker {
    fn start(index: usize) -> Result<Worker> {
        let runtime =
            Builder::new_current_thread().enable_all().on_thread_park(turns::end_turn).build()?;
        let handle = runtime.handle().clone();
        thread::Builder::new()
            .name(format!("worker-{index}"))
            .spawn(move || runtime.block_on(std::future::pending::<()>()))
            .context("start a thread")?;
        Ok(Worker { runtime: handle, connections: Arc::default() })
    }
}

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Counted {
        count.fetch_add(1, Relaxed);
        Counted(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
