//! The one place that knows the order of things.
//!
//! ```text
//! propose ─▶ queue ─▶ worker, a batch at a time:
//!                      1. reserve space in the log
//!                      2. apply each command; collect effects and events
//!                      3. append the effects to the log; fsync if the mode says so
//!                      4. let readers see the new revision
//!                      5. publish the events to the watchers
//!                      6. answer the callers
//! ```
//!
//! One thread at a time takes the steps, so the order of revisions is the order of
//! the log is the order in which watchers hear. Mostly it is the thread that brings
//! the commands; where batches wait for an fsync it is one of our own, and new
//! commands gather in the queue meanwhile and share the next one ([`engine`]).
//!
//! Step 2 changes the state before step 3 has made it safe. Nobody can tell:
//! readers see revisions up to the last one *published*, in step 4, and the
//! store keeps the history to show them. If step 3 fails nothing after it ever
//! happens, and the pipeline answers every later command with the failure.
//!
//! Reads never enter the queue. Whatever was acknowledged has been published,
//! so a read at the published revision is linearizable as it stands.
//!
//! Time enters here and only here: leases run out in [`lessor`], and are then
//! revoked by a command like any other. They live by *store time* ([`clock`]),
//! which is in the log, so a restart finds them with what they had left.
//!
//! What of a batch is written, and synced, is decided key by key ([`modes`],
//! [`journal`]). What was shown and may yet be lost is bounded by a ceiling of
//! revisions that is in the log before ([`continuity`]): the revision never goes
//! back, and no revision means two things.

mod clock;
mod continuity;
mod engine;
mod error;
mod etcd_file;
mod inspection;
mod journal;
mod lessor;
mod maintenance;
mod modes;
mod options;
mod pace;
mod pipeline;
mod read;
mod recovery;
mod repair;
mod replay;
mod restore;
mod snapshotter;
mod worker;

pub use error::{Error, OpenError};
pub use inspection::{Report, check};
pub use maintenance::{Export, HistoryHash};
pub use modes::{Modes, ModesError};
pub use options::{Options, WalMode};
pub use pipeline::{Pipeline, Status};
pub use read::{Pages, Pin, RangeRead, Rest};
pub use repair::Repair;
pub use restore::{BumpTooLarge, Saved, SavedStatus};
