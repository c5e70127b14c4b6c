//! What the applier writes to the log, and when that must be durable.
//!
//! The journal logs the effects whose key has a WAL mode with a log. The batch is synced
//! if one of them has `WalMode::Fsync`. The journal adds:
//! - once, before everything else: what this process may lose, and how it continues from
//!   the end of the last process ([`crate::continuity`]);
//! - a visible-revision bound, before it exposes a revision that a crash could lose. The
//!   bound is raised in large steps and well ahead, so that writes rarely wait;
//! - while leases exist: store time.

use files::Error;
use mvcc::{Effect, Effects, Opened, Store};
use wal::{Log, Syncer, Trimmer};

use crate::WalMode;
use crate::continuity::Resumption;
use crate::modes::{Modes, contains_keys};

/// Number of revisions by which the visible-revision bound is raised. A crash may skip as
/// many.
const BOUND_STEP: i64 = 1 << 20;
/// Space reserved for the effects that the journal adds to a batch.
const EXTRA_BYTES: u64 = 128;
/// How often store time is added to a batch.
const CLOCK_IN_BATCH_MS: i64 = 1000;
/// How often store time is written while the store is idle.
const CLOCK_IDLE_MS: i64 = 5000;

/// Writes the effects of the applier to the log.
pub(crate) struct Journal {
    log: Log,
    modes: Modes,
    opened: Opened,
    /// Effects that must be logged before anything else; empty once they are.
    opening: Effects,
    visible_bound: VisibleBound,
    /// Whether the store contains changes that are not logged.
    incomplete: bool,
    /// Whether lease renewals were acknowledged that are not logged.
    renewals_unlogged: bool,
    /// The newest store time in the log.
    clock_ms: i64,
    payload: Vec<u8>,
    /// Whether the payload must be synced.
    sync: bool,
}

/// The visible-revision bound: no revision above it may be exposed.
#[derive(Default)]
struct VisibleBound {
    /// The newest bound that is durable.
    durable: i64,
    /// The newest bound in the log.
    written: i64,
    /// The record of `written`.
    record: u64,
}

/// The state of the store at which something is logged.
#[derive(Clone, Copy)]
pub(crate) struct StorePosition {
    /// The newest revision.
    pub(crate) revision: i64,
    /// Store time in milliseconds.
    pub(crate) clock_ms: i64,
    /// Whether leases exist; only then store time is logged.
    pub(crate) has_leases: bool,
}

impl Journal {
    /// Continues `log`. `store` is the recovered state after `resumption`.
    pub(crate) fn new(
        log: Log,
        modes: Modes,
        boot_id: &[u8],
        store: &Store,
        resumption: &Resumption,
    ) -> Self {
        let buffered = modes.any(WalMode::Buffered);
        let opened = Opened {
            unlogged: modes.any(WalMode::None),
            buffered_on: buffered.then(|| boot_id.to_vec()),
        };
        let mut opening = Effects::new();
        if let Some(revision) = resumption.restart {
            opening.extend([Effect::Revision(revision), Effect::Compacted { revision }]);
        }
        if resumption.renewals_lost {
            opening.push(Effect::AllLeasesRenewed { at_ms: store.clock_ms() });
        }
        // Spans that are no longer logged, but whose keys the log contains from an
        // earlier mode.
        let no_longer_logged = modes
            .unlogged()
            .into_iter()
            .filter(|span| contains_keys(store, span))
            .collect::<Vec<_>>();
        let incomplete = !no_longer_logged.is_empty();
        let forgotten = |(key, range_end)| Effect::SpanRemoved { key, range_end };
        opening.extend(no_longer_logged.into_iter().map(forgotten));
        opening.push(Effect::Opened(opened.clone()));
        let written = store.revision() + BOUND_STEP;
        opening.push(Effect::VisibleBound(written));
        Journal {
            log,
            modes,
            opened,
            opening,
            visible_bound: VisibleBound { written, ..VisibleBound::default() },
            incomplete,
            renewals_unlogged: false,
            clock_ms: store.clock_ms(),
            payload: Vec::new(),
            sync: false,
        }
    }

    /// Logs the start of this process, unless that is done. On a full disk it changes
    /// nothing and may be repeated.
    pub(crate) fn open(&mut self) -> Result<(), Error> {
        if self.opening.is_empty() {
            return Ok(());
        }
        encode(&self.opening, &mut self.payload);
        self.log.append(&self.payload)?;
        self.log.sync()?;
        self.visible_bound.durable = self.visible_bound.written;
        self.opening.clear();
        self.log.clear_failure()
    }

    /// Reserves space for a batch whose effects take up to `bytes`, and ensures that
    /// revisions up to `last` may be exposed.
    pub(crate) fn reserve(&mut self, bytes: u64, last: i64) -> Result<(), Error> {
        self.open()?;
        if self.may_lose_exposed() && last > self.visible_bound.durable {
            self.raise_visible_bound(last)?;
        }
        self.log.reserve(bytes + EXTRA_BYTES)
    }

