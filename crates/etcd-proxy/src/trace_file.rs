//! Creation of trace files.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// Maximum number of trace files with the same name.
const MAX_FILES: u32 = 10_000;

/// Creates a new file, or opens a pipe. If the file exists, the next free name is used:
/// see [`numbered`]. Returns the file and its path.
pub fn create(path: &Path) -> io::Result<(File, PathBuf)> {
    if std::fs::metadata(path).is_ok_and(|file| !file.file_type().is_file()) {
        // Opening for reading as well does not block if the pipe has no reader.
        return Ok((OpenOptions::new().read(true).write(true).open(path)?, path.into()));
    }
    for number in 1..MAX_FILES {
        let path = numbered(path, number);
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            opened => return Ok((opened?, path)),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// The path for file number `number`: `a/trace.jsonl.zst`, `a/trace-2.jsonl.zst`, …
fn numbered(path: &Path, number: u32) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (stem, extension) =
        name.split_once('.').map_or((&*name, ""), |(stem, extension)| (stem, extension));
    match number {
        1 => path.into(),
        _ if extension.is_empty() => path.with_file_name(format!("{stem}-{number}")),
        _ => path.with_file_name(format!("{stem}-{number}.{extension}")),
    }
}
