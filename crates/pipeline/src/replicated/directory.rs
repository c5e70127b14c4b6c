//! The data directory of a member of a cluster.
//!
//! ```text
//! LOCK       locked by the process that uses the directory
//! MEMBER     the identity of the member, and which failures its log survives, as text
//! replica/   log and snapshots, as in the data directory of a single member
//! ```
//!
//! `MEMBER` is written last, so a directory without it belongs to no member. A member that may have
//! lost a part of its log gets a new identity ([`consensus::identity`]); its old files are kept in
//! `replica.discarded` until the next time.
//!
//! With `--snapshot-dir`, the snapshots are in `replica/` of that directory, and are set aside in the same way.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use consensus::id::{ClusterId, MemberId};
use consensus::identity::{LogMode, StoredIdentity};
use crc32c::crc32c;
use data_dir::{DataDir, Identity};
use files::replace::replace;
use files::{Error, lock};

const MEMBER: &str = "MEMBER";
const REPLICA: &str = "replica";
const DISCARDED: &str = "replica.discarded";

/// The data directory of a member, locked by this process.
pub(super) struct MemberDir {
    path: PathBuf,
    /// `--snapshot-dir`.
    snapshot_dir: Option<PathBuf>,
    _lock: File,
}

/// What the directory says about the member that used it last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredMember {
    pub(super) cluster: ClusterId,
    pub(super) identity: StoredIdentity,
}

impl MemberDir {
    /// Locks the directory. Creates it if it is missing.
    ///
    /// # Errors
    /// If another process uses it, or it belongs to a store without peers or to another program.
    pub(super) fn open(path: &Path, snapshot_dir: Option<&Path>) -> Result<MemberDir, Error> {
        fs::create_dir_all(path).map_err(Error::io("create data directory", path))?;
        refuse_foreign(path)?;
        let lock = lock::exclusive(path)?.ok_or_else(|| Error::InUse { path: path.to_owned() })?;
        let snapshot_dir = snapshot_dir.map(Path::to_owned);
        Ok(MemberDir { path: path.to_owned(), snapshot_dir, _lock: lock })
    }

    /// Locks a directory for a new member. Creates it if it is missing.
    ///
    /// # Errors
    /// If it is not empty.
    pub(super) fn create(path: &Path, snapshot_dir: Option<&Path>) -> Result<MemberDir, Error> {
        let dir = MemberDir::open(path, snapshot_dir)?;
        let names = [MEMBER, REPLICA, DISCARDED];
        let is_used = |path: &&Path| names.iter().any(|name| path.join(name).exists());
        match [Some(path), snapshot_dir].into_iter().flatten().find(is_used) {
            Some(path) => Err(Error::Foreign {
                path: path.to_owned(),
                reason: "it contains the data of a member: use an empty directory".into(),
            }),
            None => Ok(dir),
        }
    }

