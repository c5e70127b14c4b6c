//! Creation of trace files.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// The file names with numbers below this one are tried.
const MAX_FILES: u32 = 10_000;

/// Creates a trace file and returns it with its path. If a regular file with this path exists,
/// uses the first free path of [`numbered`]. Opens an existing pipe or device instead of
/// creating a file.
pub fn create(path: &Path) -> io::Result<(File, PathBuf)> {
    if std::fs::metadata(path).is_ok_and(|file| !file.file_type().is_file()) {
        // Opening a pipe for writing only would block until a reader opens it.
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

/// The path of file `number`: `a/trace.jsonl.zst` for 1, `a/trace-2.jsonl.zst` for 2.
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
