//! Starts a member of a cluster.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use consensus::id::{ClusterId, MemberId};
use consensus::identity::{self, LogMode, StoredIdentity};
use consensus::membership::MemberInfo;
use consensus::output::RoleChange;
use consensus::{Config, Replica, Start};
use crossbeam_channel::{Receiver, bounded, unbounded};
use data_dir::Identity;
use mvcc::{Quota, Store};
use parking_lot::Mutex;
use peer::{Listeners, PeerTls, Transport};
use tokio::runtime::Runtime;

use super::directory::{MemberDir, StoredMember};
use super::entry_log::{EntryLog, LogHandle};
use super::evaluate::MAX_ENTRY_BYTES;
use super::formation::{Formation, Formed, REPORT_INTERVAL, unformed};
use super::forwards::Forwards;
use super::handle::{Replication, Request};
use super::hash_check_state::HashChecks;
use super::identity::random_member;
use super::log_size::LogSize;
use super::member::{Member, Settings, Transfer};
use super::member_command_queue::MemberCommands;
use super::options::ClusterOptions;
use super::pending_reads::PendingReads;
use super::proposals::Proposals;
use super::recovery::{self, MemberFiles, RecoveredMember};
use crate::applier::{Applier, Committer};
use crate::executor::Executor;
use crate::large_commands::{LargeCommands, Size};
use crate::shared_store::SharedStore;
use crate::submission::Submission;
use crate::waker::{Wake, Waker, waker};
use crate::{OpenError, Pipeline, PipelineOptions};

/// Number of threads of the transport. It is its own, so that clients do not delay heartbeats. With a
/// second one, each message costs more task switches.
const TRANSPORT_THREADS: usize = 1;
/// Maximum number of threads that read states for members, and ranges of forwarded transactions.
const BLOCKING_THREADS: usize = 16;
/// Maximum size in bytes of the payloads that are proposed and not committed.
const MAX_UNCOMMITTED_BYTES: u64 = 128 << 20;
/// Approximate maximum size in bytes of the entries in a message.
const MAX_MESSAGE_BYTES: u64 = 1 << 20;
/// Maximum number of messages with entries that a member has not acknowledged.
const MAX_INFLIGHT_MESSAGES: usize = 256;
/// What an entry may have in addition to its payload, in bytes.
const ENTRY_OVERHEAD_BYTES: u32 = 1 << 20;
/// Interval at which a member that waits for others checks whether it has to stop.
const STOP_POLL: Duration = Duration::from_millis(100);

impl Pipeline {
    /// Opens the store as a member of a cluster. Waits until the members have formed the cluster;
    /// not until there is a leader. `stop` ends the wait.
    ///
    /// # Errors
    /// If files or sockets cannot be used, or `stop` was set.
    pub fn open_member(
        options: &PipelineOptions,
        cluster: &ClusterOptions,
        stop: &AtomicBool,
    ) -> Result<Pipeline, OpenError> {
        let (waker, wake) = waker();
        let runtime = runtime().map_err(OpenError::Cluster)?;
        let opened = Opening { options, cluster, waker, runtime }.open(stop)?;
        start(opened, wake, options, cluster)
    }
}

/// A member before its thread is started.
struct Opened {
    store: Store,
    replica: Replica,
    transport: Transport,
    runtime: Runtime,
    waker: Waker,
    info: MemberInfo,
    cluster: ClusterId,
    /// `None` if the log is in memory only.
    files: Option<(MemberDir, MemberFiles)>,
}

struct Opening<'a> {
    options: &'a PipelineOptions,
    cluster: &'a ClusterOptions,
    waker: Waker,
    runtime: Runtime,
}

/// The identity, and the state if there is one.
struct Found {
    member: MemberId,
    dir: Option<MemberDir>,
    recovered: Option<(ClusterId, RecoveredMember)>,
}

/// How a member begins.
struct Beginning {
    cluster: ClusterId,
    start: Start,
    store: Store,
    files: Option<(MemberDir, MemberFiles)>,
}

