//! The snapshots of a store in a directory.

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};

use files::replace::sync_parent;
use files::{Error, Identity, PayloadError, discard, lock};

use crate::file::{SnapshotReader, SnapshotWriter, Target};
use crate::header::{Header, Owner};
use crate::manifest::{self, Entry};
use crate::name::{self, Name};

/// Number of snapshots that are kept. If the newest is damaged, the one before it and the
/// log after that contain everything.
const KEPT_GENERATIONS: usize = 2;

/// The snapshots of one store. Their directory may be on another disk than the log. It may
/// contain other files, which are never changed.
#[derive(Debug)]
pub struct Snapshots {
    directory: PathBuf,
    manifest: PathBuf,
    identity: Identity,
    /// Set by a repair if the manifest is damaged.
    manifest_ignored: bool,
    /// `None` if only this process reads the directory and it has no lock file.
    _lock: Option<File>,
}

/// A snapshot of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// The path of the file.
    pub path: PathBuf,
    /// The last record of the log that the snapshot covers.
    pub covered: u64,
    /// Whether the manifest or the identity in the file proves that the snapshot belongs to
    /// the store. Otherwise an earlier version wrote it.
    pub proven: bool,
    /// The entry of the manifest; `None` without a manifest.
    entry: Option<Entry>,
}

/// A file in the snapshot directory that is not a snapshot of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignFile {
    /// The path of the file.
    pub path: PathBuf,
    /// Why it is not a snapshot of the store.
    pub reason: String,
}

/// Writes the manifest of a new store, which has no snapshot.
pub fn create_manifest(path: &Path) -> Result<(), Error> {
    manifest::write(path, &[])
}

impl Snapshots {
    /// Opens `directory` for the store with this identity, and creates it if it is missing.
    /// Locks it, and removes unfinished files that a crash of the store has left. `manifest`
    /// is the path of the list of the store's snapshots.
    pub fn open(directory: PathBuf, manifest: PathBuf, identity: Identity) -> Result<Self, Error> {
        if !directory.exists() {
            fs::create_dir_all(&directory).map_err(Error::io("create", &directory))?;
            sync_parent(&directory).map_err(Error::io("create", &directory))?;
        }
        let lock = lock::exclusive(&directory)?
            .ok_or_else(|| Error::SnapshotsInUse { path: directory.clone() })?;
        let _lock = Some(lock);
        let snapshots = Snapshots { directory, manifest, identity, manifest_ignored: false, _lock };
        let kept = snapshots.unlist_unfinished()?;
        for (path, name) in snapshots.list()? {
            let left = name == Some(Name::Left) && !kept.contains(&path);
            if left && snapshots.other_owner(&path).is_none() {
                fs::remove_file(&path).map_err(Error::io("remove", path))?;
            }
        }
        Ok(snapshots)
    }

    /// Opens `directory` for reading, without changing any file. The directory may be
    /// missing.
    pub fn inspect(
        directory: PathBuf,
        manifest: PathBuf,
        identity: Identity,
    ) -> Result<Self, Error> {
        let (locked, _lock) = lock::shared(&directory)?;
        if !locked {
            return Err(Error::SnapshotsInUse { path: directory });
        }
        Ok(Snapshots { directory, manifest, identity, manifest_ignored: false, _lock })
    }

    /// Locks the directory for writing, after [`Snapshots::inspect`].
    pub fn open_for_writing(self) -> Result<Self, Error> {
        let Snapshots { directory, manifest, identity, manifest_ignored, _lock: shared } = self;
        drop(shared);
        Ok(Snapshots { manifest_ignored, ..Snapshots::open(directory, manifest, identity)? })
    }

    /// Returns the path of the directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the snapshots of the store that exist, in ascending order.
    pub fn generations(&self) -> Result<Vec<Generation>, Error> {
        let mut generations = match self.read_manifest()? {
            Some(entries) => {
                let listed = entries.into_iter().map(|entry| self.listed(entry));
                listed.filter(|generation| generation.path.exists()).collect()
            }
            None => self.unlisted_generations()?,
        };
        generations.sort_unstable_by_key(|generation| generation.covered);
        Ok(generations)
    }

