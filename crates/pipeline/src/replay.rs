//! From the bytes of snapshot and log to the state.
//!
//! Reading, checksums and decoding take about as long as building the state, so at
//! a start they are done by two threads: one runs ahead of the other by a bounded
//! number of batches.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use mvcc::{Effect, Effects, RevisionOrder, Store};

use crate::OpenError;
use crate::continuity::{Continuity, Resumption};

/// Effects of a batch, and bytes of their payloads, about.
const BATCH_EFFECTS: usize = 1024;
const BATCH_BYTES: usize = 1 << 20;
/// Batches that the reading thread may be ahead; then it waits.
const BATCHES_AHEAD: usize = 16;
/// Batches between two looks at the garbage.
const BATCHES_A_STEP: u64 = 256;
/// How often a long recovery says how far it is.
const REPORT_INTERVAL: Duration = Duration::from_secs(2);

/// Takes one payload after the other, in order.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), String>;

/// The state on its way out of the files.
#[derive(Default)]
pub(crate) struct Replay {
    store: Store,
    decoder: Decoder,
}

/// What comes before the state: effects out of payloads, and what they say beside.
#[derive(Default)]
struct Decoder {
    order: RevisionOrder,
    continuity: Continuity,
    /// The highest revision that was glanced at.
    highest: i64,
}

#[derive(Default)]
struct Batch {
    effects: Effects,
    bytes: usize,
}

impl Replay {
    /// Rebuilds the state from the payloads that `read` hands over, which are about
    /// `total_bytes`; 0 if that is not known.
    pub(crate) fn build<T: Send>(
        total_bytes: u64,
        read: impl FnOnce(Visit<'_>) -> Result<T, OpenError> + Send,
    ) -> Result<(Replay, T), OpenError> {
        let (sender, batches) = bounded(BATCHES_AHEAD);
        std::thread::scope(|scope| {
            let reader = scope.spawn(move || decode_all(&sender, read));
            let store = apply_all(&batches, total_bytes);
            let (decoder, read) = reader.join().expect("the reading thread does not panic");
            Ok((Replay { store, decoder }, read?))
        })
    }

    /// Applies one payload, or on an error nothing of it.
    pub(crate) fn record(&mut self, payload: &[u8]) -> Result<(), String> {
        let mut effects = Effects::new();
        self.decoder.decode(payload, &mut effects)?;
        effects.into_iter().for_each(|effect| apply(&mut self.store, effect));
        Ok(())
    }

    /// Takes note of the revisions that a record speaks of, and of nothing else.
    pub(crate) fn glance(&mut self, mut payload: &[u8]) {
        while let Ok(effect) = Effect::decode(&mut payload) {
            let highest = &mut self.decoder.highest;
            *highest = (*highest).max(match &effect {
                Effect::Write(record) => record.mod_revision(),
                Effect::Revision(revision) | Effect::VisibleBound(revision) => *revision,
                _ => 0,
            });
        }
    }

    /// The revision of the last change so far.
    pub(crate) fn revision(&self) -> i64 {
        self.store.revision()
    }

    /// The first revision that can be read, so far.
    pub(crate) fn compacted(&self) -> i64 {
        self.store.compacted()
    }

    /// A revision that is not before any that was read or glanced at.
    pub(crate) fn behind_all(&self) -> i64 {
        self.decoder.highest.max(self.store.revision())
    }

    /// The state from which a process on `boot_id` goes on, and how.
    pub(crate) fn resume(mut self, boot_id: &[u8]) -> (Store, Resumption) {
        let resumption = self.decoder.continuity.resume(self.store.revision(), boot_id);
        self.restart(&resumption);
        (self.store, resumption)
    }

    /// The state, as if compacted at `revision`, with every lease renewed.
    pub(crate) fn restart_at(mut self, revision: i64) -> Store {
        self.restart(&Resumption { restart: Some(revision), renewals_lost: true });
        self.store
    }

    /// The state as it was read.
    pub(crate) fn finish(mut self) -> Store {
        self.restart(&Resumption::default());
        self.store
    }

    fn restart(&mut self, resumption: &Resumption) {
        if let Some(revision) = resumption.restart {
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
    /// Appends the effects of a payload that follow what was decoded before.
    fn decode(&mut self, mut payload: &[u8], effects: &mut Effects) -> Result<(), String> {
        while !payload.is_empty() {
            let effect = Effect::decode(&mut payload).map_err(|e| e.to_string())?;
            self.order.check(&effect).map_err(|e| e.to_string())?;
            self.continuity.note(&effect);
            effects.push(effect);
        }
        Ok(())
    }
}

/// The reading thread: fills batches until there is no more.
fn decode_all<T>(
    batches: &Sender<Batch>,
    read: impl FnOnce(Visit<'_>) -> Result<T, OpenError>,
) -> (Decoder, Result<T, OpenError>) {
    let (mut decoder, mut batch) = (Decoder::default(), Batch::default());
    // The other thread takes batches until we are gone.
    let send = |batch: &mut Batch| batches.send(std::mem::take(batch)).expect("is taken");
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

/// The other thread: builds the state.
fn apply_all(batches: &Receiver<Batch>, total_bytes: u64) -> Store {
    let mut store = Store::default();
    let mut progress = Progress::new(total_bytes);
    for (number, batch) in (1u64..).zip(batches) {
        progress.bytes += batch.bytes as u64;
        batch.effects.into_iter().for_each(|effect| apply(&mut store, effect));
        if number.is_multiple_of(BATCHES_A_STEP) {
            // What was compacted then need not fill the memory now.
            store.collect(i64::MAX, usize::MAX);
        }
        progress.report(&store);
    }
    store
}

fn apply(store: &mut Store, effect: Effect) {
    store.replay(effect).expect("the decoder has looked at the order");
}

/// Says now and then how far a recovery is.
struct Progress {
    total_bytes: u64,
    bytes: u64,
    started: Instant,
    reported: Instant,
}

impl Progress {
    fn new(total_bytes: u64) -> Self {
        let now = Instant::now();
        Progress { total_bytes, bytes: 0, started: now, reported: now }
    }

    fn report(&mut self, store: &Store) {
        if self.reported.elapsed() < REPORT_INTERVAL {
            return;
        }
        self.reported = Instant::now();
        let rate = self.bytes as f64 / self.started.elapsed().as_secs_f64();
        let total = self.total_bytes.max(self.bytes);
        let left = (total - self.bytes) as f64 / rate;
        tracing::info!(
            percent = self.bytes * 100 / total.max(1),
            mib_per_second = (rate / f64::from(1 << 20)).round(),
            seconds_left = left.ceil(),
            keys = store.stats().live_keys,
            revision = store.revision(),
            "recovering"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An effect that does not follow is reported by the thread that knows where.
    #[test]
    fn what_is_out_of_order_is_an_error_of_its_record() {
        let payload = |revision| {
            let mut payload = Vec::new();
            let record = etcdpb::Record::put(etcdpb::Key::new(b"k"), b"v", 2, revision, 1, 0);
            Effect::Write(record).encode(&mut payload);
            payload
        };
        let built = Replay::build(0, |visit| {
            visit(&payload(5)).unwrap();
            assert_eq!(visit(&payload(4)).unwrap_err(), "revision 4 follows revision 5");
            visit(&payload(6)).unwrap();
            Ok("done")
        });
        let (replay, done) = built.unwrap();
        assert_eq!((replay.revision(), done), (6, "done"));
    }
}
