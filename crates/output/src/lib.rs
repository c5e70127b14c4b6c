//! How a program prints what it has found: for people, or as JSON.

use std::io::{self, ErrorKind, Write};

use clap::ValueEnum;
use serde::Serialize;

/// How a result is printed.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    Json,
    Text,
}

impl Output {
    /// Prints `result` to standard output: itself as JSON, or what `render` makes of it.
    pub fn print<R: Serialize>(
        self,
        result: &R,
        render: impl FnOnce(&R) -> String,
    ) -> io::Result<()> {
        self.write(io::stdout().lock(), result, render)
    }

    fn write<R: Serialize>(
        self,
        mut out: impl Write,
        result: &R,
        render: impl FnOnce(&R) -> String,
    ) -> io::Result<()> {
        let text = match self {
            Output::Json => serde_json::to_string_pretty(result)? + "\n",
            Output::Text => render(result),
        };
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            // Whoever reads has seen enough, as `head` has.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            written => written,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails as a pipe does, or a disk.
    struct Failing(ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn both_ways() {
        let mut out = Vec::new();
        Output::Json.write(&mut out, &[1], |_| unreachable!()).unwrap();
        Output::Text.write(&mut out, &[1], |r| format!("{} in all\n", r.len())).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "[\n  1\n]\n1 in all\n");
    }

    #[test]
    fn a_reader_that_has_seen_enough_is_no_error() {
        let write = |kind| Output::Text.write(Failing(kind), &(), |()| "text".into());
        assert!(write(ErrorKind::BrokenPipe).is_ok());
        assert_eq!(write(ErrorKind::StorageFull).unwrap_err().kind(), ErrorKind::StorageFull);
    }
}