    /// Returns the newest snapshot of the store.
    pub fn newest(&self) -> Result<Option<Generation>, Error> {
        Ok(self.generations()?.pop())
    }

    /// Returns the newest listed snapshot if its file is missing. A snapshot whose renaming a
    /// crash has prevented does not count: it never existed.
    pub fn missing(&self) -> Result<Option<Generation>, Error> {
        let mut entries = self.read_manifest()?.unwrap_or_default();
        entries.retain(|entry| !self.is_unfinished(*entry));
        let newest = entries.into_iter().max_by_key(|entry| entry.covered);
        let newest = newest.map(|entry| self.listed(entry));
        Ok(newest.filter(|newest| !newest.path.exists()))
    }

    /// Removes the missing snapshots that cover records after `last`, the last record of the
    /// log, from the manifest, and returns their paths. The store is about to write other
    /// records with the same numbers, so such a snapshot must not be used if it appears again.
    pub fn forget_missing(&self, last: u64) -> Result<Vec<PathBuf>, Error> {
        let entries = self.read_manifest()?.unwrap_or_default();
        let (forgotten, kept): (Vec<_>, Vec<_>) = entries.into_iter().partition(|entry| {
            let is_missing = !self.listed(*entry).path.exists() && !self.is_unfinished(*entry);
            is_missing && entry.covered > last
        });
        if !forgotten.is_empty() {
            manifest::write(&self.manifest, &kept)?;
        }
        Ok(forgotten.into_iter().map(|entry| self.listed(entry).path).collect())
    }

    /// Whether the data directory has a manifest. Earlier versions wrote none.
    pub fn has_manifest(&self) -> Result<bool, Error> {
        Ok(self.read_manifest()?.is_some())
    }

    /// Writes the manifest of a data directory of an earlier version. `used` is the snapshot
    /// from which the store was recovered.
    pub fn adopt(&self, used: Option<&Generation>) -> Result<(), Error> {
        if self.has_manifest()? {
            return Ok(());
        }
        let Some(Generation { path, covered, .. }) = used else {
            return manifest::write(&self.manifest, &[]);
        };
        let id = match SnapshotReader::open(path)?.read_header() {
            Ok(header) => header.owner.map(|owner| owner.id),
            // A repair lists a damaged snapshot until the new one is complete.
            Err(Error::Corrupt { .. }) => None,
            Err(error) => return Err(error),
        };
        manifest::write(&self.manifest, &[Entry { covered: *covered, id }])
    }

    /// Returns the files in the directory that are not of this store.
    pub fn foreign_files(&self) -> Result<Vec<ForeignFile>, Error> {
        let own = self.generations()?;
        let reason = |path: &Path, name: Option<Name>| match name {
            None => Some("its name is not that of a snapshot of a store".into()),
            Some(Name::Kept) => None,
            Some(name) => match self.other_owner(path) {
                Some(owner) => Some(format!("it belongs to another store ({owner})")),
                None if name == Name::Left => None,
                None => {
                    let is_own = own.iter().any(|generation| generation.path == path);
                    (!is_own).then(|| "the manifest of the data directory does not list it".into())
                }
            },
        };
        let mut foreign: Vec<_> = self
            .list()?
            .into_iter()
            .filter_map(|(path, name)| Some(ForeignFile { reason: reason(&path, name)?, path }))
            .collect();
        foreign.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        Ok(foreign)
    }

    /// Passes the chunks of a snapshot to `visit`, in order. An error of `visit` becomes that
    /// of the file.
    pub fn load(
        &self,
        generation: &Generation,
        mut visit: impl FnMut(&[u8]) -> Result<(), PayloadError>,
    ) -> Result<(), Error> {
        let mut reader = SnapshotReader::open(&generation.path)?;
        let header = reader.read_header()?;
        self.require_identity(generation, header)?;
        if !self.is_own(header, generation.entry) || header.covered != generation.covered {
            return Err(reader.corrupt("it is not the snapshot of this store".into()));
        }
        while let Some(chunk) = reader.read_chunk()? {
            visit(&chunk).map_err(|error| reader.payload_error(error))?;
        }
        Ok(())
    }

