//! What the applier writes to the log, and when that must be durable.
//!
//! The journal logs an effect unless the WAL mode of its key is `WalMode::None`. An effect
//! without a key has the default mode. If a logged effect has `WalMode::Fsync`, the journal
//! syncs the log after the batch. The journal adds:
//! - once, before everything else: which changes a crash of this process can lose, and how
//!   its first state differs from the end of the previous process's log
//!   ([`crate::continuity`]);
//! - a visible-revision bound, before the applier publishes a revision that a crash could
//!   lose. Writes rarely wait for it: the journal raises it to 1,048,576 above the current
//!   revision as soon as it is less than 524,288 above;
//! - while leases exist: store time.

use files::Error;
use mvcc::{Effect, Effects, LogDurability, Store};
use wal::{Log, Preparer, SpaceClaim, Syncer, Trimmer};

use crate::WalMode;
use crate::continuity::Resumption;
use crate::modes::{Modes, contains_keys};

/// Number of revisions by which the visible-revision bound is raised. After a crash, the
/// next process may skip about as many revisions.
const BOUND_STEP: i64 = 1 << 20;
/// Space reserved for the effects that the journal adds to a batch, in bytes.
const EXTRA_BYTES: u64 = 128;
/// A batch gets the store time if the newest one in the log is at least this old.
const CLOCK_IN_BATCH_MS: i64 = 1000;
/// On an idle store, the store time is logged if the newest one in the log is at least
/// this old.
const CLOCK_IDLE_MS: i64 = 5000;

/// Writes the effects of the applier to the log, with those that recovery needs in
/// addition.
pub(crate) struct Journal {
    log: Log,
    modes: Modes,
    log_durability: LogDurability,
    /// Effects that must be logged before any other; empty once they are logged.
    opening: Effects,
    visible_bound: VisibleBound,
    /// Whether the store contains changes that the log does not.
    incomplete: bool,
    /// Whether the store has acknowledged lease renewals that the log does not contain. The
    /// log then contains one effect that renews all leases. It replaces the later renewals
    /// only as long as the log contains no later store time.
    renewals_unlogged: bool,
    /// The newest store time in the log.
    clock_ms: i64,
    /// The encoded effects of the next record.
    payload: Vec<u8>,
    /// Whether the log must be synced after this record.
    sync: bool,
    /// The part of [`Log::appended_bytes`] that [`Journal::take_growth`] has returned.
    counted_bytes: u64,
}

/// The visible-revision bound: no revision above it may be published.
#[derive(Default)]
struct VisibleBound {
    /// The newest durable bound.
    durable: i64,
    /// The newest bound in the log.
    written: i64,
    /// The sequence of the log record that contains `written`.
    record: u64,
}

/// The values of the store that the journal needs when it writes to the log.
#[derive(Clone, Copy)]
pub(crate) struct StorePosition {
    /// The newest revision.
    pub(crate) revision: i64,
    /// Store time in milliseconds.
    pub(crate) clock_ms: i64,
    /// Whether leases exist. Without leases, store time is logged only at a clean
    /// shutdown.
    pub(crate) has_leases: bool,
}

