//! The names of the files in a snapshot directory.

/// Number of digits of the covered record in a name.
const DIGITS: usize = 20;
/// Suffix of a complete snapshot.
const COMPLETE: &str = ".snap";
/// Suffix of a snapshot that is being written.
const UNFINISHED: &str = ".unfinished";
/// Suffixes of snapshots that are being removed (see [`files::discard`]).
const DISCARDED: [&str; 2] = [".snap.discarded", ".unfinished.discarded"];
/// Suffix of a snapshot that a repair has set aside; a number may follow.
const DAMAGED: &str = ".snap.damaged";

/// What a store uses a file name for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// A complete snapshot, with the last record that it covers.
    Complete(u64),
    /// An unfinished snapshot, or one whose removal was interrupted.
    Left,
    /// A file that is neither read nor removed: the lock, or a damaged snapshot that was set
    /// aside.
    Kept,
}

/// Returns the name of the snapshot that covers records up to `covered`.
pub(crate) fn complete(covered: u64) -> String {
    format!("{covered:0DIGITS$}{COMPLETE}")
}

/// Returns the name of that snapshot while it is written.
pub(crate) fn unfinished(covered: u64) -> String {
    format!("{covered:0DIGITS$}{UNFINISHED}")
}

/// Parses a file name. Returns `None` for a name that a store never gives to a file.
pub(crate) fn parse(name: &str) -> Option<Name> {
    if name == files::lock::NAME || name == "lost+found" {
        return Some(Name::Kept);
    }
    let (digits, suffix) = name.split_at_checked(DIGITS)?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let covered: u64 = digits.parse().ok().filter(|covered| *covered > 0)?;
    match suffix {
        COMPLETE => Some(Name::Complete(covered)),
        UNFINISHED => Some(Name::Left),
        _ if DISCARDED.contains(&suffix) => Some(Name::Left),
        _ => suffix.starts_with(DAMAGED).then_some(Name::Kept),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_strictly() {
        assert_eq!(parse(&complete(4710)), Some(Name::Complete(4710)));
        assert_eq!(parse(&unfinished(4710)), Some(Name::Left));
        assert_eq!(parse("00000000000000004710.snap.discarded"), Some(Name::Left));
        assert_eq!(parse("00000000000000004710.snap.damaged.2"), Some(Name::Kept));
        for foreign in [
            "backup.snap",
            "4710.snap",
            "00000000000000000000.snap",
            "+0000000000000004710.snap",
            "99999999999999999999.snap",
            "00000000000000004710.snap.old",
            "00000000000000004710",
            "backup.unfinished",
            "0000000000000000471ü.snap",
        ] {
            assert_eq!(parse(foreign), None, "{foreign}");
        }
    }
}