impl Opening<'_> {
    fn open(self, stop: &AtomicBool) -> Result<Opened, OpenError> {
        let Found { member, dir, recovered } = self.find()?;
        let mut info = MemberInfo {
            id: member,
            name: self.cluster.name.clone(),
            peer_urls: self.cluster.peer_urls(),
            client_urls: self.cluster.client_urls.clone(),
        };
        let known = recovered.as_ref().map(|(cluster, _)| *cluster);
        let transport = self.transport(&info, known).map_err(OpenError::Cluster)?;
        let beginning = match recovered {
            Some((cluster, recovered)) => {
                self.resume(&transport, &info, dir, cluster, recovered)?
            }
            None => self.begin(&transport, &mut info, dir, stop)?,
        };
        let Beginning { cluster, start, store, files } = beginning;
        let has_state = !start.snapshot.membership.voters().is_empty();
        tracing::info!(%cluster, member = %info.id, has_state, "the member knows its cluster");
        let replica = Replica::new(self.replica_config(cluster, info.id), start)
            .map_err(|error| OpenError::Cluster(error.into()))?;
        transport.set_cluster(cluster, !has_state);
        transport.set_id(info.id);
        transport.set_members(replica.membership().members());
        transport.set_claims(replica.membership().claims());
        let Opening { waker, runtime, .. } = self;
        Ok(Opened { store, replica, transport, runtime, waker, info, cluster, files })
    }

    /// Continues with the data of a member.
    fn resume(
        &self,
        transport: &Transport,
        info: &MemberInfo,
        dir: Option<MemberDir>,
        cluster: ClusterId,
        mut recovered: RecoveredMember,
    ) -> Result<Beginning, OpenError> {
        if self.cluster.force_new_cluster {
            let before = recovered.force_new_cluster(info)?;
            let removed: Vec<_> = before.iter().filter(|member| member.id != info.id).collect();
            tracing::warn!(?removed, "forced a new cluster: this member is the only one now");
            // Those that are not members any more are told.
            transport.set_members(removed);
        }
        if let Some(dir) = &dir {
            // Only now, in case that the log was incomplete.
            dir.write_member(&self.stored_member(cluster, info.id))?;
        }
        let RecoveredMember { store, start, files } = recovered;
        Ok(Beginning { cluster, start, store, files: dir.map(|dir| (dir, files)) })
    }

    /// Begins without data: in a new cluster, or in one that exists. Sets the identity in `info`.
    fn begin(
        &self,
        transport: &Transport,
        info: &mut MemberInfo,
        dir: Option<MemberDir>,
        stop: &AtomicBool,
    ) -> Result<Beginning, OpenError> {
        let formed = self.form(transport, info, stop).map_err(OpenError::Cluster)?;
        let (cluster, start) = match formed {
            Formed::New(cluster, members) => (cluster, Start::new_cluster(members)),
            Formed::Existing(cluster) => {
                transport.set_cluster(cluster, true);
                transport.set_waiting();
                info.id = self.called(transport, stop).map_err(OpenError::Cluster)?;
                (cluster, Start::blank())
            }
        };
        let files = dir.map(|dir| self.create(dir, cluster, info.id, &start)).transpose()?;
        Ok(Beginning { cluster, start, store: Store::default(), files })
    }

    /// Finds out under which identity this member speaks.
    fn find(&self) -> Result<Found, OpenError> {
        let fresh = random_member();
        if self.cluster.log == LogMode::Memory {
            return Ok(Found { member: fresh, dir: None, recovered: None });
        }
        let dir = MemberDir::open(&self.cluster.data_dir, self.options.snapshot_dir.as_deref())?;
        let stored = dir.stored()?;
        let boot_id = Some(&self.options.boot_id[..]).filter(|boot_id| !boot_id.is_empty());
        let identity = stored.as_ref().map(|stored| &stored.identity);
        let kept = match identity::identity(identity, boot_id, fresh) {
            identity::Identity::Kept(member) => Some(member),
            // Nobody else remembers what this member may have forgotten.
            identity::Identity::Fresh(_) if self.cluster.force_new_cluster => {
                identity.map(|stored| stored.member)
            }
            identity::Identity::Fresh(_) => None,
        };
        if let (Some(member), Some(stored)) = (kept, &stored) {
            let recovered = recovery::recover(dir.replica(stored)?, dir.snapshots(), self.options)?;
            if !(self.cluster.is_replaced && recovered.is_blank()) {
                let recovered = Some((stored.cluster, recovered));
                return Ok(Found { member, dir: Some(dir), recovered });
            }
            // The lock ends before the files are renamed.
            drop(recovered);
            dir.discard()?;
            return Ok(Found { member: fresh, dir: Some(dir), recovered: None });
        }
        if self.cluster.force_new_cluster {
            return Err(OpenError::Cluster(anyhow!(
                "--force-new-cluster: the data directory has no log of a member"
            )));
        }
        if stored.is_some() {
            tracing::warn!(
                "the machine has restarted, so a part of the log may be lost: this member joins again \
                 with a new identity"
            );
        }
        dir.discard()?;
        Ok(Found { member: fresh, dir: Some(dir), recovered: None })
    }

    fn stored_member(&self, cluster: ClusterId, member: MemberId) -> StoredMember {
        let boot_id = Some(self.options.boot_id.clone()).filter(|boot_id| !boot_id.is_empty());
        let mode = self.cluster.log;
        StoredMember { cluster, identity: StoredIdentity { member, mode, boot_id } }
    }

    /// Creates the files of a member that begins. They are complete before it speaks.
    fn create(
        &self,
        dir: MemberDir,
        cluster: ClusterId,
        member: MemberId,
        start: &Start,
    ) -> Result<(MemberDir, MemberFiles), OpenError> {
        let stored = self.stored_member(cluster, member);
        let files = recovery::create(dir.replica(&stored)?, dir.snapshots(), start, self.options)?;
        dir.write_member(&stored)?;
        Ok((dir, files))
    }

    /// Starts the transport. A member that does not know its cluster has an ID that depends on its
    /// flags.
    fn transport(&self, info: &MemberInfo, known: Option<ClusterId>) -> anyhow::Result<Transport> {
        let options = self.cluster;
        let tls = options.tls.clone().map(PeerTls::new).transpose()?.map(Arc::new);
        let cluster = known.unwrap_or_else(|| unformed(&options.token, &options.initial_cluster));
        let config = peer::Config {
            cluster,
            member: info.clone(),
            max_message_bytes: MAX_ENTRY_BYTES as u32 + ENTRY_OVERHEAD_BYTES,
            snapshot_bytes_per_second: options.snapshot_bytes_per_second,
            timeouts: peer::Timeouts::default(),
        };
        let waker = self.waker.clone();
        self.runtime.block_on(async move {
            let listeners = Listeners::bind(&options.listen_peer_urls).await?;
            Transport::start(config, listeners, tls, move || waker.wake())
        })
    }

    /// Waits until the members have formed a cluster, or one is found.
    fn form(
        &self,
        transport: &Transport,
        own: &MemberInfo,
        stop: &AtomicBool,
    ) -> anyhow::Result<Formed> {
        let ClusterOptions { token, initial_cluster, is_existing, .. } = self.cluster;
        let initial = &initial_cluster[..];
        let formation = Formation { transport, own, token, initial, is_existing: *is_existing };
        self.wait(formation.form(), stop, "stopped before the members have formed a cluster")
    }

    /// Waits until the cluster knows this process: because it has a member with this name, whose log is
    /// lost, or because a member was added with these peer URLs. Returns the identity.
    fn called(&self, transport: &Transport, stop: &AtomicBool) -> anyhow::Result<MemberId> {
        let called = async {
            let mut called = std::pin::pin!(transport.called());
            loop {
                tokio::select! {
                    id = called.as_mut() => return id,
                    () = tokio::time::sleep(REPORT_INTERVAL) => self.report_uncalled(),
                }
            }
        };
        self.wait(called, stop, "stopped before the cluster knew this member")
    }

    fn report_uncalled(&self) {
        let (name, urls) = (&self.cluster.name, self.cluster.peer_urls().join(","));
        tracing::warn!(
            name,
            peer_urls = urls,
            "waiting for the leader of the cluster to find this member: the cluster needs a leader, and a \
             member with this name, or one that was added with these peer URLs"
        );
    }

    /// Waits for something until `stop` is set.
    fn wait<T>(
        &self,
        something: impl Future<Output = T>,
        stop: &AtomicBool,
        stopped: &'static str,
    ) -> anyhow::Result<T> {
        self.runtime.block_on(async {
            let mut something = std::pin::pin!(something);
            loop {
                tokio::select! {
                    result = something.as_mut() => return Ok(result),
                    () = tokio::time::sleep(STOP_POLL) => {
                        ensure!(!stop.load(Ordering::Relaxed), stopped);
                    }
                }
            }
        })
    }

    fn replica_config(&self, cluster: ClusterId, member: MemberId) -> Config {
        let ClusterOptions { heartbeat_interval, election_timeout, .. } = self.cluster;
        let ticks = election_timeout.as_millis() / heartbeat_interval.as_millis().max(1);
        Config {
            cluster,
            member,
            mode: self.cluster.log,
            heartbeat_ticks: 1,
            election_ticks: u32::try_from(ticks).unwrap_or(u32::MAX),
            seed: rand::random(),
            max_uncommitted_bytes: MAX_UNCOMMITTED_BYTES,
            max_message_bytes: MAX_MESSAGE_BYTES,
            max_inflight_messages: MAX_INFLIGHT_MESSAGES,
        }
    }
}