    /// Returns the member that used the directory last; `None` if there is none, or if it is not
    /// known any more.
    pub(super) fn stored(&self) -> Result<Option<StoredMember>, Error> {
        let file = self.path.join(MEMBER);
        match fs::read_to_string(&file) {
            Ok(text) => Ok(parse(&text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io("read", file)(error)),
        }
    }

    /// Opens the files of the stored member.
    pub(super) fn replica(&self, member: &StoredMember) -> Result<DataDir, Error> {
        let dir = DataDir::open(&self.path.join(REPLICA), member.data_identity(), prepare)?;
        match dir.identity() == member.data_identity() {
            true => Ok(dir),
            false => Err(Error::BadIdentity {
                path: self.path.join(MEMBER),
                reason: "names another member than the directory replica".into(),
            }),
        }
    }

    /// Removes what an earlier member has left, except its files, which are renamed.
    pub(super) fn discard(&self) -> Result<(), Error> {
        if let Some(snapshots) = self.snapshot_dir.as_ref().map(|dir| dir.join(REPLICA))
            && snapshots.exists()
        {
            // They may be those of another member, which runs.
            let lock = lock::exclusive(&snapshots)?;
            drop(lock.ok_or(Error::SnapshotsInUse { path: snapshots })?);
        }
        remove(&self.path.join(MEMBER), |path| fs::remove_file(path))?;
        set_aside(&self.path)?;
        self.snapshot_dir.as_deref().map_or(Ok(()), set_aside)
    }

    /// Returns the directory of the snapshots of the member.
    pub(super) fn snapshots(&self) -> PathBuf {
        match &self.snapshot_dir {
            Some(dir) => dir.join(REPLICA),
            None => self.path.join(REPLICA).join("snap"),
        }
    }

    /// Makes the directory that of a member, whose files are complete.
    pub(super) fn write_member(&self, member: &StoredMember) -> Result<(), Error> {
        let file = self.path.join(MEMBER);
        replace(&file, encode(member).as_bytes()).map_err(Error::io("write", file))
    }
}

impl StoredMember {
    fn data_identity(&self) -> Identity {
        Identity { cluster_id: self.cluster.0, member_id: self.identity.member.get() }
    }
}

/// Renames the files of an earlier member in a directory. Removes those of the one before it.
fn set_aside(directory: &Path) -> Result<(), Error> {
    let (replica, discarded) = (directory.join(REPLICA), directory.join(DISCARDED));
    if replica.exists() {
        remove(&discarded, |path| fs::remove_dir_all(path))?;
        fs::rename(&replica, &discarded).map_err(Error::io("rename", &replica))?;
        tracing::warn!(path = %discarded.display(), "set the files of an earlier member aside");
    }
    Ok(())
}

fn prepare(dir: &DataDir) -> Result<(), Error> {
    snapshot::create_manifest(&dir.manifest())
}

fn remove(path: &Path, remove: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<(), Error> {
    match remove(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}

/// Fails if the directory contains something else than the files of a member.
fn refuse_foreign(path: &Path) -> Result<(), Error> {
    let foreign = |reason: &str| Error::Foreign { path: path.to_owned(), reason: reason.into() };
    if path.join("IDENTITY").exists() {
        return Err(foreign(
            "it contains a store without peers (IDENTITY): use another directory, and copy the store",
        ));
    }
    for entry in fs::read_dir(path).map_err(Error::io("list", path))? {
        let name = entry.map_err(Error::io("list", path))?.file_name();
        match &*name.to_string_lossy() {
            "member" => return Err(foreign("it contains the data of etcd (member/)")),
            lock::NAME | MEMBER | "MEMBER.new" | REPLICA | DISCARDED | "lost+found" => {}
            other => return Err(foreign(&format!("it contains {other}"))),
        }
    }
    Ok(())
}

fn mode_name(mode: LogMode) -> &'static str {
    match mode {
        LogMode::Fsync => "fsync",
        LogMode::Buffered => "buffered",
        LogMode::Memory => "memory",
    }
}

fn encode(member: &StoredMember) -> String {
    let StoredMember { cluster, identity } = member;
    let boot_id = identity.boot_id.as_deref().unwrap_or_default();
    let text = format!(
        "format 1\ncluster_id {:016x}\nmember_id {:016x}\nlog {}\nboot_id {}\n",
        cluster.0,
        identity.member.get(),
        mode_name(identity.mode),
        boot_id.escape_ascii(),
    );
    format!("{text}crc32c {:08x}\n", crc32c(text.as_bytes()))
}

/// Parses `MEMBER`. A damaged file is as good as none: the member gets a new identity.
fn parse(text: &str) -> Option<StoredMember> {
    let field = |name: &str| text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
    let id = |name: &str| u64::from_str_radix(field(name)?, 16).ok();
    let modes = [LogMode::Fsync, LogMode::Buffered, LogMode::Memory];
    let mode = modes.into_iter().find(|mode| field("log") == Some(mode_name(*mode)))?;
    // The boot ID of Linux is hexadecimal; another one is never equal to the current one.
    let boot_id = field("boot_id").filter(|id| !id.is_empty()).map(|id| id.as_bytes().to_vec());
    let member = MemberId::new(id("member_id")?)?;
    let identity = StoredIdentity { member, mode, boot_id };
    let stored = StoredMember { cluster: ClusterId(id("cluster_id")?), identity };
    (encode(&stored) == text).then_some(stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(mode: LogMode) -> StoredMember {
        let identity = StoredIdentity {
            member: MemberId::new(7).unwrap(),
            mode,
            boot_id: Some(b"12-ab".to_vec()),
        };
        StoredMember { cluster: ClusterId(5), identity }
    }

    #[test]
    fn members_are_read_as_written_and_nothing_else_is() {
        for mode in [LogMode::Fsync, LogMode::Buffered] {
            let text = encode(&member(mode));
            assert_eq!(parse(&text), Some(member(mode)));
            assert_eq!(parse(&text.replace("member_id 0", "member_id 1")), None);
            assert_eq!(parse(&text[..text.len() - 1]), None);
        }
        assert_eq!(parse(""), None);
    }

    #[test]
    fn a_directory_has_one_member_at_a_time() {
        let root = tempfile::tempdir().unwrap();
        let dir = MemberDir::open(root.path(), None).unwrap();
        assert!(matches!(MemberDir::open(root.path(), None), Err(Error::InUse { .. })));
        assert_eq!(dir.stored().unwrap(), None);
        drop(dir.replica(&member(LogMode::Fsync)).unwrap());
        dir.write_member(&member(LogMode::Fsync)).unwrap();
        assert_eq!(dir.stored().unwrap(), Some(member(LogMode::Fsync)));
        let other = StoredMember { cluster: ClusterId(6), ..member(LogMode::Fsync) };
        assert!(matches!(dir.replica(&other), Err(Error::BadIdentity { .. })));
        dir.discard().unwrap();
        assert_eq!(dir.stored().unwrap(), None);
        assert!(root.path().join(DISCARDED).exists());
        drop(dir.replica(&other).unwrap());
        dir.discard().unwrap();
    }

    #[test]
    fn snapshots_elsewhere_are_set_aside_too_unless_they_are_in_use() {
        let (root, snapshots) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let dir = MemberDir::open(root.path(), Some(snapshots.path())).unwrap();
        assert_eq!(dir.snapshots(), snapshots.path().join(REPLICA));
        for content in ["first", "second"] {
            fs::create_dir_all(dir.snapshots()).unwrap();
            fs::write(dir.snapshots().join("file"), content).unwrap();
            let running = lock::exclusive(&dir.snapshots()).unwrap();
            assert!(matches!(dir.discard(), Err(Error::SnapshotsInUse { .. })));
            drop(running);
            dir.discard().unwrap();
            assert!(!dir.snapshots().exists());
            let kept = fs::read_to_string(snapshots.path().join(DISCARDED).join("file"));
            assert_eq!(kept.unwrap(), content);
        }
        let other = tempfile::tempdir().unwrap();
        let created = MemberDir::create(other.path(), Some(snapshots.path()));
        assert!(matches!(created, Err(Error::Foreign { .. })));
    }

    #[test]
    fn other_stores_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let identity = Identity { cluster_id: 1, member_id: 2 };
        drop(DataDir::open(root.path(), identity, |_| Ok(())).unwrap());
        let error = MemberDir::open(root.path(), None).err().unwrap().to_string();
        assert!(error.contains("without peers"), "{error}");
        let root = tempfile::tempdir().unwrap();
        let dir = MemberDir::open(root.path(), None).unwrap();
        dir.write_member(&member(LogMode::Fsync)).unwrap();
        drop(dir);
        assert!(DataDir::open(root.path(), identity, |_| Ok(())).is_err());
    }
}