    /// Starts a snapshot of the store after record `covered`.
    pub fn create(&self, covered: u64) -> Result<SnapshotWriter, Error> {
        let path = self.directory.join(name::complete(covered));
        let unfinished = self.directory.join(name::unfinished(covered));
        for path in [&path, &unfinished] {
            if path.exists() {
                let reason = "a file that is not of this store has this name, move it away";
                let cause = io::Error::new(io::ErrorKind::AlreadyExists, reason);
                return Err(Error::io("create", path)(cause));
            }
        }
        // If the start could not write the manifest, the snapshot in use must be listed now: an
        // interruption may leave a manifest with this snapshot, but without its file.
        self.adopt(self.newest()?.as_ref())?;
        let others = self.generations()?;
        let others = others.into_iter().filter_map(|generation| generation.entry).collect();
        let id = RandomState::new().hash_one(covered);
        let owner = Some(Owner { identity: self.identity, id });
        let target = Target { path, manifest: self.manifest.clone(), others };
        SnapshotWriter::create(unfinished, target, Header { covered, owner })
    }

    /// Removes all snapshots but the newest two. Returns the record up to which the log is
    /// not needed any more: the last one that the older snapshot covers. Without an older
    /// snapshot, all of the log is needed.
    pub fn remove_older(&self) -> Result<u64, Error> {
        let mut generations = self.generations()?;
        let kept = generations.split_off(generations.len().saturating_sub(KEPT_GENERATIONS));
        for Generation { path, .. } in &generations {
            discard::discard(path).map_err(Error::io("remove", path))?;
        }
        if !generations.is_empty() {
            let entries: Vec<_> = kept.iter().filter_map(|generation| generation.entry).collect();
            manifest::write(&self.manifest, &entries)?;
        }
        match &kept[..] {
            [older, _] => Ok(older.covered),
            _ => Ok(0),
        }
    }

    /// Renames a damaged snapshot to `renamed`, a name that readers ignore, and removes it
    /// from the manifest.
    pub fn set_aside(&self, damaged: &Generation, renamed: &Path) -> Result<(), Error> {
        let path = &damaged.path;
        fs::rename(path, renamed).map_err(Error::io("rename", path))?;
        sync_parent(path).map_err(Error::io("fsync the directory of", path))?;
        if !self.has_manifest()? {
            return self.adopt(self.newest()?.as_ref());
        }
        let entries = self.generations()?.into_iter().filter_map(|generation| generation.entry);
        manifest::write(&self.manifest, &entries.collect::<Vec<_>>())
    }

    /// Makes all methods behave as if there were no manifest, because it is damaged.
    pub fn ignore_manifest(&mut self) {
        self.manifest_ignored = true;
    }

    /// Makes the methods use the manifest again, after [`Snapshots::ignore_manifest`].
    pub fn use_manifest(&mut self) {
        self.manifest_ignored = false;
    }

    fn read_manifest(&self) -> Result<Option<Vec<Entry>>, Error> {
        match self.manifest_ignored {
            true => Ok(None),
            false => manifest::read(&self.manifest),
        }
    }

    /// Removes from the manifest the snapshots whose renaming a crash has prevented. Returns
    /// the unfinished files that must stay, because the disk is full and the manifest still
    /// lists them.
    fn unlist_unfinished(&self) -> Result<Vec<PathBuf>, Error> {
        let entries = match self.read_manifest() {
            // A repair sets the manifest aside.
            Err(Error::Corrupt { .. }) => None,
            read => read?,
        };
        let (unfinished, kept): (Vec<_>, Vec<_>) =
            entries.unwrap_or_default().into_iter().partition(|entry| self.is_unfinished(*entry));
        let path = |entry: &Entry| self.directory.join(name::unfinished(entry.covered));
        let paths: Vec<_> = unfinished.iter().map(path).collect();
        for path in &paths {
            // The manifest may need the space. The name must stay until it is written.
            let truncate = || File::options().write(true).open(path)?.set_len(0);
            truncate().map_err(Error::io("truncate", path))?;
        }
        if paths.is_empty() {
            return Ok(paths);
        }
        match manifest::write(&self.manifest, &kept) {
            Err(error) if error.is_disk_full() => Ok(paths),
            written => written.map(|()| Vec::new()),
        }
    }

