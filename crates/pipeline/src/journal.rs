//! What the worker writes down, and when that must be on the disk.
//!
//! Of the effects of a batch those are logged whose key has a mode with a log,
//! and the batch is synced if one of them asks for it. What else must be in the
//! log rides along, or goes ahead:
//! - before anything else, once, what this process may lose and how it goes on
//!   from where the last one ended ([`crate::continuity`]);
//! - before a revision is shown that a crash could take back, a ceiling above it.
//!   It is raised in large steps, and well ahead, so that nobody waits;
//! - while there are leases, how long the store has been running.

use mvcc::{Effect, Effects, Opened, Store};
use wal::{Error, Log, Syncer, Trimmer};

use crate::WalMode;
use crate::continuity::Resumption;
use crate::modes::{Modes, concerns};

/// Revisions that are reserved at a time. A crash costs as many.
const CEILING_STEP: i64 = 1 << 20;
/// Room for what rides along with a batch.
const EXTRA_BYTES: u64 = 128;
/// How often the clock rides along, and how often it is written by itself.
const CLOCK_RIDES_MS: i64 = 1000;
const CLOCK_GOES_MS: i64 = 5000;

/// The log as the worker uses it.
pub(crate) struct Journal {
    log: Log,
    modes: Modes,
    opened: Opened,
    /// What must be in the log before anything else; empty once it is.
    opening: Effects,
    ceiling: Ceiling,
    /// Whether the state has something that the log does not.
    incomplete: bool,
    /// Whether renewals of leases were answered that the log does not hold.
    renewals_unlogged: bool,
    clock_ms: i64,
    payload: Vec<u8>,
    /// Whether the payload must be synced.
    sync: bool,
}

/// Revisions that may be shown.
#[derive(Default)]
struct Ceiling {
    durable: i64,
    /// The newest in the log, and its record.
    written: i64,
    record: u64,
}

/// When something is written.
#[derive(Clone, Copy)]
pub(crate) struct Moment {
    /// The newest revision.
    pub(crate) revision: i64,
    /// Store time.
    pub(crate) clock_ms: i64,
    /// Whether there are leases, to whom time matters.
    pub(crate) leases: bool,
}

