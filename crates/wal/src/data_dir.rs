//! The directory of a store: who may use it, and what it belongs to.
//!
//! ```text
//! LOCK        held (flock) by the process that works here
//! IDENTITY    format, cluster and member ID, as text
//! wal/        segments of the log
//! snap/       snapshots, unless they are to lie elsewhere
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::Error;

const FORMAT: u32 = 1;
const WAL: &str = "wal";

/// The IDs under which a store answers; neither is ever zero, and they stay
/// the same as long as the directory lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// ID of the cluster.
    pub cluster_id: u64,
    /// ID of this member.
    pub member_id: u64,
}

/// A data directory that this process alone may use, until it is dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    identity: Identity,
    _lock: File,
}

impl DataDir {
    /// Takes possession of `path`, which is created if it is missing. A new
    /// directory gets the `fresh` identity, an old one keeps its own.
    pub fn open(path: &Path, fresh: Identity) -> Result<DataDir, Error> {
        let lock = make(path)?;
        let identity = match fs::read_to_string(path.join("IDENTITY")) {
            Ok(text) => {
                require_log(path)?;
                parse(&text, path)?
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                refuse_foreign(path)?;
                // Durable before the identity is: where there is an identity,
                // a missing log has been lost.
                make_log_directory(path).map_err(Error::io("create", path.join(WAL)))?;
                write_identity(path, fresh)?;
                fresh
            }
            Err(error) => return Err(Error::io("read", path.join("IDENTITY"))(error)),
        };
        Ok(DataDir { path: path.to_owned(), identity, _lock: lock })
    }

    /// Takes possession of `path` as it is; nothing is created but the lock.
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

    /// Refuses a directory whose log has been lost.
    pub fn require_log(&self) -> Result<(), Error> {
        require_log(&self.path)
    }

    /// Gives the directory a new log without records, and returns where the old one
    /// is now, if there was one.
    pub fn set_log_aside(&self) -> Result<Option<PathBuf>, Error> {
        let wal = self.wal();
        let aside = wal.exists().then(|| free_name(&wal));
        if let Some(aside) = &aside {
            fs::rename(&wal, aside).map_err(Error::io("rename", &wal))?;
        }
        make_log_directory(&self.path).map_err(Error::io("create", wal))?;
        Ok(aside)
    }

    /// Makes a directory that begins with what `fill` puts into the snapshot
    /// directory that it is given. There must be nothing in `path` before. The
    /// identity comes last: without one, whatever is there is no store.
    pub fn create_filled(
        path: &Path,
        fresh: Identity,
        fill: impl FnOnce(PathBuf) -> Result<(), Error>,
    ) -> Result<DataDir, Error> {
        if path.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
            return Err(Error::NotEmpty { path: path.to_owned() });
        }
        let lock = make(path)?;
        let dir = DataDir { path: path.to_owned(), identity: fresh, _lock: lock };
        fill(dir.snap())?;
        make_log_directory(path).map_err(Error::io("create", path.join(WAL)))?;
        write_identity(path, fresh)?;
        Ok(dir)
    }

    /// The IDs that belong to the directory.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Where snapshots lie if nothing else is said.
    pub fn snap(&self) -> PathBuf {
        self.path.join("snap")
    }

    /// Where the log's segments lie.
    pub fn wal(&self) -> PathBuf {
        self.path.join(WAL)
    }
}

/// A name beside `path` for what is damaged of it.
pub(crate) fn free_name(path: &Path) -> PathBuf {
    let numbered = |n: u32| match n {
        1 => format!("{}.damaged", path.display()),
        n => format!("{}.damaged.{n}", path.display()),
    };
    (1..).map(|n| PathBuf::from(numbered(n))).find(|name| !name.exists()).expect("one is free")
}

/// Creates `path` if it is missing, and takes its lock.
fn make(path: &Path) -> Result<File, Error> {
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

fn make_log_directory(path: &Path) -> std::io::Result<()> {
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

/// A directory without our mark must be empty but for the lock just made.
fn refuse_foreign(path: &Path) -> Result<(), Error> {
    let foreign = |reason: String| Err(Error::Foreign { path: path.to_owned(), reason });
    if path.join("member").is_dir() {
        return foreign("it holds the data of an etcd (member/)".into());
    }
    for entry in fs::read_dir(path).map_err(Error::io("list", path))? {
        let entry = entry.map_err(Error::io("list", path))?;
        // A server may listen on a socket here.
        if entry.file_type().map_err(Error::io("list", path))?.is_socket() {
            continue;
        }
        let name = entry.file_name();
        // What a start leaves that was cut off before the identity had its name.
        if name != "LOCK" && name != "IDENTITY.new" && name != "lost+found" && name != WAL {
            return foreign(format!("it holds {}", name.display()));
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
    let broken = || Error::Foreign {
        path: path.to_owned(),
        reason: format!("{} cannot be understood", file.display()),
    };
    let found: u32 = field("format").parse().map_err(|_| broken())?;
    if found > FORMAT {
        return Err(Error::NewerFormat { path: file, found, supported: FORMAT });
    }
    let id = |name| u64::from_str_radix(field(name), 16).ok().filter(|id| *id != 0);
    match (id("cluster_id"), id("member_id")) {
        (Some(cluster_id), Some(member_id)) => Ok(Identity { cluster_id, member_id }),
        _ => Err(broken()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRESH: Identity = Identity { cluster_id: 0xc, member_id: 0xa };

    #[test]
    fn keeps_its_identity_and_its_lock() {
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
    fn takes_a_directory_with_a_socket() {
        let dir = tempfile::tempdir().unwrap();
        let _listener =
            std::os::unix::net::UnixListener::bind(dir.path().join("etcd.sock")).unwrap();
        assert_eq!(DataDir::open(dir.path(), FRESH).unwrap().identity(), FRESH);
        let other = tempfile::tempdir().unwrap();
        fs::write(other.path().join("etcd.sock"), "").unwrap();
        assert!(DataDir::open(other.path(), FRESH).is_err());
    }

    #[test]
    fn refuses_what_is_not_its_own() {
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