    /// Whether a crash has prevented the renaming of the snapshot.
    fn is_unfinished(&self, entry: Entry) -> bool {
        let unfinished = self.directory.join(name::unfinished(entry.covered));
        unfinished.exists()
            && !self.listed(entry).path.exists()
            && self.other_owner(&unfinished).is_none()
    }

    fn listed(&self, entry: Entry) -> Generation {
        let path = self.directory.join(name::complete(entry.covered));
        Generation { path, covered: entry.covered, proven: true, entry: Some(entry) }
    }

    /// Returns the snapshots that may belong to the store, for a directory without a
    /// manifest: those with the identity of the store, and those without an identity.
    fn unlisted_generations(&self) -> Result<Vec<Generation>, Error> {
        let mut generations = Vec::new();
        for (path, name) in self.list()? {
            let Some(Name::Complete(covered)) = name else { continue };
            let header = SnapshotReader::open(&path)?.read_header();
            let (own, proven) = match &header {
                Ok(header) => (
                    self.is_own(*header, None) && header.covered == covered,
                    header.owner.is_some(),
                ),
                // It may be a damaged snapshot of the store.
                Err(_) => (true, false),
            };
            if own {
                generations.push(Generation { path, covered, proven, entry: None });
            }
        }
        Ok(generations)
    }

    /// Whether a snapshot with this header belongs to the store. `entry` is its entry in the
    /// manifest.
    fn is_own(&self, header: Header, entry: Option<Entry>) -> bool {
        let id = header.owner.map(|owner| owner.id);
        let same_store = header.owner.is_none_or(|owner| owner.identity == self.identity);
        same_store && entry.is_none_or(|entry| entry.id == id)
    }

    /// Fails if a snapshot with this header has the listed ID, but the identity of another
    /// store: the identity of this store is then damaged.
    fn require_identity(&self, generation: &Generation, header: Header) -> Result<(), Error> {
        let (Some(entry), Some(owner)) = (generation.entry, header.owner) else { return Ok(()) };
        if entry.id != Some(owner.id) || owner.identity == self.identity {
            return Ok(());
        }
        let (snapshot, owner) = (generation.path.display(), owner.identity);
        let reason =
            format!("has other IDs than {snapshot} ({owner}), which MANIFEST lists with its ID");
        Err(Error::BadIdentity { path: self.manifest.with_file_name("IDENTITY"), reason })
    }

    /// Returns the identity in the header of a file if it is that of another store.
    fn other_owner(&self, path: &Path) -> Option<Identity> {
        let header = SnapshotReader::open(path).ok()?.read_header().ok()?;
        let identity = header.owner?.identity;
        (identity != self.identity).then_some(identity)
    }