impl Journal {
    /// Goes on with `log`, whose state, after `resumption`, is `store`.
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
        let logged_before =
            modes.unlogged().into_iter().filter(|span| concerns(store, span)).collect::<Vec<_>>();
        let incomplete = !logged_before.is_empty();
        let forgotten = |(key, range_end)| Effect::SpanRemoved { key, range_end };
        opening.extend(logged_before.into_iter().map(forgotten));
        opening.push(Effect::Opened(opened.clone()));
        let written = store.revision() + CEILING_STEP;
        opening.push(Effect::VisibleBound(written));
        Journal {
            log,
            modes,
            opened,
            opening,
            ceiling: Ceiling { written, ..Ceiling::default() },
            incomplete,
            renewals_unlogged: false,
            clock_ms: store.clock_ms(),
            payload: Vec::new(),
            sync: false,
        }
    }

    /// Writes how it goes on, unless that is done. A full disk is an error that
    /// leaves things as they are.
    pub(crate) fn open(&mut self) -> Result<(), Error> {
        if self.opening.is_empty() {
            return Ok(());
        }
        encode(&self.opening, &mut self.payload);
        self.log.append(&self.payload)?;
        self.log.sync()?;
        self.ceiling.durable = self.ceiling.written;
        self.opening.clear();
        self.log.forget_failure()
    }

    /// Makes sure that a batch can be written down whose effects take up to
    /// `bytes`, and that revisions up to `last` may be shown.
    pub(crate) fn reserve(&mut self, bytes: u64, last: i64) -> Result<(), Error> {
        self.open()?;
        if self.takes_back() && last > self.ceiling.durable {
            self.raise(last)?;
        }
        self.log.reserve(bytes + EXTRA_BYTES)
    }

    /// Whether a crash may take back what was shown.
    fn takes_back(&self) -> bool {
        self.opened.unlogged || self.opened.buffered_on.is_some()
    }

    fn raise(&mut self, last: i64) -> Result<(), Error> {
        if self.ceiling.written < last {
            let written = last + CEILING_STEP;
            encode(&[Effect::VisibleBound(written)], &mut self.payload);
            self.log.append(&self.payload)?;
            self.ceiling = Ceiling { written, record: self.log.last(), ..self.ceiling };
        }
        if self.log.durable() < self.ceiling.record {
            self.log.sync()?;
        }
        self.ceiling.durable = self.ceiling.written;
        Ok(())
    }

    /// Prepares what is to be written of `effects`, and says whether that is
    /// anything at all.
    pub(crate) fn prepare(&mut self, effects: &Effects, moment: Moment) -> bool {
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
            self.ride_along(moment);
        }
        !self.payload.is_empty()
    }

    fn ride_along(&mut self, moment: Moment) {
        if moment.leases && moment.clock_ms - self.clock_ms >= CLOCK_RIDES_MS {
            Effect::Clock { ms: moment.clock_ms }.encode(&mut self.payload);
            self.clock_ms = moment.clock_ms;
        }
        if self.takes_back() && moment.revision + CEILING_STEP / 2 > self.ceiling.written {
            let written = moment.revision + CEILING_STEP;
            Effect::VisibleBound(written).encode(&mut self.payload);
            self.ceiling = Ceiling { written, record: self.log.last() + 1, ..self.ceiling };
        }
    }

    /// Writes what was prepared, and returns its bytes. After [`Error::NoSpace`]
    /// it may be repeated.
    pub(crate) fn write(&mut self) -> Result<usize, Error> {
        self.log.append(&self.payload)?;
        if self.sync {
            self.log.sync()?;
        }
        Ok(self.payload.len())
    }

    /// Gives memory back that only a large batch needed.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        self.payload.clear();
        self.payload.shrink_to(bytes);
    }

    /// Notes that renewals are answered that cannot be logged now. The log keeps
    /// room for a word about it, and leases are then rather too long than too short.
    pub(crate) fn renewals_go_unlogged(&mut self, at_ms: i64) {
        if !std::mem::replace(&mut self.renewals_unlogged, true) {
            encode(&[Effect::AllLeasesRenewed { at_ms }], &mut self.payload);
            // Without even that room a crash may cost leases that were renewed.
            let _ = self.log.append_spare(&self.payload);
        }
    }

    /// What must be logged of renewals that could not be before.
    pub(crate) fn unlogged_renewals(&mut self, at_ms: i64) -> Option<Effect> {
        let unlogged = std::mem::take(&mut self.renewals_unlogged);
        unlogged.then_some(Effect::AllLeasesRenewed { at_ms })
    }

    /// In a quiet moment: writes down the time, and that the end of the log is
    /// durable.
    pub(crate) fn idle(&mut self, moment: Moment) -> Result<(), Error> {
        self.open()?;
        if moment.leases && moment.clock_ms - self.clock_ms >= CLOCK_GOES_MS {
            encode(&[Effect::Clock { ms: moment.clock_ms }], &mut self.payload);
            self.log.append(&self.payload)?;
            self.clock_ms = moment.clock_ms;
        }
        self.log.witness()
    }

    /// Makes everything durable and, with a moment, notes that this is an end in
    /// good order: nothing is written behind it, and all up to there has been done.
    pub(crate) fn end(&mut self, good: Option<Moment>) -> Result<(), Error> {
        let noted = match good {
            Some(Moment { revision, clock_ms, .. }) if self.opening.is_empty() => {
                let ended = Effect::Closed { revision, complete: !self.incomplete };
                encode(&[Effect::Clock { ms: clock_ms }, ended], &mut self.payload);
                self.log.append(&self.payload)
            }
            _ => Ok(()),
        };
        self.log.sync()?;
        noted?;
        self.log.witness()
    }

    /// The beginning of a snapshot: what holds of the log behind it.
    pub(crate) fn preface(&self) -> Effects {
        vec![Effect::Opened(self.opened.clone()), Effect::VisibleBound(self.ceiling.written)]
    }

    /// Syncs the log from another thread.
    pub(crate) fn syncer(&self) -> Syncer {
        self.log.syncer()
    }

    /// Shortens the log from another thread.
    pub(crate) fn trimmer(&self) -> Trimmer {
        self.log.trimmer()
    }

    /// Whether a write or an fsync has failed, so that nothing can be written.
    pub(crate) fn has_failed(&self) -> bool {
        self.log.is_poisoned()
    }

    /// Number of the last record.
    pub(crate) fn last(&self) -> u64 {
        self.log.last()
    }
}

/// The log's form of effects.
pub(crate) fn encode(effects: &[Effect], payload: &mut Vec<u8>) {
    payload.clear();
    effects.iter().for_each(|effect| effect.encode(payload));
}
