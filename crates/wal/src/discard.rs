//! Removing large files without holding everybody up.
//!
//! Who unlinks a file frees its pages in the page cache, in the kernel, in one
//! go: 17 ms for a segment of the log, a third of a second for a snapshot of
//! 2 GiB, in which nobody else runs on that core. So a file is shortened in steps
//! first.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;
use std::time::Duration;

/// A file that is being removed has this appended to its name, and is none of ours
/// any more.
const DISCARDED: &str = "discarded";
/// Bytes that a file is shortened by at a time: half a millisecond's work.
const STEP: u64 = 2 << 20;
/// Rest between two steps.
const REST: Duration = Duration::from_micros(500);

/// Removes a file of which nothing is needed any more. A crash leaves it as it is,
/// or under a name that [`sweep`] knows.
pub(crate) fn discard(path: &Path) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(DISCARDED);
    let discarded = Path::new(&name);
    fs::rename(path, discarded)?;
    let file = OpenOptions::new().write(true).open(discarded)?;
    let mut len = file.metadata()?.len();
    while len > STEP {
        len -= STEP;
        file.set_len(len)?;
        std::thread::sleep(REST);
    }
    drop(file);
    fs::remove_file(discarded)
}

/// Removes what a crash left of files that were being removed from a directory.
pub(crate) fn sweep(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|found| found == DISCARDED) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_file_goes_and_nothing_else_does() {
        let dir = tempfile::tempdir().unwrap();
        let large = dir.path().join("large");
        fs::write(&large, vec![1; 2 * STEP as usize + 5]).unwrap();
        fs::write(dir.path().join("other"), "stays").unwrap();
        discard(&large).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(
            discard(&large).unwrap_err().kind(),
            io::ErrorKind::NotFound,
            "there is nothing to remove"
        );
        // After a crash in the middle.
        fs::write(dir.path().join("00.wal.discarded"), "rest").unwrap();
        sweep(dir.path()).unwrap();
        assert_eq!(fs::read(dir.path().join("other")).unwrap(), b"stays");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
