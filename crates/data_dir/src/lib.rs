//! The data directory of a store: its layout, its identity and its lock.
//!
//! ```text
//! LOCK        locked (flock) by the process that uses the directory
//! IDENTITY    format, cluster ID, member ID and a checksum, as text
//! MANIFEST    the snapshots of the store, as text (crate `snapshot`)
//! wal/        segments of the log (crate `wal`)
//! snap/       snapshots (crate `snapshot`), unless --snapshot-dir is set
//! ```
//!
//! # Invariants
//!
//! - At most one process uses a data directory at a time.
//! - `wal/` and `MANIFEST` are made durable before `IDENTITY`. A directory with an identity
//!   but without a log has therefore lost its log, and is refused. One without a manifest
//!   was written by an earlier version.
//! - A directory with records in its log or a snapshot in its manifest, but without an
//!   identity, has lost the identity, and is refused.
//! - `IDENTITY` has the newest format of all files in the directory. It gets a new format
//!   before any other file does, so an earlier version refuses the directory before it
//!   reads anything that it does not know.
//! - A directory with files of another program is refused. These files are not changed.

#![warn(missing_docs)]

use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt, FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use crc32c::crc32c;
pub use files::Identity;
use files::replace::{replace, sync_parent};
use files::{Error, framing, lock};

/// The format of data directories that this version writes. It also reads earlier formats,
/// and changes the directory to this one when it opens it.
const FORMAT: u32 = framing::FORMAT as u32;
/// Name of the file with the identity.
const IDENTITY: &str = "IDENTITY";
/// Name of the directory of the log.
const WAL: &str = "wal";

/// Name of the list of the store's snapshots.
const MANIFEST: &str = "MANIFEST";

/// A data directory, locked by this process until the value is dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    identity: Identity,
    /// `None` if only this process reads the directory and it has no lock file.
    _lock: Option<File>,
}

impl DataDir {
    /// Locks the directory `path`, and creates it if it is missing. A new directory gets
    /// the identity `fresh`; an existing one keeps its own. `prepare` writes further files
    /// of a new directory. The identity is written last.
    pub fn open(
        path: &Path,
        fresh: Identity,
        prepare: impl FnOnce(&DataDir) -> Result<(), Error>,
    ) -> Result<DataDir, Error> {
        let lock = create_locked(path)?;
        let opened = |identity| DataDir { path: path.to_owned(), identity, _lock: Some(lock) };
        match read_identity(path)? {
            Some(text) => {
                require_log(path)?;
                let dir = opened(parse_identity(&text, path)?);
                dir.upgrade()?;
                Ok(dir)
            }
            None => {
                refuse_foreign(path)?;
                refuse_used(path)?;
                let dir = opened(fresh);
                dir.complete(prepare)?;
                Ok(dir)
            }
        }
    }

    /// Opens the existing directory `path` for reading, and locks it against processes that
    /// write to it. Changes nothing.
    pub fn inspect(path: &Path) -> Result<DataDir, Error> {
        let identity = match read_identity(path)? {
            Some(text) => parse_identity(&text, path)?,
            None => {
                refuse_used(path)?;
                let reason = "it has no file IDENTITY".into();
                return Err(Error::Foreign { path: path.to_owned(), reason });
            }
        };
        match lock::shared(path)? {
            (true, lock) => Ok(DataDir { path: path.to_owned(), identity, _lock: lock }),
            (false, _) => Err(Error::InUse { path: path.to_owned() }),
        }
    }

    /// Locks the directory for writing, after [`DataDir::inspect`], and changes it to the
    /// current format.
    pub fn lock_for_writing(self) -> Result<DataDir, Error> {
        let DataDir { path, identity, _lock: shared } = self;
        drop(shared);
        let lock = lock_exclusive(&path)?;
        let dir = DataDir { path, identity, _lock: Some(lock) };
        dir.upgrade()?;
        Ok(dir)
    }

    /// Changes the directory to the current format, before any other file is written. This
    /// needs no space on a full disk.
    fn upgrade(&self) -> Result<(), Error> {
        let text = read_identity(&self.path)?.unwrap_or_default();
        if text == encode_identity(self.identity) {
            return Ok(());
        }
        match write_identity(&self.path, self.identity) {
            Err(error) if error.is_disk_full() => overwrite_format(&self.path, &text),
            written => written,
        }
    }

