//! Builds a store from the payloads of a snapshot and a log.
//!
//! At startup, two threads share the work, because reading, verifying and decoding take
//! about as long as building the store. The reading thread runs ahead of the building
//! thread by a bounded number of batches.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use files::PayloadError;
use mvcc::{DecodeEffectError, Effect, Effects, RevisionOrder, Store};

use crate::OpenError;
use crate::continuity::{Continuity, Resumption};

/// A batch ends with the payload that brings it to at least this many effects.
const BATCH_EFFECTS: usize = 1024;
/// A batch ends with the payload that brings its payloads to at least this size in bytes.
const BATCH_BYTES: usize = 1 << 20;
/// Maximum number of batches by which the reading thread may be ahead of the building
/// thread.
const BATCHES_AHEAD: usize = 16;
/// Number of batches between two garbage collections.
const BATCHES_PER_COLLECTION: u64 = 256;
/// Interval at which a long recovery logs its progress.
const REPORT_INTERVAL: Duration = Duration::from_secs(2);

/// A function that gets the payloads in order.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), PayloadError>;

/// A store that is built from payloads.
#[derive(Default)]
pub(crate) struct StoreBuilder {
    store: Store,
    decoder: Decoder,
}

/// Decodes payloads to effects, checks the order of their revisions, and observes what
/// they imply for continuity.
#[derive(Default)]
struct Decoder {
    order: RevisionOrder,
    continuity: Continuity,
    /// The highest revision in payloads that were not applied
    /// ([`StoreBuilder::add_revisions`]).
    highest_unapplied: i64,
}

/// The effects that the reading thread sends to the building thread at a time.
#[derive(Default)]
struct Batch {
    effects: Effects,
    /// Size of the payloads in bytes.
    bytes: usize,
}

