//! The manifest: the list of the snapshots of a store.
//!
//! The manifest is in the data directory, beside the log. It ties snapshots to the history
//! of that directory: a snapshot that it does not list belongs to another store, or to
//! another copy of the directory. It is written before a snapshot gets its final name.
//!
//! ```text
//! format 1
//! snapshot 00000000000000000500 1f2e3d4c5b6a7988
//! snapshot 00000000000000004710 0011223344556677
//! crc32c 89abcdef
//! ```

use std::fs;
use std::io;
use std::path::Path;

use crc32c::crc32c;
use files::Error;
use files::replace::replace;

/// The format that this version writes, and the newest that it reads.
const FORMAT: u32 = 1;
/// What stands for the ID of a snapshot of an earlier version.
const NO_ID: &str = "-";

/// A snapshot that a manifest lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The last record of the log that the snapshot covers.
    pub(crate) covered: u64,
    /// The ID in the header of the snapshot; `None` for a snapshot of an earlier version,
    /// which has no ID.
    pub(crate) id: Option<u64>,
}

/// Reads the manifest at `path`. Returns `None` if it does not exist, as in data
/// directories of earlier versions. The entries are in ascending order.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<Entry>>, Error> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        content => content.map_err(Error::read(path, 0))?,
    };
    match parse(&String::from_utf8_lossy(&text)) {
        Ok(entries) => Ok(Some(entries)),
        Err(Some(found)) => {
            Err(Error::NewerFormat { path: path.to_owned(), found, supported: FORMAT })
        }
        Err(None) => {
            let reason = "it is not a valid list of snapshots".into();
            Err(Error::Corrupt { file: path.to_owned(), offset: 0, reason })
        }
    }
}

/// Replaces the manifest at `path` atomically and durably.
pub(crate) fn write(path: &Path, entries: &[Entry]) -> Result<(), Error> {
    replace(path, encode(entries).as_bytes()).map_err(Error::io("write", path))
}

fn encode(entries: &[Entry]) -> String {
    let mut text = format!("format {FORMAT}\n");
    for Entry { covered, id } in entries {
        let id = id.map_or(NO_ID.into(), |id| format!("{id:016x}"));
        text.push_str(&format!("snapshot {covered:020} {id}\n"));
    }
    let checksum = crc32c(text.as_bytes());
    text + &format!("crc32c {checksum:08x}\n")
}

/// Parses a manifest. The error is the number of a newer format, or `None` for damage.
fn parse(text: &str) -> Result<Vec<Entry>, Option<u32>> {
    let format = text.lines().next().and_then(|line| line.strip_prefix("format ")?.parse().ok());
    if let Some(newer) = format.filter(|format| *format > FORMAT) {
        return Err(Some(newer));
    }
    let entries: Vec<Entry> =
        text.lines().filter_map(|line| parse_entry(line.strip_prefix("snapshot ")?)).collect();
    // A line that was not understood is missing in the encoding.
    match encode(&entries) == text {
        true => Ok(entries),
        false => Err(None),
    }
}

fn parse_entry(line: &str) -> Option<Entry> {
    let (covered, id) = line.split_once(' ')?;
    let id = match id {
        NO_ID => None,
        id => Some(u64::from_str_radix(id, 16).ok()?),
    };
    Some(Entry { covered: covered.parse().ok()?, id })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text never changes, because existing directories contain it.
    #[test]
    fn format_is_fixed() {
        let entries = [Entry { covered: 500, id: None }, Entry { covered: 4710, id: Some(0x1d) }];
        let expected = "format 1\nsnapshot 00000000000000000500 -\n\
                        snapshot 00000000000000004710 000000000000001d\ncrc32c afb35f5c\n";
        assert_eq!(encode(&entries), expected);
        assert_eq!(parse(expected), Ok(entries.to_vec()));
        assert_eq!(parse(&encode(&[])), Ok(vec![]));
    }

    #[test]
    fn any_damage_is_refused() {
        let good = encode(&[Entry { covered: 500, id: Some(7) }]);
        for byte in 0..good.len() {
            let mut bad = good.clone().into_bytes();
            bad[byte] ^= 1;
            assert!(parse(&String::from_utf8_lossy(&bad)).is_err(), "changed byte {byte}");
            assert!(parse(&good[..byte]).is_err(), "truncated at byte {byte}");
        }
        assert_eq!(parse("format 2\n"), Err(Some(2)));
    }
}