fn runtime() -> anyhow::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(TRANSPORT_THREADS)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name("peer")
        .enable_all()
        .build()
        .context("start the threads of the transport")
}

/// Starts the threads of a member.
fn start(
    opened: Opened,
    wake: Wake,
    options: &PipelineOptions,
    cluster_options: &ClusterOptions,
) -> Result<Pipeline, OpenError> {
    let Opened { mut store, replica, transport, runtime, waker, info, cluster, files } = opened;
    let identity = Identity { cluster_id: cluster.0, member_id: info.id.get() };
    let quota = Quota { bytes: options.quota_bytes, member_id: identity.member_id };
    store.set_quota(quota);
    let shared = Arc::new(SharedStore::new(store, options));
    shared.lessor.lock().demote();
    let mut threads = Vec::new();
    let (locks, log) = match files {
        None => (None, None),
        Some((dir, files)) => {
            let (locks, log) = start_log(dir, files, &shared, &waker, &mut threads)?;
            (Some(locks), Some(log))
        }
    };
    let (commands, queue) = bounded(options.queue_commands);
    let max = Size { commands: options.queue_commands, bytes: options.queue_bytes };
    let large_commands = LargeCommands::new(max);
    let settings = Settings {
        tick: cluster_options.heartbeat_interval,
        request_timeout: cluster_options.request_timeout(),
        election_timeout: cluster_options.election_timeout,
        quota,
        snapshot_log_bytes: options.snapshot_log_bytes,
        strict_reconfig_check: cluster_options.strict_reconfig_check,
        max_learners: cluster_options.max_learners,
        hash_checks: cluster_options.hash_checks,
    };
    let (replication, requests) = Replication::new(info.id, waker.clone());
    let replication = Arc::new(replication);
    let parts = Parts { replica, transport, runtime, info, log, requests, settings };
    let queues = Queues { queue: queue.clone(), large_commands: large_commands.clone() };
    let member = member(parts, queues, &shared, &replication, &waker);
    let executor = Executor::of_member(shared.clone(), queue, large_commands.clone(), waker);
    let stopped = executor.clone();
    threads.push(spawn("member", move || {
        member.run(&wake);
        stopped.stop();
    })?);
    Ok(Pipeline {
        shared,
        commands,
        large_commands,
        executor,
        threads: Mutex::new(threads),
        locks: Mutex::new(locks),
        max_queued_bytes: options.queue_bytes,
        min_lease_ttl_seconds: options.min_lease_ttl_seconds,
        identity,
        replication: Some(replication),
    })
}

