//! Nothing but tests: random files for what reads files that others may have written.
//! Crates that parse what comes from the network fuzz themselves.