    /// Fails if the directory of the log is missing.
    pub fn require_log(&self) -> Result<(), Error> {
        require_log(&self.path)
    }

    /// Renames the directory of the log and creates an empty one. Returns the new path of
    /// the old log, if there was one.
    pub fn set_log_aside(&self) -> Result<Option<PathBuf>, Error> {
        let wal = self.log_dir();
        let renamed = wal.exists().then(|| unused_damaged_name(&wal));
        if let Some(renamed) = &renamed {
            fs::rename(&wal, renamed).map_err(Error::io("rename", &wal))?;
        }
        create_log_directory(&self.path).map_err(Error::io("create", wal))?;
        Ok(renamed)
    }

    /// Creates a data directory with the snapshots that `fill` writes. `path` must be empty
    /// or missing. The identity is written last, because a directory without it is refused:
    /// so an interrupted call leaves no usable directory.
    pub fn create_filled(
        path: &Path,
        fresh: Identity,
        fill: impl FnOnce(&DataDir) -> Result<(), Error>,
    ) -> Result<DataDir, Error> {
        if path.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
            return Err(Error::NotEmpty { path: path.to_owned() });
        }
        let lock = create_locked(path)?;
        let dir = DataDir { path: path.to_owned(), identity: fresh, _lock: Some(lock) };
        dir.complete(fill)?;
        Ok(dir)
    }

    /// Writes the files of a new directory, the identity last.
    fn complete(&self, fill: impl FnOnce(&DataDir) -> Result<(), Error>) -> Result<(), Error> {
        fill(self)?;
        create_log_directory(&self.path).map_err(Error::io("create", self.log_dir()))?;
        write_identity(&self.path, self.identity)
    }

    /// Renames the damaged manifest. Returns its new path.
    pub fn set_manifest_aside(&self) -> Result<PathBuf, Error> {
        let manifest = self.manifest();
        let renamed = unused_damaged_name(&manifest);
        fs::rename(&manifest, &renamed).map_err(Error::io("rename", &manifest))?;
        sync_parent(&manifest).map_err(Error::io("fsync", &self.path))?;
        Ok(renamed)
    }

    /// Returns the IDs of the store.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns the default directory of the snapshots.
    pub fn snapshot_dir(&self) -> PathBuf {
        self.path.join("snap")
    }

    /// Returns the path of the list of the store's snapshots.
    pub fn manifest(&self) -> PathBuf {
        self.path.join(MANIFEST)
    }

    /// Returns the directory of the log.
    pub fn log_dir(&self) -> PathBuf {
        self.path.join(WAL)
    }
}

/// Returns an unused path, next to `path`, to which damaged content can be renamed.
pub fn unused_damaged_name(path: &Path) -> PathBuf {
    let numbered = |n: u32| match n {
        1 => format!("{}.damaged", path.display()),
        n => format!("{}.damaged.{n}", path.display()),
    };
    (1..)
        .map(|n| PathBuf::from(numbered(n)))
        .find(|name| !name.exists())
        .expect("a directory cannot contain all names")
}

/// Creates `path` if it is missing, and locks it.
fn create_locked(path: &Path) -> Result<File, Error> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(Error::io("create data directory", path))?;
    lock_exclusive(path)
}

fn lock_exclusive(path: &Path) -> Result<File, Error> {
    lock::exclusive(path)?.ok_or_else(|| Error::InUse { path: path.to_owned() })
}

/// Creates the directory of the log, if it is missing, and makes it durable.
fn create_log_directory(path: &Path) -> std::io::Result<()> {
    fs::create_dir_all(path.join(WAL))?;
    File::open(path)?.sync_all()?;
    sync_parent(path)
}

/// Fails if the directory of the log is missing.
fn require_log(path: &Path) -> Result<(), Error> {
    let file = path.join(WAL);
    if file.is_dir() {
        return Ok(());
    }
    let reason = "the directory of the log is missing".into();
    Err(Error::Corrupt { file, offset: 0, reason })
}