impl Journal {
    /// Creates a journal that appends to `log`. `store` is the recovered store. It
    /// includes the changes of `resumption`, which the journal still has to log.
    pub(crate) fn new(
        log: Log,
        modes: Modes,
        boot_id: &[u8],
        store: &Store,
        resumption: &Resumption,
    ) -> Self {
        let buffered = modes.contains(WalMode::Buffered);
        let log_durability = LogDurability {
            unlogged: modes.contains(WalMode::None),
            buffered_boot_id: buffered.then(|| boot_id.to_vec()),
        };
        let mut opening = Effects::new();
        if let Some(revision) = resumption.restart_revision {
            opening.extend([Effect::Revision(revision), Effect::Compacted { revision }]);
        }
        if resumption.renewals_lost {
            opening.push(Effect::AllLeasesRenewed { at_ms: store.clock_ms() });
        }
        // Spans whose mode is now `WalMode::None`, but whose keys are on disk from a time
        // when they were logged.
        let no_longer_logged = modes
            .unlogged()
            .into_iter()
            .filter(|span| contains_keys(store, span))
            .collect::<Vec<_>>();
        let incomplete = !no_longer_logged.is_empty();
        let removal = |(key, range_end)| Effect::SpanRemoved { key, range_end };
        opening.extend(no_longer_logged.into_iter().map(removal));
        opening.push(Effect::Opened(log_durability.clone()));
        let written = store.revision() + BOUND_STEP;
        opening.push(Effect::VisibleBound(written));
        Journal {
            log,
            modes,
            log_durability,
            opening,
            visible_bound: VisibleBound { written, ..VisibleBound::default() },
            incomplete,
            renewals_unlogged: false,
            clock_ms: store.clock_ms(),
            payload: Vec::new(),
            sync: false,
            counted_bytes: 0,
        }
    }

    /// Logs the opening effects of this process, unless they are logged already. If the
    /// disk is full, nothing is logged, and the caller may call it again.
    pub(crate) fn log_opening(&mut self) -> Result<(), Error> {
        if self.opening.is_empty() {
            return Ok(());
        }
        encode(&self.opening, &mut self.payload);
        self.log.reserve(self.payload.len() as u64)?;
        self.log.reserve_sync()?;
        self.log.append(&self.payload)?;
        self.log.sync()?;
        self.visible_bound.durable = self.visible_bound.written;
        self.opening.clear();
        self.log.clear_failure()
    }

    /// Reserves space for a batch whose effects have at most `bytes` bytes, and ensures
    /// that revisions up to `last_revision` may be published.
    pub(crate) fn reserve(&mut self, bytes: u64, last_revision: i64) -> Result<(), Error> {
        self.log_opening()?;
        if self.may_lose_published() && last_revision > self.visible_bound.durable {
            self.raise_visible_bound(last_revision)?;
        }
        self.log.reserve(bytes + EXTRA_BYTES)?;
        match self.modes.contains(WalMode::Fsync) {
            true => self.log.reserve_sync(),
            false => Ok(()),
        }
    }

    /// Whether [`Journal::reserve`] with the same arguments waits for the disk.
    pub(crate) fn reserve_waits(&self, bytes: u64, last_revision: i64) -> bool {
        let bound_too_low =
            || self.may_lose_published() && last_revision > self.visible_bound.durable;
        !self.opening.is_empty()
            || bound_too_low() && !self.has_durable_bound(last_revision)
            || self.log.reserve_waits(bytes + EXTRA_BYTES)
    }

    /// Whether the newest bound in the log is durable and allows `revision`.
    fn has_durable_bound(&self, revision: i64) -> bool {
        self.visible_bound.written >= revision && self.log.durable() >= self.visible_bound.record
    }

    /// Whether a crash may lose published changes.
    fn may_lose_published(&self) -> bool {
        self.log_durability.unlogged || self.log_durability.buffered_boot_id.is_some()
    }

    /// Makes a visible-revision bound of at least `revision` durable.
    fn raise_visible_bound(&mut self, revision: i64) -> Result<(), Error> {
        if self.visible_bound.written < revision {
            let written = revision + BOUND_STEP;
            encode(&[Effect::VisibleBound(written)], &mut self.payload);
            self.log.append(&self.payload)?;
            self.visible_bound =
                VisibleBound { written, record: self.log.last(), ..self.visible_bound };
        }
        if self.log.durable() < self.visible_bound.record {
            self.log.sync()?;
        }
        self.visible_bound.durable = self.visible_bound.written;
        Ok(())
    }

    /// Encodes the effects of a batch that must be logged, for the next
    /// [`Journal::write`]. Returns whether there are any.
    pub(crate) fn prepare(&mut self, effects: &Effects, position: StorePosition) -> bool {
        self.payload.clear();
        self.sync = false;
        for effect in effects {
            match self.modes.of_effect(effect) {
                WalMode::None => {
                    self.incomplete = true;
                    continue;
                }
                WalMode::Buffered => {}
                WalMode::Fsync => self.sync = true,
            }
            effect.encode(&mut self.payload);
        }
        if !self.payload.is_empty() {
            self.add_clock_and_bound(position);
        }
        !self.payload.is_empty()
    }

