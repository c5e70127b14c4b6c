//! Deliberate faults, which exist only in the tests of this crate. The simulator must notice each
//! of them; otherwise it would not notice such a mistake either.

#[cfg(test)]
use std::cell::Cell;

/// A deliberate fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A leader that loses its leadership does not undo what it has evaluated.
    NoUndo,
    /// A new leader evaluates commands before its first entry is applied.
    EvaluateBeforeFirstEntry,
    /// A proposal that was evaluated on another state is accepted.
    StaleEvaluation,
    /// A member without disk keeps its identity when it restarts.
    ReusedIdentity,
    /// A member that lost its disk cache in a crash of the machine keeps its identity.
    ReusedIdentityAfterReboot,
    /// Messages to another identity are accepted.
    WrongReceiver,
    /// Entries and votes count as written before they are.
    PersistedAtOnce,
    /// Responses are sent before what they promise is written.
    SendBeforeWrite,
    /// A proposal counts as committed when any entry with its index is.
    OutcomeByIndex,
    /// A read is served without asking a majority.
    ReadWithoutQuorum,
    /// A read is served before the replica has applied what it must see.
    ReadBeforeApply,
    /// All requests for the index of a read have the same context.
    ReusedReadContext,
    /// A snapshot is described by the commit index instead of the applied one.
    SnapshotOfUnappliedEntries,
    /// A learner is promoted before it has the log.
    PromoteWithoutLog,
    /// A change of the members is proposed while another one is not applied.
    ChangeWhilePending,
}

/// All faults.
#[cfg(test)]
pub(crate) const ALL: &[Fault] = &[
    Fault::NoUndo,
    Fault::EvaluateBeforeFirstEntry,
    Fault::StaleEvaluation,
    Fault::ReusedIdentity,
    Fault::ReusedIdentityAfterReboot,
    Fault::WrongReceiver,
    Fault::PersistedAtOnce,
    Fault::SendBeforeWrite,
    Fault::OutcomeByIndex,
    Fault::ReadWithoutQuorum,
    Fault::ReadBeforeApply,
    Fault::ReusedReadContext,
    Fault::SnapshotOfUnappliedEntries,
    Fault::PromoteWithoutLog,
    Fault::ChangeWhilePending,
];

#[cfg(test)]
thread_local! {
    static ACTIVE: Cell<Option<Fault>> = const { Cell::new(None) };
}

/// Whether the fault is active in this thread.
#[cfg(test)]
pub(crate) fn is_active(fault: Fault) -> bool {
    ACTIVE.get() == Some(fault)
}

/// Without tests, there are no faults.
#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn is_active(_: Fault) -> bool {
    false
}

/// Activates a fault in this thread.
#[cfg(test)]
pub(crate) fn activate(fault: Option<Fault>) {
    ACTIVE.set(fault);
}
