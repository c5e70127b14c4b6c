//! The data directory of a store: its layout, its identity and its lock.
//!
//! ```text
//! LOCK        locked (flock) by the process that uses the directory
//! IDENTITY    format, cluster ID and member ID, as text
//! wal/        segments of the log (crate `wal`)
//! snap/       snapshots (crate `snapshot`), unless --snapshot-dir is set
//! ```
//!
//! # Invariants
//!
//! - At most one process uses a data directory.
//! - `wal/` becomes durable before `IDENTITY`. A directory with an identity but without a
//!   log has therefore lost its log, and is refused.
//! - A directory with files of another program is refused, not overwritten.

#![warn(missing_docs)]

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use files::Error;
use rustix::fs::{FlockOperation, flock};

const FORMAT: u32 = 1;
const WAL: &str = "wal";

/// The IDs of a store. Neither is zero, and both stay the same for the life of the data
/// directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// ID of the cluster.
    pub cluster_id: u64,
    /// ID of this member.
    pub member_id: u64,
}

/// A data directory, locked by this process until the value is dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    identity: Identity,
    _lock: File,
}

impl DataDir {
    /// Locks the directory `path`, which is created if it is missing. A new directory
    /// gets the identity `fresh`; an existing one keeps its own.
    pub fn open(path: &Path, fresh: Identity) -> Result<DataDir, Error> {
        let lock = create_locked(path)?;
        let identity = match fs::read_to_string(path.join("IDENTITY")) {
            Ok(text) => {
                require_log(path)?;
                parse(&text, path)?
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                refuse_foreign(path)?;
                // The log directory must be durable before the identity: see the
                // invariants above.
                create_log_directory(path).map_err(Error::io("create", path.join(WAL)))?;
                write_identity(path, fresh)?;
                fresh
            }
            Err(error) => return Err(Error::io("read", path.join("IDENTITY"))(error)),
        };
        Ok(DataDir { path: path.to_owned(), identity, _lock: lock })
    }

    /// Locks the existing directory `path`. Creates nothing but the lock file.
    pub fn existing(path: &Path) -> Result<DataDir, Error> {
        let file = path.join("IDENTITY");
        let text = fs::read_to_string(&file).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                let reason = "it has no file IDENTITY".into();
                Error::Foreign { path: path.to_owned(), reason }
            }
            _ => Error::io("read", &file)(error),
        })?;
        let lock = lock(path)?;
        Ok(DataDir { path: path.to_owned(), identity: parse(&text, path)?, _lock: lock })
    }

    /// Fails if the directory of the log is missing.
    pub fn require_log(&self) -> Result<(), Error> {
        require_log(&self.path)
    }

    /// Renames the log of the directory and creates an empty one. Returns the new path
    /// of the old log, if there was one.
    pub fn set_log_aside(&self) -> Result<Option<PathBuf>, Error> {
        let wal = self.wal();
        let aside = wal.exists().then(|| unused_damaged_name(&wal));
        if let Some(aside) = &aside {
            fs::rename(&wal, aside).map_err(Error::io("rename", &wal))?;
        }
        create_log_directory(&self.path).map_err(Error::io("create", wal))?;
        Ok(aside)
    }

    /// Creates a data directory with initial snapshots. `fill` receives the snapshot
    /// directory and writes them. `path` must be empty or missing. The identity is
    /// written last: a directory without one is not opened.
    pub fn create_filled(
        path: &Path,
        fresh: Identity,
        fill: impl FnOnce(PathBuf) -> Result<(), Error>,
    ) -> Result<DataDir, Error> {
        if path.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
            return Err(Error::NotEmpty { path: path.to_owned() });
        }
        let lock = create_locked(path)?;
        let dir = DataDir { path: path.to_owned(), identity: fresh, _lock: lock };
        fill(dir.snap())?;
        create_log_directory(path).map_err(Error::io("create", path.join(WAL)))?;
        write_identity(path, fresh)?;
        Ok(dir)
    }

    /// The IDs of the store.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The default directory of the snapshots.
    pub fn snap(&self) -> PathBuf {
        self.path.join("snap")
    }

    /// The directory of the log.
    pub fn wal(&self) -> PathBuf {
        self.path.join(WAL)
    }
}

/// Returns an unused name next to `path` for its damaged content.
pub fn unused_damaged_name(path: &Path) -> PathBuf {
    let numbered = |n: u32| match n {
        1 => format!("{}.damaged", path.display()),
        n => format!("{}.damaged.{n}", path.display()),
    };
    (1..)
        .map(|n| PathBuf::from(numbered(n)))
        .find(|name| !name.exists())
        .expect("some name is unused")
}

/// Creates `path` if it is missing, and locks it.
fn create_locked(path: &Path) -> Result<File, Error> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(Error::io("create data directory", path))?;
    lock(path)
}

fn lock(path: &Path) -> Result<File, Error> {
    let file = path.join("LOCK");
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&file)
        .map_err(Error::io("open", &file))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::InUse { path: path.to_owned() }),
        Err(error) => Err(Error::io("lock", file)(error.into())),
    }
}