/// Fails if the directory `path`, which has no identity, contains files of another
/// program.
fn refuse_foreign(path: &Path) -> Result<(), Error> {
    let foreign = |reason: String| Err(Error::Foreign { path: path.to_owned(), reason });
    if path.join("member").is_dir() {
        return foreign("it contains the data of etcd (member/)".into());
    }
    for entry in fs::read_dir(path).map_err(Error::io("list", path))? {
        let entry = entry.map_err(Error::io("list", path))?;
        // A server may listen on a socket in this directory.
        if entry.file_type().map_err(Error::io("list", path))?.is_socket() {
            continue;
        }
        let name = entry.file_name();
        // A start can leave these files if it is interrupted before it has written the
        // identity.
        let ours = [lock::NAME, "IDENTITY.new", MANIFEST, "MANIFEST.new", "lost+found", WAL];
        if !ours.iter().any(|ours| name == *ours) {
            return foreign(format!("it contains {}", name.display()));
        }
    }
    Ok(())
}

/// Fails if the directory `path`, which has no identity, contains records or lists a
/// snapshot. A start creates an empty log and an empty list before the identity.
fn refuse_used(path: &Path) -> Result<(), Error> {
    let missing = |found: &str| Error::BadIdentity {
        path: path.join(IDENTITY),
        reason: format!("is missing, but this data directory contains {found}"),
    };
    let log = fs::read_dir(path.join(WAL)).into_iter().flatten();
    if log.flatten().any(|entry| entry.file_name() != "lost+found") {
        return Err(missing("a log"));
    }
    let manifest = fs::read(path.join(MANIFEST)).unwrap_or_default();
    match String::from_utf8_lossy(&manifest).lines().any(|line| line.starts_with("snapshot")) {
        true => Err(missing("a list of snapshots")),
        false => Ok(()),
    }
}

/// Returns the content of `IDENTITY`.
fn encode_identity(identity: Identity) -> String {
    let Identity { cluster_id, member_id } = identity;
    let ids = format!("cluster_id {cluster_id:016x}\nmember_id {member_id:016x}\n");
    let checksum = crc32c(ids.as_bytes());
    format!("format {FORMAT}\n{ids}crc32c {checksum:08x}\n")
}

/// Writes `IDENTITY` atomically and durably.
fn write_identity(path: &Path, identity: Identity) -> Result<(), Error> {
    let file = path.join(IDENTITY);
    replace(&file, encode_identity(identity).as_bytes()).map_err(Error::io("write", file))
}

/// Changes the number of the format in `IDENTITY`, whose content is `text`, in place. This is
/// a single byte, so a crash cannot leave a part of the change. The checksum does not cover it.
fn overwrite_format(path: &Path, text: &str) -> Result<(), Error> {
    const { assert!(FORMAT < 10, "the number is one digit") };
    let file = path.join(IDENTITY);
    let new = FORMAT.to_string();
    let offset = text.find("format ").map_or(0, |start| start + "format ".len());
    if text[offset..].lines().next() == Some(&new) {
        return Ok(());
    }
    let overwrite = || {
        let file = File::options().write(true).open(&file)?;
        file.write_all_at(new.as_bytes(), offset as u64)?;
        file.sync_all()
    };
    overwrite().map_err(Error::io("write", &file))
}

