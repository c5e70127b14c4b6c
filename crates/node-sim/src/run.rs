//! The process: its startup and shutdown.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use anyhow::{Context, Result, ensure};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;

use crate::certificates::Authority;
use crate::driver::{Driver, Setup};
use crate::kubeconfig::Kubeconfig;
use crate::metrics::Metrics;
use crate::options::{LogFormat, Mode, Options};
use crate::pace::Pace;
use crate::pages::{self, PageState};

/// Runs the simulator until SIGTERM or SIGINT. Nodes then simply fall silent, as if their machines had
/// lost power.
///
/// # Errors
/// If a file is invalid, or an address is in use.
pub fn run(options: &Options) -> Result<()> {
    start_log(options);
    let files = sockets::connection_permits(1).available_permits();
    let wire_nodes = match options.mode {
        Mode::Shared => 0,
        Mode::Wire => options.nodes,
        Mode::Mixed => options.wire_nodes,
    };
    ensure!(
        files >= wire_nodes as usize,
        "{wire_nodes} nodes with a connection need as many open files, but the limit is {files}; raise `ulimit -n`"
    );
    let metrics = Arc::new(Metrics::new()?);
    let is_ready = Arc::new(AtomicBool::new(false));
    let (sender, commands) = mpsc::unbounded_channel();
    let setup = Setup {
        settings: options.settings()?,
        kubeconfig: kubeconfig(options)?,
        authority: authority(options)?,
        connections: options.connections,
        metrics: metrics.clone(),
        is_ready: is_ready.clone(),
        commands,
        seed: options.seed.unwrap_or_else(rand::random),
    };
    let pages = pages::routes(PageState { metrics, is_ready, commands: sender });
    // Serves the pages. The simulation has a thread of its own.
    runtime()?.block_on(serve(options, setup, pages))
}

fn start_log(options: &Options) {
    let builder = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(options.log_level)
        .with_ansi(std::io::stderr().is_terminal());
    match options.log_format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().init(),
    }
}

fn kubeconfig(options: &Options) -> Result<Kubeconfig> {
    let mut kubeconfig = Kubeconfig::read(&options.kubeconfig)?;
    if let Some(server) = &options.server {
        kubeconfig.set_server(server).with_context(|| format!("--server {server}"))?;
    }
    Ok(kubeconfig)
}

fn authority(options: &Options) -> Result<Option<Authority>> {
    match (&options.client_ca_cert, &options.client_ca_key) {
        (Some(certificate), Some(key)) => Authority::read(certificate, key).map(Some),
        _ => Ok(None),
    }
}

fn runtime() -> Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("start the runtime")
}

/// A runtime whose thread rests while much arrives. It does not rest while a task is ready: tokio calls the hook
/// only before it waits.
fn paced_runtime() -> Result<Runtime> {
    let begins = Arc::new(Pace::new());
    let rests = begins.clone();
    Builder::new_current_thread()
        .enable_all()
        .on_thread_unpark(move || begins.begin())
        .on_thread_park(move || rests.rest())
        .build()
        .context("start the runtime")
}

async fn serve(options: &Options, setup: Setup, pages: axum::Router) -> Result<()> {
    let address = options.control_address;
    let listener =
        TcpListener::bind(address).await.with_context(|| format!("listen on {address}"))?;
    let mut terminate = signal(SignalKind::terminate()).context("handle SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("handle SIGINT")?;
    let (server, seed) = (setup.kubeconfig.address.clone(), setup.seed);
    let ended = simulate(setup)?;
    let control = listener.local_addr()?.to_string();
    tracing::info!(server, control, seed, mode = ?options.mode, nodes = options.nodes, "started");
    tokio::select! {
        result = axum::serve(listener, pages) => result.context("serve the pages"),
        result = ended => result.context("the simulation has ended").flatten(),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}

/// Runs the simulation on a thread. The receiver gets the error with which it ends.
fn simulate(setup: Setup) -> Result<oneshot::Receiver<Result<()>>> {
    let (sender, ended) = oneshot::channel();
    let runtime = paced_runtime()?;
    let run = move || {
        let result = LocalSet::new().block_on(&runtime, Driver::run(setup));
        // The process may be shutting down.
        let _ = sender.send(result);
    };
    thread::Builder::new().name("simulation".to_owned()).spawn(run).context("start a thread")?;
    Ok(ended)
}