impl StoreBuilder {
    /// Builds a store from the payloads that `read` passes to its visitor. `total_bytes`
    /// is their approximate size, for the log of the progress; 0 if it is unknown. Also
    /// returns the result of `read`.
    pub(crate) fn build<T: Send>(
        total_bytes: u64,
        read: impl FnOnce(Visit<'_>) -> Result<T, OpenError> + Send,
    ) -> Result<(StoreBuilder, T), OpenError> {
        let (sender, batches) = bounded(BATCHES_AHEAD);
        std::thread::scope(|scope| {
            let reader = scope.spawn(move || decode_all(&sender, read));
            let store = apply_all(&batches, total_bytes);
            let (decoder, read) = reader.join().expect("the reading thread does not panic");
            Ok((StoreBuilder { store, decoder }, read?))
        })
    }

    /// Applies one payload. On an error, it applies none of the effects in the payload.
    pub(crate) fn add(&mut self, payload: &[u8]) -> Result<(), PayloadError> {
        let mut effects = Effects::new();
        self.decoder.decode(payload, &mut effects)?;
        effects.into_iter().for_each(|effect| apply(&mut self.store, effect));
        Ok(())
    }

    /// Includes the revisions in a payload in [`StoreBuilder::highest_revision`], without
    /// applying the payload. Fails only if the payload has an effect of a newer version.
    pub(crate) fn add_revisions(&mut self, mut payload: &[u8]) -> Result<(), PayloadError> {
        while !payload.is_empty() {
            let effect = match Effect::decode(&mut payload) {
                Ok(effect) => effect,
                Err(error) if error.is_newer() => return Err(payload_error(error)),
                Err(_) => break,
            };
            let highest = &mut self.decoder.highest_unapplied;
            *highest = (*highest).max(match &effect {
                Effect::Write(record) => record.mod_revision(),
                Effect::Revision(revision) | Effect::VisibleBound(revision) => *revision,
                _ => 0,
            });
        }
        Ok(())
    }

    /// Returns the revision of the last applied change.
    pub(crate) fn revision(&self) -> i64 {
        self.store.revision()
    }

    /// Returns the compacted revision.
    pub(crate) fn compacted(&self) -> i64 {
        self.store.compacted()
    }

    /// Returns the highest revision in any payload, whether it was applied or not.
    pub(crate) fn highest_revision(&self) -> i64 {
        self.decoder.highest_unapplied.max(self.store.revision())
    }

    /// Returns the store from which a process on a machine with the boot ID `boot_id`
    /// continues, and how it differs from the payloads.
    pub(crate) fn resume(mut self, boot_id: &[u8]) -> (Store, Resumption) {
        let resumption = self.decoder.continuity.resume(self.store.revision(), boot_id);
        self.apply_resumption(&resumption);
        (self.store, resumption)
    }

    /// Returns the store at `revision`, compacted there, with every lease renewed.
    pub(crate) fn finish_compacted_at(mut self, revision: i64) -> Store {
        self.apply_resumption(&Resumption {
            restart_revision: Some(revision),
            renewals_lost: true,
        });
        self.store
    }

    /// Returns the store without further changes.
    pub(crate) fn finish(mut self) -> Store {
        self.apply_resumption(&Resumption::default());
        self.store
    }

    /// Applies `resumption` to the store, and frees the history that is then unreadable.
    fn apply_resumption(&mut self, resumption: &Resumption) {
        if let Some(revision) = resumption.restart_revision {
            apply(&mut self.store, Effect::Revision(revision));
            apply(&mut self.store, Effect::Compacted { revision });
        }
        if resumption.renewals_lost {
            let at_ms = self.store.clock_ms();
            apply(&mut self.store, Effect::AllLeasesRenewed { at_ms });
        }
        while self.store.collect(i64::MAX, usize::MAX) {}
    }
}

impl Decoder {
    /// Appends the effects of a payload to `effects`. Fails if an effect is damaged or
    /// out of order.
    fn decode(&mut self, mut payload: &[u8], effects: &mut Effects) -> Result<(), PayloadError> {
        while !payload.is_empty() {
            let effect = Effect::decode(&mut payload).map_err(payload_error)?;
            let ordered = self.order.check(&effect);
            ordered.map_err(|error| PayloadError::Damaged(error.to_string()))?;
            self.continuity.observe(&effect);
            effects.push(effect);
        }
        Ok(())
    }
}

/// Converts the error of an effect in an intact record.
fn payload_error(error: DecodeEffectError) -> PayloadError {
    match error.is_newer() {
        true => PayloadError::Newer(error.to_string()),
        false => PayloadError::Damaged(error.to_string()),
    }
}

/// The work of the reading thread: decodes all payloads to batches.
fn decode_all<T>(
    batches: &Sender<Batch>,
    read: impl FnOnce(Visit<'_>) -> Result<T, OpenError>,
) -> (Decoder, Result<T, OpenError>) {
    let (mut decoder, mut batch) = (Decoder::default(), Batch::default());
    // The building thread receives until this thread drops the sender.
    let send =
        |batch: &mut Batch| batches.send(std::mem::take(batch)).expect("the receiver is alive");
    let read = read(&mut |payload| {
        decoder.decode(payload, &mut batch.effects)?;
        batch.bytes += payload.len();
        if batch.effects.len() >= BATCH_EFFECTS || batch.bytes >= BATCH_BYTES {
            send(&mut batch);
        }
        Ok(())
    });
    send(&mut batch);
    (decoder, read)
}

/// The work of the building thread: applies all batches to a store.
fn apply_all(batches: &Receiver<Batch>, total_bytes: u64) -> Store {
    let mut store = Store::default();
    let mut progress = RecoveryProgress::new(total_bytes);
    for (number, batch) in (1u64..).zip(batches) {
        progress.bytes += batch.bytes as u64;
        batch.effects.into_iter().for_each(|effect| apply(&mut store, effect));
        if number.is_multiple_of(BATCHES_PER_COLLECTION) {
            // Free the history that the log has compacted so far, to limit the memory.
            store.collect(i64::MAX, usize::MAX);
        }
        progress.report(&store);
    }
    store
}

fn apply(store: &mut Store, effect: Effect) {
    store.replay(effect).expect("the decoder has checked the order");
}

/// Logs the progress of a long recovery.
struct RecoveryProgress {
    total_bytes: u64,
    /// Size of the applied payloads in bytes.
    bytes: u64,
    started: Instant,
    reported: Instant,
}

impl RecoveryProgress {
    fn new(total_bytes: u64) -> Self {
        let now = Instant::now();
        RecoveryProgress { total_bytes, bytes: 0, started: now, reported: now }
    }

    /// Logs the progress if the last report is at least [`REPORT_INTERVAL`] old.
    fn report(&mut self, store: &Store) {
        if self.reported.elapsed() < REPORT_INTERVAL {
            return;
        }
        self.reported = Instant::now();
        let rate = self.bytes as f64 / self.started.elapsed().as_secs_f64();
        let total = self.total_bytes.max(self.bytes);
        let seconds_left = (total - self.bytes) as f64 / rate;
        tracing::info!(
            percent = self.bytes * 100 / total.max(1),
            mib_per_second = (rate / f64::from(1 << 20)).round(),
            seconds_left = seconds_left.ceil(),
            keys = store.stats().live_keys,
            revision = store.revision(),
            "recovering the store"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The visitor, which runs on the reading thread, returns the error of an effect out
    /// of order: only its caller knows the file and the offset.
    #[test]
    fn an_effect_out_of_order_fails_the_visit_of_its_payload() {
        let payload = |revision| {
            let mut payload = Vec::new();
            let record = etcdpb::Record::put(b"k", b"v", 2, revision, 1, 0);
            Effect::Write(record).encode(&mut payload);
            payload
        };
        let built = StoreBuilder::build(0, |visit| {
            visit(&payload(5)).unwrap();
            let damaged = PayloadError::Damaged("revision 4 follows the higher revision 5".into());
            assert_eq!(visit(&payload(4)).unwrap_err(), damaged);
            visit(&payload(6)).unwrap();
            Ok("done")
        });
        let (builder, done) = built.unwrap();
        assert_eq!((builder.revision(), done), (6, "done"));
    }
}