/// Reads `IDENTITY`. Returns `None` if it does not exist.
fn read_identity(path: &Path) -> Result<Option<String>, Error> {
    let file = path.join(IDENTITY);
    match fs::read(&file) {
        Ok(content) => Ok(Some(String::from_utf8_lossy(&content).into_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", file)(error)),
    }
}

/// Parses the content of `IDENTITY`.
fn parse_identity(text: &str, path: &Path) -> Result<Identity, Error> {
    let file = path.join(IDENTITY);
    let field = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap_or("")
    };
    let bad = |reason: &str| Error::BadIdentity { path: file.clone(), reason: reason.into() };
    let format: u32 = field("format").parse().map_err(|_| bad("is malformed"))?;
    if format > FORMAT {
        return Err(Error::NewerFormat { path: file, found: format, supported: FORMAT });
    }
    let id = |name| {
        let digits = Some(field(name)).filter(|digits| digits.len() == 16)?;
        u64::from_str_radix(digits, 16).ok().filter(|id| *id != 0)
    };
    let (Some(cluster_id), Some(member_id)) = (id("cluster_id"), id("member_id")) else {
        return Err(bad("is malformed"));
    };
    let identity = Identity { cluster_id, member_id };
    // Format 1 has no checksum, and a change of the format on a full disk adds none.
    let expected = encode_identity(identity);
    match text.lines().find(|line| line.starts_with("crc32c")) {
        Some(line) if !expected.lines().any(|expected| expected == line) => {
            Err(bad("does not match its checksum"))
        }
        _ => Ok(identity),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRESH: Identity = Identity { cluster_id: 0xc, member_id: 0xa };

    #[test]
    fn open_keeps_the_identity_and_locks_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let first = DataDir::open(&path, FRESH, |_| Ok(())).unwrap();
        let second = DataDir::open(&path, FRESH, |_| Ok(())).unwrap_err();
        assert!(matches!(second, Error::InUse { .. }), "unexpected error: {second}");
        drop(first);
        let other = Identity { cluster_id: 1, member_id: 2 };
        assert_eq!(DataDir::open(&path, other, |_| Ok(())).unwrap().identity(), FRESH);
    }

    #[test]
    fn writing_changes_the_identity_to_the_current_format() {
        let dir = tempfile::tempdir().unwrap();
        drop(DataDir::open(dir.path(), FRESH, |_| Ok(())).unwrap());
        let identity = dir.path().join("IDENTITY");
        let current = fs::read_to_string(&identity).unwrap();
        let make_old = || fs::write(&identity, current.replace("format 4", "format 1")).unwrap();
        make_old();
        let inspected = DataDir::inspect(dir.path()).unwrap();
        assert_eq!(inspected.identity(), FRESH);
        assert!(fs::read_to_string(&identity).unwrap().starts_with("format 1\n"));
        drop(inspected.lock_for_writing().unwrap());
        assert_eq!(fs::read_to_string(&identity).unwrap(), current);
        make_old();
        assert_eq!(DataDir::open(dir.path(), FRESH, |_| Ok(())).unwrap().identity(), FRESH);
        assert_eq!(fs::read_to_string(&identity).unwrap(), current);
    }

    /// The text never changes, because existing directories contain it.
    #[test]
    fn format_is_fixed() {
        let expected = "format 4\ncluster_id 000000000000000c\nmember_id 000000000000000a\n\
                        crc32c 5c42e159\n";
        assert_eq!(encode_identity(FRESH), expected);
        let format_1 = "format 1\ncluster_id 000000000000000c\nmember_id 000000000000000a\n";
        for text in [expected, format_1] {
            assert_eq!(parse_identity(text, Path::new("data")).unwrap(), FRESH);
        }
    }

    /// On a full disk, only the digit of the format changes.
    #[test]
    fn a_full_disk_does_not_prevent_the_upgrade() {
        let dir = tempfile::tempdir().unwrap();
        drop(DataDir::open(dir.path(), FRESH, |_| Ok(())).unwrap());
        let identity = dir.path().join("IDENTITY");
        let current = fs::read_to_string(&identity).unwrap();
        let old: String =
            current.replace("format 4", "format 1").split_inclusive('\n').take(3).collect();
        fs::write(&identity, &old).unwrap();
        let fill_disk = || {
            std::os::unix::fs::symlink("/dev/full", dir.path().join("IDENTITY.new")).unwrap();
        };
        for _ in 0..2 {
            fill_disk();
            assert_eq!(DataDir::open(dir.path(), FRESH, |_| Ok(())).unwrap().identity(), FRESH);
            assert_eq!(fs::read_to_string(&identity).unwrap(), old.replace("format 1", "format 4"));
        }
        // With space again, the file becomes complete.
        drop(DataDir::open(dir.path(), FRESH, |_| Ok(())).unwrap());
        assert_eq!(fs::read_to_string(&identity).unwrap(), current);
    }

    /// A store never gets other IDs because of damage.
    #[test]
    fn damage_never_changes_the_identity() {
        let dir = tempfile::tempdir().unwrap();
        drop(DataDir::open(dir.path(), FRESH, |_| Ok(())).unwrap());
        let identity = dir.path().join("IDENTITY");
        let good = fs::read(&identity).unwrap();
        let check = |content: &[u8], what: String| {
            fs::write(&identity, content).unwrap();
            match DataDir::open(dir.path(), FRESH, |_| Ok(())) {
                Ok(opened) => assert_eq!(opened.identity(), FRESH, "{what}"),
                Err(Error::NewerFormat { .. }) => {}
                Err(error) => {
                    let error = error.to_string();
                    assert!(error.contains("from a backup"), "{what}: {error}");
                }
            }
        };
        for byte in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[byte] ^= 1 << bit;
                check(&bad, format!("bit {bit} of byte {byte}"));
            }
            check(&good[..byte], format!("truncated at byte {byte}"));
        }
    }

    /// A directory with a log or with snapshots is not new, even without an identity.
    #[test]
    fn a_directory_without_its_identity_is_refused() {
        for content in ["wal/HEAD", "MANIFEST"] {
            let dir = tempfile::tempdir().unwrap();
            drop(DataDir::open(dir.path(), FRESH, |_| Ok(())).unwrap());
            fs::write(dir.path().join(content), "format 1\nsnapshot 7 -\ncrc32c 0\n").unwrap();
            fs::remove_file(dir.path().join("IDENTITY")).unwrap();
            let opened = DataDir::open(dir.path(), FRESH, |_| panic!("it is not a new directory"));
            let error = opened.unwrap_err().to_string();
            assert!(error.contains("IDENTITY is missing"), "unexpected error: {error}");
            let error = DataDir::inspect(dir.path()).unwrap_err().to_string();
            assert!(error.contains("IDENTITY is missing"), "unexpected error: {error}");
        }
        // The first start was interrupted.
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("wal/lost+found")).unwrap();
        fs::write(dir.path().join("MANIFEST"), "format 1\ncrc32c 0\n").unwrap();
        DataDir::open(dir.path(), FRESH, |_| Ok(())).unwrap();
    }

    #[test]
    fn open_accepts_a_directory_with_a_socket() {
        let dir = tempfile::tempdir().unwrap();
        let _listener =
            std::os::unix::net::UnixListener::bind(dir.path().join("etcd.sock")).unwrap();
        assert_eq!(DataDir::open(dir.path(), FRESH, |_| Ok(())).unwrap().identity(), FRESH);
        let other = tempfile::tempdir().unwrap();
        fs::write(other.path().join("etcd.sock"), "").unwrap();
        assert!(DataDir::open(other.path(), FRESH, |_| Ok(())).is_err());
    }

    #[test]
    fn open_refuses_foreign_newer_and_damaged_directories() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("member")).unwrap();
        let error = DataDir::open(dir.path(), FRESH, |_| Ok(())).unwrap_err();
        assert!(error.to_string().contains("data of etcd"), "unexpected error: {error}");

        let newer = tempfile::tempdir().unwrap();
        fs::create_dir(newer.path().join(WAL)).unwrap();
        fs::write(newer.path().join("IDENTITY"), "format 9\n").unwrap();
        let error = DataDir::open(newer.path(), FRESH, |_| Ok(())).unwrap_err();
        assert!(matches!(error, Error::NewerFormat { found: 9, .. }), "unexpected error: {error}");

        let lost = tempfile::tempdir().unwrap();
        drop(DataDir::open(lost.path(), FRESH, |_| Ok(())).unwrap());
        fs::remove_dir(lost.path().join(WAL)).unwrap();
        let error = DataDir::open(lost.path(), FRESH, |_| Ok(())).unwrap_err();
        assert!(error.to_string().contains("log is missing"), "unexpected error: {error}");

        let broken = tempfile::tempdir().unwrap();
        fs::create_dir(broken.path().join(WAL)).unwrap();
        fs::write(broken.path().join("IDENTITY"), "format 1\ncluster_id 0\n").unwrap();
        assert!(DataDir::open(broken.path(), FRESH, |_| Ok(())).is_err());
    }
}