    /// Adds to the payload the store time and a higher visible-revision bound, each if it
    /// is due.
    fn add_clock_and_bound(&mut self, position: StorePosition) {
        if position.has_leases && position.clock_ms - self.clock_ms >= CLOCK_IN_BATCH_MS {
            Effect::Clock { ms: position.clock_ms }.encode(&mut self.payload);
            self.clock_ms = position.clock_ms;
        }
        if self.may_lose_published()
            && position.revision + BOUND_STEP / 2 > self.visible_bound.written
        {
            let written = position.revision + BOUND_STEP;
            Effect::VisibleBound(written).encode(&mut self.payload);
            self.visible_bound =
                VisibleBound { written, record: self.log.last() + 1, ..self.visible_bound };
        }
    }

    /// Writes the prepared effects and syncs if required. Fails with
    /// [`Error::NoSpace`] only if the space was not reserved.
    pub(crate) fn write(&mut self) -> Result<(), Error> {
        self.log.append(&self.payload)?;
        if self.sync { self.log.sync() } else { Ok(()) }
    }

    /// Returns by how many bytes the log has grown since the last call.
    pub(crate) fn take_growth(&mut self) -> u64 {
        let appended = self.log.appended_bytes();
        appended - std::mem::replace(&mut self.counted_bytes, appended)
    }

    /// Returns the total size of the records that this process has appended, in bytes.
    #[cfg(test)]
    pub(crate) fn appended_bytes(&self) -> u64 {
        self.log.appended_bytes()
    }

    /// Frees the memory that a large batch used beyond `bytes` bytes.
    pub(crate) fn shrink_buffer(&mut self, bytes: usize) {
        self.payload.clear();
        self.payload.shrink_to(bytes);
    }

    /// Notes that lease renewals are acknowledged without being logged, because the disk
    /// is full. The first call writes into the spare room of the log: an effect that renews
    /// all leases. Until [`Journal::take_unlogged_renewals`], no later store time is logged
    /// without such an effect. After a crash, leases may therefore expire late, but not early.
    /// Fails if the log fails.
    pub(crate) fn set_renewals_unlogged(&mut self, at_ms: i64) -> Result<(), Error> {
        if std::mem::replace(&mut self.renewals_unlogged, true) {
            return Ok(());
        }
        let renewed = Effect::AllLeasesRenewed { at_ms };
        let sync = self.modes.of_effect(&renewed) == WalMode::Fsync;
        encode(&[renewed], &mut self.payload);
        let appended = self.log.append_spare(&self.payload);
        match appended.and_then(|()| if sync { self.log.sync() } else { Ok(()) }) {
            // The spare room is used up, for example by an earlier process, so the effect is
            // not logged: after a crash, renewed leases may expire early. Or `HEAD` has no
            // space: then the sync is tried again before the next command.
            Err(Error::NoSpace { .. }) => Ok(()),
            appended => appended,
        }
    }

    /// Returns an effect that renews all leases, if renewals were acknowledged without
    /// being logged. A snapshot needs it, because it contains the store time.
    pub(crate) fn unlogged_renewals(&self, at_ms: i64) -> Option<Effect> {
        self.renewals_unlogged.then_some(Effect::AllLeasesRenewed { at_ms })
    }

    /// Returns an effect that renews all leases, if renewals were acknowledged without
    /// being logged. The caller must log it.
    pub(crate) fn take_unlogged_renewals(&mut self, at_ms: i64) -> Option<Effect> {
        let unlogged = std::mem::take(&mut self.renewals_unlogged);
        unlogged.then_some(Effect::AllLeasesRenewed { at_ms })
    }

