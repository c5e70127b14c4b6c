//! Atomic replacement of a small file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Extension of the new content until it replaces the old one.
const NEW_EXTENSION: &str = "new";

/// Replaces the content of the file at `path` atomically and durably: after a crash, the
/// file has either the old or the new content. Creates the file if it is missing. If this
/// fails, the new content takes no space.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = path.with_extension(NEW_EXTENSION);
    let replaced = write_new(&new, content).and_then(|()| fs::rename(&new, path));
    if replaced.is_err() {
        let _ = fs::remove_file(&new);
    }
    replaced.and_then(|()| sync_parent(path))
}

fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Makes the entry of `path` in its directory durable.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => File::open(parent)?.sync_all(),
        None => File::open(".")?.sync_all(),
    }
}
