//! Drives the clients and measures.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use cpu_time::ProcessTime;
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use nix::time::ClockId;
use nix::unistd::Pid;
use tokio::task::JoinSet;

use crate::connection::{self, Connection, Failure};
use crate::options::{Load, Options, Workload};
use crate::pace::Pace;
use crate::population::Population;
use crate::report::{Latency, Report, WatchReport};
use crate::watch::Watchers;
use crate::worker::{self, Keys, Worker};

const DEFAULT_TOTAL: u64 = 10_000;
/// Writes under way at once while the key space is filled.
const FILLERS: u64 = 64;
/// Without a terminal, a line of progress as often as this.
pub const PROGRESS_LINE: Duration = Duration::from_secs(10);
/// Exit code after a second interrupt, as shells have it.
const INTERRUPTED: i32 = 130;
/// Kinds of errors that are told apart; more are counted together.
const ERROR_KINDS: usize = 32;

/// What all clients share.
struct Shared {
    start: Instant,
    deadline: Option<Instant>,
    total: u64,
    /// Of an open loop; without it, as fast as it goes.
    pace: Option<Pace>,
    interrupted: Cell<bool>,
    begun: Cell<u64>,
    histogram: RefCell<Histogram<u64>>,
    errors: RefCell<BTreeMap<String, u64>>,
    progress: ProgressBar,
}

/// Prepares, runs and reports the workload.
pub async fn run(options: &Options) -> Result<Report> {
    let load = &options.load;
    let connections = connection::open(load, load.connections).await?;
    let keys = Keys::new(load);
    let population = match &options.workload {
        Workload::Fill { groups } => Some(Population::new(groups)),
        _ => None,
    };
    if matches!(options.workload, Workload::Range { prefix: None, .. } | Workload::Mixed { .. }) {
        fill(&keys, load.key_space_size, &connections).await?;
    }
    let watchers = start_watchers(options, &connections).await?;
    let workers = prepare(options, &keys, population.as_ref(), &connections).await?;

    let server_before = server_cpu(load.server_pid)?;
    let total = population.as_ref().map_or(total(load), Population::count);
    let shared = Rc::new(Shared::new(load, total)?);
    let cpu = ProcessTime::now();
    let mut clients = JoinSet::new();
    for worker in workers {
        clients.spawn_local(drive(worker, shared.clone()));
    }
    let narrator = tokio::task::spawn_local(narrate(options.name(), shared.clone()));
    tokio::task::spawn_local(heed_interrupt(shared.clone()));
    while clients.join_next().await.is_some() {}
    narrator.abort();
    let complete = match &watchers {
        Some(watchers) => {
            let writes = shared.histogram.borrow().len();
            watchers.drain(writes).await
        }
        None => true,
    };
    let spent = Spent {
        elapsed: shared.start.elapsed(),
        own_cpu: cpu.elapsed(),
        server_cpu: server_cpu(load.server_pid)?.zip(server_before).map(|(now, then)| now - then),
    };
    shared.progress.finish_and_clear();
    Ok(report(options, &shared, spent, watchers, population, complete))
}

/// What the measured operations took.
struct Spent {
    elapsed: Duration,
    own_cpu: Duration,
    server_cpu: Option<Duration>,
}

/// CPU that a process has used so far, as the operating system counts it: in
/// nanoseconds, over all threads, those that have ended included.
fn server_cpu(pid: Option<i32>) -> Result<Option<Duration>> {
    let Some(pid) = pid else { return Ok(None) };
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(pid));
    let used = clock.and_then(|clock| clock.now());
    let used = used.with_context(|| format!("read the CPU time of process {pid}"))?;
    Ok(Some(used.into()))
}

/// Writes every key once.
async fn fill(keys: &Keys, space: u64, connections: &[Connection]) -> Result<()> {
    let progress = bar(Some(space)).with_message("filling the key space");
    let next = Rc::new(Cell::new(0));
    let mut fillers = JoinSet::new();
    for index in 0..FILLERS.min(space) {
        let connection = connections[index as usize % connections.len()].clone();
        let (keys, next, progress) = (keys.clone(), next.clone(), progress.clone());
        fillers.spawn_local(async move {
            while next.get() < space {
                let key = keys.key(next.replace(next.get() + 1));
                worker::put(&connection, keys.put(key)).await?;
                progress.inc(1);
            }
            Ok::<(), Failure>(())
        });
    }
    while let Some(filled) = fillers.join_next().await {
        filled?.map_err(|Failure(reason)| anyhow!("fill the key space: {reason}"))?;
    }
    progress.finish_and_clear();
    Ok(())
}

async fn start_watchers(options: &Options, writers: &[Connection]) -> Result<Option<Watchers>> {
    let Workload::Watch { watchers, watch_connections, shared } = options.workload else {
        return Ok(None);
    };
    let own;
    let connections = if shared {
        writers
    } else {
        own = connection::open(&options.load, watch_connections).await?;
        &own
    };
    Watchers::start(connections, watchers).await.map(Some)
}

async fn prepare(
    options: &Options,
    keys: &Keys,
    population: Option<&Population>,
    connections: &[Connection],
) -> Result<Vec<Worker>> {
    let progress = bar(Some(options.load.clients as u64)).with_message("preparing clients");
    let mut preparing = JoinSet::new();
    for index in 0..options.load.clients {
        let connection = connections[index % connections.len()].clone();
        let mut worker =
            Worker::new(&options.workload, keys.clone(), population, connection, index as u64);
        let progress = progress.clone();
        preparing.spawn_local(async move {
            worker.prepare().await?;
            progress.inc(1);
            Ok::<Worker, Failure>(worker)
        });
    }
    let mut workers = Vec::new();
    while let Some(prepared) = preparing.join_next().await {
        let worker = prepared.context("prepare a client")?;
        workers.push(worker.map_err(|Failure(reason)| anyhow!("prepare a client: {reason}"))?);
    }
    progress.finish_and_clear();
    Ok(workers)
}

