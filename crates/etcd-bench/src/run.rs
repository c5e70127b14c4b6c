//! Executes and measures a workload.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use cpu_time::ProcessTime;
use etcd_client::{Connection, Failure};
use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use nix::time::ClockId;
use nix::unistd::Pid;
use tokio::task::JoinSet;

use crate::fill_keys::FillKeys;
use crate::keys::Keys;
use crate::latency::Latency;
use crate::lease_flood;
use crate::load::Load;
use crate::options::{Options, Workload};
use crate::pace::Pace;
use crate::progress::{bar, print_lines};
use crate::report::{Report, WatchReport};
use crate::watch::Watchers;
use crate::worker::{self, Worker};

/// Number of operations if neither `--total` nor `--duration` is set.
const DEFAULT_TOTAL: u64 = 10_000;
/// Number of concurrent puts while the key space is written before the measurement.
const FILL_CONCURRENCY: u64 = 64;
/// Exit code after a second SIGINT: 128 plus the number of the signal, as shells report it.
const EXIT_INTERRUPTED: i32 = 130;
/// Maximum number of different error texts in the report. Further ones are counted together.
const MAX_ERROR_KINDS: usize = 32;

/// A run of a workload: the state that all clients share.
struct Run {
    start: Instant,
    deadline: Option<Instant>,
    /// Maximum number of operations.
    total: u64,
    /// The pace of an open loop. In a closed loop, each client starts its next operation
    /// when the previous one has ended.
    pace: Option<Pace>,
    interrupted: Cell<bool>,
    /// Number of started operations.
    started: Cell<u64>,
    /// Latencies of the successful operations in microseconds.
    histogram: RefCell<Histogram<u64>>,
    /// Number of failed operations by error text.
    errors: RefCell<BTreeMap<String, u64>>,
    progress: ProgressBar,
}

/// Prepares and executes the workload, and returns the report.
pub async fn run(options: &Options) -> Result<Report> {
    let load = &options.load;
    let connections = load.open(load.connections).await?;
    let keys = Keys::new(load);
    let fill_keys = match &options.workload {
        Workload::Fill { groups } => Some(FillKeys::new(groups)),
        _ => None,
    };
    if matches!(options.workload, Workload::Range { prefix: None, .. } | Workload::Mixed { .. }) {
        write_key_space(&keys, load.key_space_size, &connections).await?;
    }
    let watchers = start_watchers(options, &connections).await?;
    let workers = prepare_clients(options, &keys, fill_keys.as_ref(), &connections).await?;

    let server_before = server_cpu(load.server_pid)?;
    let total = fill_keys.as_ref().map_or(configured_total(load), FillKeys::count);
    let shared = Rc::new(Run::new(load, total)?);
    let cpu = ProcessTime::now();
    let mut clients = JoinSet::new();
    for worker in workers {
        clients.spawn_local(run_client(worker, shared.clone()));
    }
    let progress_lines =
        tokio::task::spawn_local(print_lines(options.name(), shared.progress.clone()));
    tokio::task::spawn_local(handle_interrupts(shared.clone()));
    while clients.join_next().await.is_some() {}
    progress_lines.abort();
    let all_events_received = match &watchers {
        Some(watchers) => {
            let writes = shared.histogram.borrow().len();
            watchers.wait_for_events(writes).await
        }
        None => true,
    };
    let usage = Usage {
        elapsed: shared.start.elapsed(),
        own_cpu: cpu.elapsed(),
        server_cpu: server_cpu(load.server_pid)?.zip(server_before).map(|(now, then)| now - then),
    };
    shared.progress.finish_and_clear();
    Ok(report(options, &shared, usage, watchers, fill_keys, all_events_received))
}

/// The elapsed time and the CPU times of the measurement.
struct Usage {
    elapsed: Duration,
    own_cpu: Duration,
    server_cpu: Option<Duration>,
}

/// The CPU time that the server process has used since its start, including threads that have
/// ended. `None` without `--server-pid`.
fn server_cpu(pid: Option<i32>) -> Result<Option<Duration>> {
    let Some(pid) = pid else { return Ok(None) };
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(pid));
    let used = clock.and_then(|clock| clock.now());
    let used = used.with_context(|| format!("read the CPU time of process {pid}"))?;
    Ok(Some(used.into()))
}

/// Writes every key of the key space once.
async fn write_key_space(keys: &Keys, count: u64, connections: &[Connection]) -> Result<()> {
    let progress = bar(Some(count)).with_message("writing the key space");
    let next = Rc::new(Cell::new(0));
    let mut writers = JoinSet::new();
    for index in 0..FILL_CONCURRENCY.min(count) {
        let connection = connections[index as usize % connections.len()].clone();
        let (keys, next, progress) = (keys.clone(), next.clone(), progress.clone());
        writers.spawn_local(async move {
            while next.get() < count {
                let key = keys.key(next.replace(next.get() + 1));
                worker::put(&connection, keys.put(key)).await?;
                progress.inc(1);
            }
            Ok::<(), Failure>(())
        });
    }
    while let Some(result) = writers.join_next().await {
        result?.map_err(|Failure(reason)| anyhow!("write the key space: {reason}"))?;
    }
    progress.finish_and_clear();
    Ok(())
}

