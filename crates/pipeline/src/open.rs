//! Opens a pipeline: recovers the store and starts the threads.

use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, bounded};
use data_dir::{DataDir, Identity};
use mvcc::{Quota, Store};
use parking_lot::Mutex;
use snapshot::Snapshots;
use wal::Medium;

use crate::applier::{Applier, Committer, Disk};
use crate::executor::Executor;
use crate::flusher::Flusher;
use crate::journal::Journal;
use crate::large_commands::{LargeCommands, Size};
use crate::modes::Modes;
use crate::shared_store::SharedStore;
use crate::snapshotter::snapshotter;
use crate::store_recovery::{self, RecoveredSizes, RecoveredStore};
use crate::{OpenError, Pipeline, PipelineOptions, WalMode};

impl Pipeline {
    /// Opens the store: recovers it from its snapshot and log, and starts its threads. A
    /// new data directory gets the identity `fresh`; an existing one keeps its own.
    pub fn open(options: &PipelineOptions, fresh: Identity) -> Result<Pipeline, OpenError> {
        Pipeline::open_on(options, fresh, store_recovery::medium)
    }

    /// Opens the store as [`Pipeline::open`] does, with its log on the medium that
    /// `medium` returns. Tests pass a simulated disk.
    pub fn open_on<M: Medium>(
        options: &PipelineOptions,
        fresh: Identity,
        medium: impl FnOnce(&DataDir) -> Result<M, files::Error>,
    ) -> Result<Pipeline, OpenError> {
        let modes = Modes::new(options.wal_mode, &options.wal_mode_prefixes)?;
        let (dir, recovered) = match options.wal_mode {
            WalMode::None => (None, None),
            WalMode::Buffered | WalMode::Fsync => {
                let dir = open_directory(options, fresh)?;
                let recovered = store_recovery::recover(&dir, medium(&dir)?, options)?;
                (Some(dir), Some(recovered))
            }
        };
        let identity = dir.as_ref().map_or(fresh, DataDir::identity);
        let (mut store, files) = match recovered {
            None => (Store::default(), None),
            Some(RecoveredStore { store, resumption, log, snapshots, sizes }) => {
                let boot_id = &options.boot_id;
                let journal = Journal::new(log, modes.clone(), boot_id, &store, &resumption);
                (store, Some((journal, snapshots, sizes)))
            }
        };
        store.set_quota(Quota { bytes: options.quota_bytes, member_id: identity.member_id });
        let shared = Arc::new(SharedStore::new(store, options));
        let inline = !modes.contains(WalMode::Fsync);
        let mut threads = Vec::new();
        let committer = match dir.as_ref().zip(files) {
            None => Committer::Memory,
            Some((dir, files)) => {
                Committer::Local(open_disk(files, dir, modes, &shared, options, &mut threads)?)
            }
        };
        let (commands, queue) = bounded(options.queue_commands);
        let max = Size { commands: options.queue_commands, bytes: options.queue_bytes };
        let large_commands = LargeCommands::new(max);
        let applier =
            Applier::new(shared.clone(), queue.clone(), large_commands.clone(), committer);
        let executor =
            Executor::new(shared.clone(), queue, large_commands.clone(), applier, inline);
        let dedicated = executor.clone();
        threads.push(spawn("pipeline", move || dedicated.run())?);
        Ok(Pipeline {
            shared,
            commands,
            large_commands,
            executor,
            threads: Mutex::new(threads),
            locks: Mutex::new(dir.map(|dir| Box::new(dir) as Box<dyn Send>)),
            max_queued_bytes: options.queue_bytes,
            min_lease_ttl_seconds: options.min_lease_ttl_seconds,
            identity,
            replication: None,
        })
    }
}

/// Opens the data directory. A new one gets a manifest without snapshots.
fn open_directory(options: &PipelineOptions, fresh: Identity) -> Result<DataDir, files::Error> {
    DataDir::open(&options.data_dir, fresh, |dir| snapshot::create_manifest(&dir.manifest()))
}

/// Logs the opening effects of this process, and starts the flusher and the snapshotter.
fn open_disk(
    (mut journal, snapshots, sizes): (Journal, Snapshots, RecoveredSizes),
    dir: &DataDir,
    modes: Modes,
    shared: &Arc<SharedStore>,
    options: &PipelineOptions,
    threads: &mut Vec<JoinHandle<()>>,
) -> Result<Disk, OpenError> {
    match journal.log_opening() {
        // The store opens all the same: reads succeed, and writes succeed once there is
        // space.
        Err(files::Error::NoSpace { .. }) => shared.set_no_space(true),
        opened => opened?,
    }
    let (alive, applier_alive): (_, Receiver<()>) = bounded(0);
    let flusher = Flusher {
        syncer: journal.syncer(),
        preparer: journal.preparer(),
        interval: options.flush_interval,
        syncs: modes.contains(WalMode::Buffered),
        applier_alive,
        shared: shared.clone(),
    };
    threads.push(spawn("flusher", move || flusher.run())?);
    let log_bytes = options.snapshot_log_bytes;
    let (snapshot_trigger, snapshotter) =
        snapshotter(shared.clone(), snapshots, &dir.log_dir(), &journal, modes, log_bytes, sizes);
    threads.push(spawn("snapshotter", move || snapshotter.run())?);
    Ok(Disk { journal, snapshot_trigger, _alive: alive })
}

/// Starts a thread with this name.
fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(run)
}