    /// Does the work that waits until the store is idle. Logs store time if it is due, unless
    /// lease renewals are unlogged: leases would expire early after a crash. If the newest record is durable but no later record says so, appends an empty record,
    /// which says so. Recovery can then distinguish damage to the newest record from an
    /// unfinished write.
    pub(crate) fn on_idle(&mut self, position: StorePosition) -> Result<(), Error> {
        self.log_opening()?;
        let is_due = position.clock_ms - self.clock_ms >= CLOCK_IDLE_MS;
        if position.has_leases && is_due && !self.renewals_unlogged {
            encode(&[Effect::Clock { ms: position.clock_ms }], &mut self.payload);
            self.log.append(&self.payload)?;
            self.clock_ms = position.clock_ms;
        }
        self.log.append_durability_proof()
    }

    /// Appends a record without effects.
    pub(crate) fn append_empty(&mut self) -> Result<(), Error> {
        self.log_opening()?;
        self.log.append(&[])
    }

    /// Makes everything durable. If `clean_at` is set and the opening effects are logged,
    /// it first marks a clean shutdown: with the last revision, and whether the log
    /// contains every change.
    pub(crate) fn close(&mut self, clean_at: Option<StorePosition>) -> Result<(), Error> {
        let marked = match clean_at {
            Some(StorePosition { revision, clock_ms, .. }) if self.opening.is_empty() => {
                let clean_end = Effect::Closed { revision, complete: !self.incomplete };
                let mut effects = Effects::from_iter(self.unlogged_renewals(clock_ms));
                effects.extend([Effect::Clock { ms: clock_ms }, clean_end]);
                encode(&effects, &mut self.payload);
                self.log.append(&self.payload)
            }
            _ => Ok(()),
        };
        self.log.sync()?;
        // On a full disk, neither record may have space. `HEAD` needs none.
        let proven = marked.and_then(|()| self.log.append_durability_proof());
        self.log.settle_head()?;
        proven
    }

    /// Makes the log as durable as a snapshot of all its records requires: the log may end
    /// before the snapshot only if a key has mode buffered. Without such a key, a sync after
    /// each batch leaves only records of the idle store to be synced. May wait for the disk
    /// only then, which is on the pipeline's thread (see [`crate::executor`]).
    pub(crate) fn sync_for_snapshot(&mut self) -> Result<(), Error> {
        let may_lose_end = self.log_durability.buffered_boot_id.is_some();
        match may_lose_end || self.log.durable() == self.log.last() {
            true => Ok(()),
            false => self.log.sync(),
        }
    }

    /// Returns the first effects of a snapshot. Recovery needs them to judge the log
    /// after the snapshot, because the records that contained them may have been removed.
    pub(crate) fn snapshot_header(&self) -> Effects {
        vec![
            Effect::Opened(self.log_durability.clone()),
            Effect::VisibleBound(self.visible_bound.written),
        ]
    }

    /// Returns a handle that syncs the log from another thread.
    pub(crate) fn syncer(&self) -> Syncer {
        self.log.syncer()
    }

    /// Returns a handle that prepares segments of the log in another thread.
    pub(crate) fn preparer(&self) -> Preparer {
        self.log.preparer()
    }

    /// Returns a handle that trims the log from another thread.
    pub(crate) fn trimmer(&self) -> Trimmer {
        self.log.trimmer()
    }

    /// Returns a handle with which a snapshot claims space on the disk.
    pub(crate) fn space_claim(&self) -> SpaceClaim {
        self.log.space_claim()
    }

    /// Whether a write or an fsync has failed. After that, the log accepts no more
    /// writes.
    pub(crate) fn has_failed(&self) -> bool {
        self.log.is_poisoned()
    }

    /// Returns the sequence of the newest record.
    pub(crate) fn last_sequence(&self) -> u64 {
        self.log.last()
    }
}

/// Encodes effects as the payload of a record. Replaces the content of `payload`.
pub(crate) fn encode(effects: &[Effect], payload: &mut Vec<u8>) {
    payload.clear();
    effects.iter().for_each(|effect| effect.encode(payload));
}