fn create_log_directory(path: &Path) -> std::io::Result<()> {
    fs::create_dir_all(path.join(WAL))?;
    File::open(path)?.sync_all()?;
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => File::open(parent)?.sync_all(),
        None => File::open(".")?.sync_all(),
    }
}

fn require_log(path: &Path) -> Result<(), Error> {
    let file = path.join(WAL);
    if file.is_dir() {
        return Ok(());
    }
    let reason = "the directory of the log is missing".into();
    Err(Error::Corrupt { file, offset: 0, reason })
}

/// Refuses a directory without an identity that contains files of another program.
fn refuse_foreign(path: &Path) -> Result<(), Error> {
    let foreign = |reason: String| Err(Error::Foreign { path: path.to_owned(), reason });
    if path.join("member").is_dir() {
        return foreign("it contains the data of an etcd (member/)".into());
    }
    for entry in fs::read_dir(path).map_err(Error::io("list", path))? {
        let entry = entry.map_err(Error::io("list", path))?;
        // A server may listen on a socket in this directory.
        if entry.file_type().map_err(Error::io("list", path))?.is_socket() {
            continue;
        }
        let name = entry.file_name();
        // A start that was interrupted before the identity was written leaves these.
        if name != "LOCK" && name != "IDENTITY.new" && name != "lost+found" && name != WAL {
            return foreign(format!("it contains {}", name.display()));
        }
    }
    Ok(())
}

fn write_identity(path: &Path, identity: Identity) -> Result<(), Error> {
    let text = format!(
        "format {FORMAT}\ncluster_id {:016x}\nmember_id {:016x}\n",
        identity.cluster_id, identity.member_id
    );
    let (new, final_name) = (path.join("IDENTITY.new"), path.join("IDENTITY"));
    let write = || {
        let mut file = File::create(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &final_name)?;
        File::open(path)?.sync_all()
    };
    write().map_err(Error::io("write", &final_name))
}

fn parse(text: &str, path: &Path) -> Result<Identity, Error> {
    let file = path.join("IDENTITY");
    let field = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap_or("")
    };
    let malformed = || Error::Foreign {
        path: path.to_owned(),
        reason: format!("{} is malformed", file.display()),
    };
    let found: u32 = field("format").parse().map_err(|_| malformed())?;
    if found > FORMAT {
        return Err(Error::NewerFormat { path: file, found, supported: FORMAT });
    }
    let id = |name| u64::from_str_radix(field(name), 16).ok().filter(|id| *id != 0);
    match (id("cluster_id"), id("member_id")) {
        (Some(cluster_id), Some(member_id)) => Ok(Identity { cluster_id, member_id }),
        _ => Err(malformed()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRESH: Identity = Identity { cluster_id: 0xc, member_id: 0xa };

    #[test]
    fn open_keeps_the_identity_and_locks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let first = DataDir::open(&path, FRESH).unwrap();
        let second = DataDir::open(&path, FRESH).unwrap_err();
        assert!(matches!(second, Error::InUse { .. }), "{second}");
        drop(first);
        let other = Identity { cluster_id: 1, member_id: 2 };
        assert_eq!(DataDir::open(&path, other).unwrap().identity(), FRESH);
    }

    #[test]
    fn open_accepts_a_directory_with_a_socket() {
        let dir = tempfile::tempdir().unwrap();
        let _listener =
            std::os::unix::net::UnixListener::bind(dir.path().join("etcd.sock")).unwrap();
        assert_eq!(DataDir::open(dir.path(), FRESH).unwrap().identity(), FRESH);
        let other = tempfile::tempdir().unwrap();
        fs::write(other.path().join("etcd.sock"), "").unwrap();
        assert!(DataDir::open(other.path(), FRESH).is_err());
    }

    #[test]
    fn open_refuses_foreign_newer_and_damaged_directories() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("member")).unwrap();
        let error = DataDir::open(dir.path(), FRESH).unwrap_err();
        assert!(error.to_string().contains("data of an etcd"), "{error}");

        let newer = tempfile::tempdir().unwrap();
        fs::create_dir(newer.path().join(WAL)).unwrap();
        fs::write(newer.path().join("IDENTITY"), "format 9\n").unwrap();
        let error = DataDir::open(newer.path(), FRESH).unwrap_err();
        assert!(matches!(error, Error::NewerFormat { found: 9, .. }), "{error}");

        let lost = tempfile::tempdir().unwrap();
        drop(DataDir::open(lost.path(), FRESH).unwrap());
        fs::remove_dir(lost.path().join(WAL)).unwrap();
        let error = DataDir::open(lost.path(), FRESH).unwrap_err();
        assert!(error.to_string().contains("log is missing"), "{error}");

        let broken = tempfile::tempdir().unwrap();
        fs::create_dir(broken.path().join(WAL)).unwrap();
        fs::write(broken.path().join("IDENTITY"), "format 1\ncluster_id 0\n").unwrap();
        assert!(DataDir::open(broken.path(), FRESH).is_err());
    }
}