/// Starts the watchers of the workload watch. `client_connections` are the connections of the
/// clients, which `--shared` uses for the watchers as well.
async fn start_watchers(
    options: &Options,
    client_connections: &[Connection],
) -> Result<Option<Watchers>> {
    let Workload::Watch { watchers, watch_connections, shared } = options.workload else {
        return Ok(None);
    };
    let separate_connections;
    let connections = if shared {
        client_connections
    } else {
        separate_connections = options.load.open(watch_connections).await?;
        &separate_connections
    };
    Watchers::start(connections, watchers).await.map(Some)
}

/// Creates the clients and the data that they need.
async fn prepare_clients(
    options: &Options,
    keys: &Keys,
    fill_keys: Option<&FillKeys>,
    connections: &[Connection],
) -> Result<Vec<Worker>> {
    let mut existing = match options.workload {
        Workload::LeaseFlood { existing: true, .. } => {
            lease_flood::read_shares(&connections[0], options.load.clients).await?
        }
        _ => Vec::new(),
    }
    .into_iter();
    let progress = bar(Some(options.load.clients as u64)).with_message("preparing clients");
    let mut preparing = JoinSet::new();
    for index in 0..options.load.clients {
        let connection = connections[index % connections.len()].clone();
        let share = existing.next().unwrap_or_default();
        let (workload, index) = (&options.workload, index as u64);
        let mut worker = Worker::new(workload, keys.clone(), fill_keys, share, connection, index);
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

/// The number of operations that the flags configure; `u64::MAX` with `--duration`.
fn configured_total(load: &Load) -> u64 {
    match (load.total, load.duration) {
        (Some(total), _) => total,
        (None, None) => DEFAULT_TOTAL,
        (None, Some(_)) => u64::MAX,
    }
}

/// Executes the operations of one client until the end of the run.
async fn run_client(mut worker: Worker, shared: Rc<Run>) {
    while let Some(due) = shared.next_operation().await {
        let result = worker.execute_operation().await;
        shared.record(due.elapsed(), result);
    }
}

impl Run {
    fn new(load: &Load, total: u64) -> Result<Self> {
        let pace = (load.rate > 0).then(|| Pace::start(load.rate)).transpose()?;
        let start = Instant::now();
        Ok(Run {
            start,
            deadline: load.duration.map(|duration| start + duration),
            total,
            pace,
            interrupted: Cell::new(false),
            started: Cell::new(0),
            histogram: RefCell::new(Histogram::new(3).expect("three digits are a valid precision")),
            errors: RefCell::default(),
            progress: bar((total != u64::MAX).then_some(total)),
        })
    }

    /// Waits until the next operation is due and returns its due time. Returns `None` at the end
    /// of the run.
    async fn next_operation(&self) -> Option<Instant> {
        let number = self.started.get();
        let now = Instant::now();
        let due = self.pace.as_ref().map_or(now, |pace| pace.due(number));
        let is_over = self.deadline.is_some_and(|deadline| due.max(now) >= deadline);
        if number >= self.total || is_over || self.interrupted.get() {
            return None;
        }
        self.started.set(number + 1);
        if let Some(pace) = &self.pace {
            pace.acquire().await;
        }
        Some(due)
    }

    /// Adds an operation to the results.
    fn record(&self, latency: Duration, result: Result<(), Failure>) {
        match result {
            Ok(()) => {
                let micros = latency.as_micros().max(1) as u64;
                self.histogram.borrow_mut().record(micros).expect("the histogram grows as needed");
            }
            Err(Failure(kind)) => {
                let mut errors = self.errors.borrow_mut();
                let has_room = errors.len() < MAX_ERROR_KINDS || errors.contains_key(&kind);
                *errors.entry(if has_room { kind } else { "others".into() }).or_default() += 1;
            }
        }
        self.progress.inc(1);
    }
}

/// Ends the run at the first SIGINT: the clients start no more operations, and the report
/// contains the operations so far. Ends the process at the second SIGINT.
async fn handle_interrupts(shared: Rc<Run>) {
    if tokio::signal::ctrl_c().await.is_ok() {
        shared.interrupted.set(true);
    }
    if tokio::signal::ctrl_c().await.is_ok() {
        std::process::exit(EXIT_INTERRUPTED);
    }
}

/// Creates the report of a run.
fn report(
    options: &Options,
    shared: &Run,
    usage: Usage,
    watchers: Option<Watchers>,
    fill_keys: Option<FillKeys>,
    all_events_received: bool,
) -> Report {
    let load = &options.load;
    let histogram = shared.histogram.borrow();
    let errors_by_kind = shared.errors.borrow().clone();
    let (ops, seconds) = (histogram.len(), usage.elapsed.as_secs_f64());
    let micros_per_op = |cpu: Duration| cpu.as_secs_f64() * 1e6 / ops.max(1) as f64;
    let watch = match (&options.workload, watchers) {
        (Workload::Watch { watchers: count, .. }, Some(watchers)) => Some(WatchReport {
            watchers: *count,
            events: watchers.received_events(),
            events_per_second: watchers.received_events() as f64 / seconds,
            complete: all_events_received,
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
        client_cpu_micros_per_op: micros_per_op(usage.own_cpu),
        server_cpu_micros_per_op: usage.server_cpu.map(micros_per_op),
        watch,
        filled_bytes: fill_keys.map(|fill_keys| fill_keys.returned_bytes()),
    }
}
