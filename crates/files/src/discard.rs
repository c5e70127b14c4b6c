//! Removal of large files in steps.
//!
//! Unlinking a file frees all its page-cache pages at once. The kernel runs no other
//! thread on that core until this is done: 17 ms for a log segment of 64 MiB, about 330
//! ms for a snapshot of 2 GiB. Therefore the file is first truncated in steps.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;
use std::time::Duration;

/// Extension of a file that is being removed. Readers of the directory ignore it.
const DISCARDED: &str = "discarded";
/// Bytes that one step truncates; takes about half a millisecond.
const STEP: u64 = 2 << 20;
/// Pause between two steps.
const REST: Duration = Duration::from_micros(500);

/// Removes the file at `path` in steps. A crash leaves the file either unchanged or
/// under a name that [`sweep`] removes.
pub fn discard(path: &Path) -> io::Result<()> {
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

/// Removes the files in `directory` whose removal a crash interrupted.
pub fn sweep(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == DISCARDED) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_the_file_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let large = dir.path().join("large");
        fs::write(&large, vec![1; 2 * STEP as usize + 5]).unwrap();
        fs::write(dir.path().join("other"), "stays").unwrap();
        discard(&large).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(
            discard(&large).unwrap_err().kind(),
            io::ErrorKind::NotFound,
            "the file is removed"
        );
        // A crash interrupted the removal.
        fs::write(dir.path().join("00.wal.discarded"), "rest").unwrap();
        sweep(dir.path()).unwrap();
        assert_eq!(fs::read(dir.path().join("other")).unwrap(), b"stays");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
