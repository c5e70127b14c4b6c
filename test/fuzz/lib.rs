//! Fuzz tests of the code that reads files that other programs may have written: `bolt` and
//! `trace`. Crates that parse network input contain their own fuzz tests.
