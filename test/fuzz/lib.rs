//! Fuzz tests of the readers of files that other programs may have written. Crates that
//! parse network input contain their own fuzz tests.
