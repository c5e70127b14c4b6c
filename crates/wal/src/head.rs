//! The file `HEAD`, which names the newest segment.
//!
//! A log whose newest segment is missing looks like a shorter log. Therefore `HEAD` names
//! a segment before its first record is written, and a log that ends before that segment
//! is refused. Before the named segment is removed, `HEAD` is changed to name another
//! segment or none.

use std::io;

use crc32c::crc32c;
use files::Error;

use crate::medium::Medium;

/// File name of `HEAD`.
const NAME: &str = "HEAD";

/// Returns the first sequence of the segment that `HEAD` names; 0 if it names none, or if
/// `HEAD` is missing, as in logs of versions without `HEAD`.
pub(crate) fn read(medium: &dyn Medium) -> Result<u64, Error> {
    let path = medium.path().join(NAME);
    let content = match medium.open(NAME).and_then(|file| file.read()) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(Error::io("read", path)(error)),
    };
    let first = std::str::from_utf8(&content).ok().and_then(|text| text.get(..20)?.parse().ok());
    match first.filter(|first| encode(*first).as_bytes() == content) {
        Some(first) => Ok(first),
        None => {
            let reason = "its checksum does not match".into();
            Err(Error::Corrupt { file: path, offset: 0, reason })
        }
    }
}

/// Makes `HEAD` name the segment whose first sequence is `first`; 0 means no segment.
pub(crate) fn write(medium: &dyn Medium, first: u64) -> io::Result<()> {
    medium.replace(NAME, encode(first).as_bytes())
}

/// Returns the content of `HEAD`.
fn encode(first: u64) -> String {
    let digits = format!("{first:020}");
    let checksum = crc32c(digits.as_bytes());
    format!("{digits} {checksum:08x}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes must never change, because existing directories contain them.
    #[test]
    fn format_is_fixed() {
        assert_eq!(encode(4711), "00000000000000004711 a2c04146\n");
    }
}