/// Starts the thread that writes the log. Returns what keeps the directory locked.
fn start_log(
    dir: MemberDir,
    files: MemberFiles,
    shared: &Arc<SharedStore>,
    waker: &Waker,
    threads: &mut Vec<JoinHandle<()>>,
) -> Result<(Box<dyn Send>, LogHandle), OpenError> {
    let MemberFiles { dir: data, log, snapshots, hard_state, log_bytes } = files;
    let (shared, waker) = (shared.clone(), waker.clone());
    let (writer, log) = EntryLog::new(log, snapshots, shared, waker, hard_state, log_bytes);
    threads.push(spawn("log", move || writer.run())?);
    Ok((Box::new((dir, data)), log))
}

/// What a member is made of.
struct Parts {
    replica: Replica,
    transport: Transport,
    runtime: Runtime,
    info: MemberInfo,
    log: Option<LogHandle>,
    requests: Receiver<Request>,
    settings: Settings,
}

/// Where the commands of clients wait.
struct Queues {
    queue: Receiver<Submission>,
    large_commands: Arc<LargeCommands>,
}

fn member(
    parts: Parts,
    queues: Queues,
    shared: &Arc<SharedStore>,
    handle: &Arc<Replication>,
    waker: &Waker,
) -> Member {
    let Parts { replica, transport, runtime, info, log, requests, settings } = parts;
    let Queues { queue, large_commands } = queues;
    let (received_sender, received) = unbounded();
    handle.set_membership(replica.membership());
    let applied = replica.describe_state().position.index;
    let hash_checks = HashChecks::new(settings.hash_checks, Instant::now());
    let applier =
        Applier::new(shared.clone(), queue, large_commands.clone(), Committer::Replicated);
    Member {
        applied,
        replica,
        applier,
        shared: shared.clone(),
        handle: handle.clone(),
        transport: Arc::new(transport),
        runtime: Some(runtime),
        waker: waker.clone(),
        log,
        requests,
        info,
        settings,
        role: RoleChange::default(),
        proposals: Proposals::default(),
        reads: PendingReads::default(),
        forwards: Forwards::default(),
        responses: BTreeMap::new(),
        member_commands: MemberCommands::default(),
        hash_checks,
        batch: Vec::new(),
        remote: VecDeque::new(),
        large_commands,
        resign_again_at: Instant::now(),
        unknown_since: None,
        leaderless_since: Some(Instant::now()),
        blocked_since: None,
        log_size: LogSize::default(),
        transfer: Transfer {
            wanted: Vec::new(),
            exports: Vec::new(),
            sending: 0,
            is_receiving: false,
            installing: None,
            received_sender,
            received,
            states: BTreeMap::new(),
        },
        clock_ms: 0,
        announce_at: Instant::now(),
        moving: Vec::new(),
    }
}

/// Starts a thread with this name.
fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, OpenError> {
    let spawned = std::thread::Builder::new().name(name.into()).spawn(run);
    spawned.map_err(|error| OpenError::Cluster(anyhow!(error).context("start a thread")))
}