/// Operations to do, if not the workload itself knows.
fn total(load: &Load) -> u64 {
    match (load.total, load.duration) {
        (Some(total), _) => total,
        (None, None) => DEFAULT_TOTAL,
        (None, Some(_)) => u64::MAX,
    }
}

async fn drive(mut worker: Worker, shared: Rc<Shared>) {
    while let Some(due) = shared.next().await {
        let result = worker.operate().await;
        shared.record(due.elapsed(), result);
    }
}

impl Shared {
    fn new(load: &Load, total: u64) -> Result<Self> {
        let pace = (load.rate > 0).then(|| Pace::start(load.rate)).transpose()?;
        let start = Instant::now();
        Ok(Shared {
            start,
            deadline: load.duration.map(|duration| start + duration),
            total,
            pace,
            interrupted: Cell::new(false),
            begun: Cell::new(0),
            histogram: RefCell::new(Histogram::new(3).expect("three digits are allowed")),
            errors: RefCell::default(),
            progress: bar((total != u64::MAX).then_some(total)),
        })
    }

    /// When the next operation is due, once it is; `None` when there is no more.
    async fn next(&self) -> Option<Instant> {
        let number = self.begun.get();
        let now = Instant::now();
        let due = self.pace.as_ref().map_or(now, |pace| pace.due(number));
        let over = self.deadline.is_some_and(|deadline| due.max(now) >= deadline);
        if number >= self.total || over || self.interrupted.get() {
            return None;
        }
        self.begun.set(number + 1);
        if let Some(pace) = &self.pace {
            pace.turn().await;
        }
        Some(due)
    }

    fn record(&self, latency: Duration, result: Result<(), Failure>) {
        match result {
            Ok(()) => {
                let micros = latency.as_micros().max(1) as u64;
                self.histogram.borrow_mut().record(micros).expect("it grows as needed");
            }
            Err(Failure(kind)) => {
                let mut errors = self.errors.borrow_mut();
                let known = errors.len() < ERROR_KINDS || errors.contains_key(&kind);
                *errors.entry(if known { kind } else { "others".into() }).or_default() += 1;
            }
        }
        self.progress.inc(1);
    }
}

/// An interrupt ends the run early, and what was done until then is reported; a
/// second one does not wait for operations under way.
async fn heed_interrupt(shared: Rc<Shared>) {
    if tokio::signal::ctrl_c().await.is_ok() {
        shared.interrupted.set(true);
    }
    if tokio::signal::ctrl_c().await.is_ok() {
        std::process::exit(INTERRUPTED);
    }
}

/// Says how far it is where no bar can be drawn.
async fn narrate(name: &'static str, shared: Rc<Shared>) {
    while !std::io::stderr().is_terminal() {
        tokio::time::sleep(PROGRESS_LINE).await;
        let done = shared.progress.position();
        match shared.progress.length() {
            Some(total) => eprintln!("    {name} {done}/{total}"),
            None => eprintln!("    {name} {done}"),
        }
    }
}

/// Progress on a terminal; of something endless, without a total.
pub fn bar(total: Option<u64>) -> ProgressBar {
    let (bar, template) = match total {
        Some(total) => (ProgressBar::new(total), "{msg} {bar:30} {pos}/{len} {per_sec} {eta} left"),
        None => (ProgressBar::new_spinner(), "{msg} {spinner} {pos} {per_sec} {elapsed}"),
    };
    bar.with_style(ProgressStyle::with_template(template).expect("a valid template"))
}

fn report(
    options: &Options,
    shared: &Shared,
    spent: Spent,
    watchers: Option<Watchers>,
    population: Option<Population>,
    complete: bool,
) -> Report {
    let load = &options.load;
    let histogram = shared.histogram.borrow();
    let errors_by_kind = shared.errors.borrow().clone();
    let (ops, seconds) = (histogram.len(), spent.elapsed.as_secs_f64());
    let micros_per_op = |cpu: Duration| cpu.as_secs_f64() * 1e6 / ops.max(1) as f64;
    let watch = match (&options.workload, watchers) {
        (Workload::Watch { watchers: count, .. }, Some(watchers)) => Some(WatchReport {
            watchers: *count,
            events: watchers.delivered(),
            events_per_second: watchers.delivered() as f64 / seconds,
            complete,
        }),
        _ => None,
    };
    Report {
        workload: options.name().into(),
        endpoints: load.endpoints.clone(),
        connections: load.connections,
        clients: load.clients,
        key_size: load.key_size,
        val_size: load.val_size,
        key_space_size: load.key_space_size,
        rate: load.rate,
        ops,
        errors: errors_by_kind.values().sum(),
        errors_by_kind,
        seconds,
        ops_per_second: ops as f64 / seconds,
        latency_micros: Latency::from(&*histogram),
        client_cpu_micros_per_op: micros_per_op(spent.own_cpu),
        server_cpu_micros_per_op: spent.server_cpu.map(micros_per_op),
        watch,
        filled_bytes: population.map(|population| population.written_bytes()),
    }
}