    /// Returns the files in the directory with what their names mean; `None` for a name that
    /// a store never gives to a file.
    fn list(&self) -> Result<Vec<(PathBuf, Option<Name>)>, Error> {
        let read = || -> io::Result<Vec<_>> {
            let parse = |entry: fs::DirEntry| {
                let name = entry.file_name();
                (entry.path(), name.to_str().and_then(name::parse))
            };
            fs::read_dir(&self.directory)?.map(|entry| entry.map(parse)).collect()
        };
        match read() {
            // An inspected directory need not exist.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            files => files.map_err(Error::io("list", &self.directory)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: Identity = Identity { cluster_id: 0xc, member_id: 0xa };
    const OTHER: Identity = Identity { cluster_id: 0xd, member_id: 0xa };

    /// Opens the snapshots of a store whose manifest is beside the directory.
    fn open(root: &Path, identity: Identity) -> Snapshots {
        let manifest = root.join(format!("MANIFEST-{:x}", identity.cluster_id));
        if !manifest.exists() {
            create_manifest(&manifest).unwrap();
        }
        Snapshots::open(root.join("snap"), manifest, identity).unwrap()
    }

    fn load(snapshots: &Snapshots) -> Result<(u64, Vec<Vec<u8>>), Error> {
        let Some(newest) = snapshots.newest()? else { return Ok((0, Vec::new())) };
        let mut chunks = Vec::new();
        snapshots.load(&newest, |chunk| {
            chunks.push(chunk.to_vec());
            Ok(())
        })?;
        Ok((newest.covered, chunks))
    }

    fn write(snapshots: &Snapshots, covered: u64, chunks: &[&[u8]]) {
        let mut writer = snapshots.create(covered).unwrap();
        chunks.iter().for_each(|chunk| writer.write_chunk(chunk).unwrap());
        writer.finish().unwrap();
    }

    /// Returns the names of all files but the lock.
    fn names(root: &Path) -> Vec<String> {
        let entries = fs::read_dir(root.join("snap")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| name != lock::NAME).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn load_reads_the_newest_complete_snapshot() {
        let root = tempfile::tempdir().unwrap();
        let snapshots = open(root.path(), IDENTITY);
        assert_eq!(load(&snapshots).unwrap(), (0, vec![]));
        write(&snapshots, 8, &[b"oldest"]);
        write(&snapshots, 9, &[b"old"]);
        assert_eq!(snapshots.remove_older().unwrap(), 8);
        write(&snapshots, 10, &[b"one", &[7; 5000]]);
        // A crash interrupts the next snapshot.
        let mut unfinished = snapshots.create(11).unwrap();
        unfinished.write_chunk(b"lost").unwrap();
        std::mem::forget(unfinished);
        drop(snapshots);
        let snapshots = open(root.path(), IDENTITY);
        let expected = (10, vec![b"one".to_vec(), vec![7; 5000]]);
        assert_eq!(load(&snapshots).unwrap(), expected);
        assert_eq!(snapshots.remove_older().unwrap(), 9);
        assert_eq!(load(&snapshots).unwrap(), expected);
        assert_eq!(names(root.path()), ["00000000000000000009.snap", "00000000000000000010.snap"]);
        assert_eq!(snapshots.foreign_files().unwrap(), []);
    }

    #[test]
    fn any_damage_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let snapshots = open(root.path(), IDENTITY);
        write(&snapshots, 5, &[b"some", b"chunks"]);
        let path = root.path().join("snap/00000000000000000005.snap");
        let good = fs::read(&path).unwrap();
        for byte in 0..good.len() {
            let mut bad = good.clone();
            bad[byte] ^= 0x10;
            fs::write(&path, bad).unwrap();
            let error = load(&snapshots).unwrap_err();
            let refused = matches!(error, Error::Corrupt { .. } | Error::NewerFormat { .. });
            assert!(refused, "changed byte {byte}: {error}");
            fs::write(&path, &good[..byte]).unwrap();
            assert!(load(&snapshots).is_err(), "truncated at byte {byte}");
        }
    }

    #[test]
    fn a_failed_snapshot_leaves_no_file() {
        let root = tempfile::tempdir().unwrap();
        let snapshots = open(root.path(), IDENTITY);
        write(&snapshots, 1, &[b"first"]);
        for end in ["dropped", "abandoned", "stopped", "not renamed"] {
            let mut writer = snapshots.create(5).unwrap();
            writer.write_chunk(&[7; 3 << 20]).unwrap();
            match end {
                "dropped" => drop(writer),
                "abandoned" => writer.abandon().unwrap(),
                "stopped" => assert_eq!(writer.finish_unless(|_| true).unwrap(), None),
                _ => {
                    fs::create_dir(root.path().join("snap/00000000000000000005.snap")).unwrap();
                    assert!(writer.finish().is_err());
                    fs::remove_dir(root.path().join("snap/00000000000000000005.snap")).unwrap();
                }
            }
            assert_eq!(names(root.path()), ["00000000000000000001.snap"], "{end}");
            assert_eq!(load(&snapshots).unwrap().0, 1, "{end}");
        }
    }

    /// A snapshot that the disk did not store is not published, so that nothing is removed
    /// because of it.
    #[test]
    fn a_snapshot_is_read_back() {
        use std::os::unix::fs::FileExt;
        let root = tempfile::tempdir().unwrap();
        let snapshots = open(root.path(), IDENTITY);
        write(&snapshots, 1, &[b"first"]);
        let mut writer = snapshots.create(5).unwrap();
        // The writer passes whole blocks of 1 MiB to the disk.
        writer.write_chunk(&[7; 3 << 20]).unwrap();
        let path = root.path().join("snap/00000000000000000005.unfinished");
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(&[8], 1 << 20).unwrap();
        let error = writer.finish().unwrap_err().to_string();
        assert!(error.contains("read back"), "unexpected error: {error}");
        assert_eq!(load(&snapshots).unwrap(), (1, vec![b"first".to_vec()]));
        assert_eq!(names(root.path()), ["00000000000000000001.snap"]);
    }

    #[test]
    fn files_of_others_are_named_and_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let other = open(root.path(), OTHER);
        write(&other, 7, &[b"other"]);
        std::mem::forget(other.create(8).unwrap());
        drop(other);
        let snap = root.path().join("snap");
        // A header makes the unfinished file recognizable.
        fs::copy(snap.join(name::complete(7)), snap.join(name::unfinished(8))).unwrap();
        fs::copy(snap.join(name::complete(7)), snap.join("backup.snap")).unwrap();
        fs::write(snap.join("notes.unfinished"), "x").unwrap();
        fs::write(snap.join("00000000000000000003.snap.damaged"), "x").unwrap();
        let before = names(root.path());
        let snapshots = open(root.path(), IDENTITY);
        assert_eq!(load(&snapshots).unwrap(), (0, vec![]));
        let foreign = snapshots.foreign_files().unwrap();
        let found: Vec<_> =
            foreign.iter().map(|file| file.path.file_name().unwrap().to_str().unwrap()).collect();
        let expected = [
            "00000000000000000007.snap",
            "00000000000000000008.unfinished",
            "backup.snap",
            "notes.unfinished",
        ];
        assert_eq!(found, expected);
        assert!(foreign[0].reason.contains("cluster 000000000000000d"), "{}", foreign[0].reason);
        // A snapshot is not written over a foreign file.
        assert!(snapshots.create(7).is_err() && snapshots.create(8).is_err());
        for covered in [4, 5, 6] {
            write(&snapshots, covered, &[b"own"]);
            snapshots.remove_older().unwrap();
        }
        assert!(before.iter().all(|name| names(root.path()).contains(name)));
        drop(snapshots);
        assert_eq!(load(&open(root.path(), OTHER)).unwrap(), (7, vec![b"other".to_vec()]));
    }

    /// Without a manifest, as in data directories of earlier versions, the identity decides.
    /// A file without identity counts as own until the manifest is written.
    #[test]
    fn snapshots_without_a_manifest_are_adopted() {
        let root = tempfile::tempdir().unwrap();
        let snapshots = open(root.path(), IDENTITY);
        write(&snapshots, 5, &[b"own"]);
        fs::remove_file(&snapshots.manifest).unwrap();
        let other = root.path().join("snap").join(name::complete(9));
        let owner = Some(Owner { identity: OTHER, id: 1 });
        fs::write(&other, Header { covered: 9, owner }.encode()).unwrap();
        assert_eq!(load(&snapshots).unwrap(), (5, vec![b"own".to_vec()]));
        assert!(snapshots.newest().unwrap().unwrap().proven);
        let unowned = Header { covered: 7, owner: None }.encode();
        fs::write(root.path().join("snap").join(name::complete(7)), &unowned).unwrap();
        fs::write(root.path().join("snap").join(name::complete(8)), &unowned).unwrap();
        let newest = snapshots.newest().unwrap().unwrap();
        assert_eq!((newest.covered, newest.proven), (7, false));
        snapshots.adopt(Some(&newest)).unwrap();
        let generations = snapshots.generations().unwrap();
        assert_eq!(
            generations.iter().map(|g| (g.covered, g.proven)).collect::<Vec<_>>(),
            [(7, true)]
        );
    }

    /// A start on a full disk could not write the manifest of a directory of an earlier
    /// version. The process ends before it renames its next snapshot.
    #[test]
    fn the_snapshot_in_use_stays_listed_if_the_next_one_is_not_renamed() {
        let root = tempfile::tempdir().unwrap();
        let snapshots = open(root.path(), IDENTITY);
        write(&snapshots, 500, &[b"in use"]);
        fs::remove_file(&snapshots.manifest).unwrap();
        let in_the_way = root.path().join("snap").join(name::complete(900));
        let writer = snapshots.create(900).unwrap();
        fs::create_dir(&in_the_way).unwrap();
        assert!(writer.finish().is_err());
        fs::remove_dir(&in_the_way).unwrap();
        drop(snapshots);
        let expected = (500, vec![b"in use".to_vec()]);
        assert_eq!(load(&open(root.path(), IDENTITY)).unwrap(), expected);
    }

    /// Without a manifest, a damaged snapshot is set aside, and the one before is listed.
    #[test]
    fn the_snapshot_before_a_damaged_one_stays_in_use_without_a_manifest() {
        let root = tempfile::tempdir().unwrap();
        let snapshots = open(root.path(), IDENTITY);
        write(&snapshots, 5, &[b"before"]);
        write(&snapshots, 9, &[b"damaged"]);
        fs::remove_file(&snapshots.manifest).unwrap();
        let damaged = snapshots.newest().unwrap().unwrap();
        let renamed = root.path().join("snap/00000000000000000009.snap.damaged");
        snapshots.set_aside(&damaged, &renamed).unwrap();
        assert_eq!(load(&snapshots).unwrap(), (5, vec![b"before".to_vec()]));
    }

    /// A crash between the manifest and the renaming leaves an unfinished file that is listed.
    #[test]
    fn a_snapshot_that_was_not_renamed_is_no_longer_listed() {
        let root = tempfile::tempdir().unwrap();
        let snapshots = open(root.path(), IDENTITY);
        write(&snapshots, 5, &[b"in use"]);
        write(&snapshots, 9, &[b"not renamed"]);
        let snap = root.path().join("snap");
        fs::rename(snap.join(name::complete(9)), snap.join(name::unfinished(9))).unwrap();
        assert_eq!(snapshots.missing().unwrap(), None, "it never existed");
        drop(snapshots);
        let snapshots = open(root.path(), IDENTITY);
        assert_eq!(names(root.path()), [name::complete(5)]);
        let text = fs::read_to_string(&snapshots.manifest).unwrap();
        assert!(text.contains(&format!("{:020}", 5)) && !text.contains(&format!("{:020}", 9)));
    }

    #[test]
    fn a_directory_is_locked() {
        let root = tempfile::tempdir().unwrap();
        let snapshots = open(root.path(), IDENTITY);
        let (directory, manifest) = (root.path().join("snap"), root.path().join("MANIFEST"));
        for error in [
            Snapshots::open(directory.clone(), manifest.clone(), OTHER).unwrap_err(),
            Snapshots::inspect(directory.clone(), manifest.clone(), OTHER).unwrap_err(),
        ] {
            assert!(matches!(error, Error::SnapshotsInUse { .. }), "unexpected error: {error}");
        }
        drop(snapshots);
        Snapshots::inspect(directory, manifest, OTHER).unwrap().open_for_writing().unwrap();
    }
}