    /// Whether a crash may lose changes that were exposed.
    fn may_lose_exposed(&self) -> bool {
        self.opened.unlogged || self.opened.buffered_on.is_some()
    }

    /// Makes a visible-revision bound of at least `last` durable.
    fn raise_visible_bound(&mut self, last: i64) -> Result<(), Error> {
        if self.visible_bound.written < last {
            let written = last + BOUND_STEP;
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

    /// Encodes the effects that are to be logged. Returns whether there are any.
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
            self.add_notes(position);
        }
        !self.payload.is_empty()
    }

    /// Adds store time and a higher visible-revision bound if they are due.
    fn add_notes(&mut self, position: StorePosition) {
        if position.has_leases && position.clock_ms - self.clock_ms >= CLOCK_IN_BATCH_MS {
            Effect::Clock { ms: position.clock_ms }.encode(&mut self.payload);
            self.clock_ms = position.clock_ms;
        }
        if self.may_lose_exposed()
            && position.revision + BOUND_STEP / 2 > self.visible_bound.written
        {
            let written = position.revision + BOUND_STEP;
            Effect::VisibleBound(written).encode(&mut self.payload);
            self.visible_bound =
                VisibleBound { written, record: self.log.last() + 1, ..self.visible_bound };
        }
    }

    /// Writes the prepared effects, syncs if required, and returns their bytes. After
    /// [`Error::NoSpace`] it may be repeated.
    pub(crate) fn write(&mut self) -> Result<usize, Error> {
        self.log.append(&self.payload)?;
        if self.sync {
            self.log.sync()?;
        }
        Ok(self.payload.len())
    }

    /// Frees the memory of a large batch beyond `bytes`.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        self.payload.clear();
        self.payload.shrink_to(bytes);
    }

    /// Notes that renewals are acknowledged without being logged, because the disk is
    /// full. The spare room of the log takes one effect that renews all leases: after a
    /// crash they live too long rather than too short.
    pub(crate) fn set_renewals_unlogged(&mut self, at_ms: i64) {
        if !std::mem::replace(&mut self.renewals_unlogged, true) {
            encode(&[Effect::AllLeasesRenewed { at_ms }], &mut self.payload);
            // If the spare room is used up, a crash may expire leases that were renewed.
            let _ = self.log.append_spare(&self.payload);
        }
    }

    /// Returns the effect that logs the renewals which could not be logged before.
    pub(crate) fn take_unlogged_renewals(&mut self, at_ms: i64) -> Option<Effect> {
        let unlogged = std::mem::take(&mut self.renewals_unlogged);
        unlogged.then_some(Effect::AllLeasesRenewed { at_ms })
    }

    /// When the store is idle: logs store time, and that the end of the log is durable.
    pub(crate) fn idle(&mut self, position: StorePosition) -> Result<(), Error> {
        self.open()?;
        if position.has_leases && position.clock_ms - self.clock_ms >= CLOCK_IDLE_MS {
            encode(&[Effect::Clock { ms: position.clock_ms }], &mut self.payload);
            self.log.append(&self.payload)?;
            self.clock_ms = position.clock_ms;
        }
        self.log.witness()
    }

    /// Makes everything durable. With a position, marks a clean shutdown: the log ends
    /// there and contains every exposed change.
    pub(crate) fn close(&mut self, clean_at: Option<StorePosition>) -> Result<(), Error> {
        let marked = match clean_at {
            Some(StorePosition { revision, clock_ms, .. }) if self.opening.is_empty() => {
                let clean_end = Effect::Closed { revision, complete: !self.incomplete };
                encode(&[Effect::Clock { ms: clock_ms }, clean_end], &mut self.payload);
                self.log.append(&self.payload)
            }
            _ => Ok(()),
        };
        self.log.sync()?;
        marked?;
        self.log.witness()
    }

    /// Returns the first effects of a snapshot: they hold for the log after it.
    pub(crate) fn snapshot_header(&self) -> Effects {
        vec![Effect::Opened(self.opened.clone()), Effect::VisibleBound(self.visible_bound.written)]
    }

    /// Returns a handle that syncs the log from another thread.
    pub(crate) fn syncer(&self) -> Syncer {
        self.log.syncer()
    }

    /// Returns a handle that trims the log from another thread.
    pub(crate) fn trimmer(&self) -> Trimmer {
        self.log.trimmer()
    }

    /// Whether a write or an fsync has failed; then nothing more can be written.
    pub(crate) fn has_failed(&self) -> bool {
        self.log.is_poisoned()
    }

    /// Sequence of the newest record.
    pub(crate) fn last(&self) -> u64 {
        self.log.last()
    }
}

/// Encodes effects as the payload of a record.
pub(crate) fn encode(effects: &[Effect], payload: &mut Vec<u8>) {
    payload.clear();
    effects.iter().for_each(|effect| effect.encode(payload));
}
