//! Prints results as text or JSON.

#![warn(missing_docs)]

use std::io::{self, ErrorKind, Write};

use clap::ValueEnum;
use serde::Serialize;

/// The output format.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Indented JSON.
    Json,
    /// Human-readable text.
    Text,
}

impl Output {
    /// Prints `result` to standard output: as JSON, or as the text that `render` returns. A
    /// closed pipe is not an error.
    ///
    /// # Errors
    /// Fails if the result cannot be serialized or standard output cannot be written.
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
            // The reader, such as `head`, has exited before it has read everything.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            result => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer that always fails with an error of this kind.
    struct FailingWriter(ErrorKind);

    impl Write for FailingWriter {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn both_formats_are_written() {
        let mut out = Vec::new();
        Output::Json.write(&mut out, &[1], |_| unreachable!()).unwrap();
        Output::Text.write(&mut out, &[1], |r| format!("{} in total\n", r.len())).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "[\n  1\n]\n1 in total\n");
    }

    #[test]
    fn a_closed_pipe_is_not_an_error() {
        let write = |kind| Output::Text.write(FailingWriter(kind), &(), |()| "text".into());
        assert!(write(ErrorKind::BrokenPipe).is_ok());
        assert_eq!(write(ErrorKind::StorageFull).unwrap_err().kind(), ErrorKind::StorageFull);
    }
}
