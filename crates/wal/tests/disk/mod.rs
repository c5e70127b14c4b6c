//! A simulated disk for the tests of the log and of the pipeline.
//!
//! The disk distinguishes the bytes that an fsync has covered from bytes that were only
//! written. A power cut keeps any subset of the unsynced blocks. A test sets faults in
//! `DiskState`; a fault hits the next operation of its kind.
//!
//! A failed fsync behaves as on ext4 and xfs: the page cache keeps the written bytes, but
//! marks their blocks as clean. The next fsync succeeds without writing them, and they are
//! lost when the page cache drops them ([`Disk::drop_page_cache`]) or the power is cut.
//!
//! With `overwrites_need_space`, the disk has a file system with copy-on-write: a write to a
//! block that is on the disk already needs space for a copy. The first write to an allocated
//! block needs none.
//!
//! The names of created and renamed files are durable after `sync_names`. A power cut undoes
//! any number of the changes since then, the newest first.

// Each test binary uses only a part of this module.
#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use wal::{LogFile, Medium};

/// Size of a block in bytes. A power cut keeps or loses whole blocks.
const BLOCK_BYTES: usize = 64;

#[derive(Clone, Default)]
pub struct File {
    /// Identifies the file for open handles, also after it was renamed.
    id: u64,
    /// The content at the last fsync.
    pub durable: Vec<u8>,
    /// The content that a process reads.
    pub current: Vec<u8>,
    /// The numbers of the blocks that the next fsync writes.
    pub dirty: BTreeSet<usize>,
    /// The part that the disk cannot read, for example because of a broken sector.
    pub unreadable: Range<usize>,
}

impl File {
    /// Returns a file whose content is durable.
    pub fn durable(content: Vec<u8>) -> File {
        File { durable: content.clone(), current: content, ..File::default() }
    }

    /// Writes `bytes` at `offset` into the page cache.
    fn write(&mut self, bytes: &[u8], offset: usize) {
        self.current[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.dirty.extend((offset..offset + bytes.len()).map(|at| at / BLOCK_BYTES));
    }

    /// Returns the size of the blocks that a write copies if blocks are copied on write.
    fn copied_bytes(&self, len: usize, offset: usize) -> u64 {
        let is_written = |block: &usize| {
            let content = self.durable.iter().skip(block * BLOCK_BYTES).take(BLOCK_BYTES);
            !self.dirty.contains(block) && content.into_iter().any(|byte| *byte != 0)
        };
        let blocks = offset / BLOCK_BYTES..(offset + len).div_ceil(BLOCK_BYTES);
        (blocks.filter(is_written).count() * BLOCK_BYTES) as u64
    }

    /// Writes the dirty blocks for which `keep` returns true to the disk. All blocks are
    /// clean afterwards.
    fn write_back(&mut self, mut keep: impl FnMut() -> bool) {
        self.durable.resize(self.current.len(), 0);
        for block in std::mem::take(&mut self.dirty) {
            let start = block * BLOCK_BYTES;
            let end = (start + BLOCK_BYTES).min(self.current.len());
            if start < end && keep() {
                self.durable[start..end].copy_from_slice(&self.current[start..end]);
            }
        }
    }
}

/// A change of file names that is not durable yet.
#[derive(Clone)]
enum NameChange {
    Created(String),
    Renamed { from: String, to: String, replaced: Option<File> },
}

#[derive(Default)]
pub struct DiskState {
    pub files: BTreeMap<String, File>,
    /// Oldest first.
    unsynced_names: Vec<NameChange>,
    /// The number of files that were ever created.
    created: u64,
    /// Space for new files; `None` for no limit.
    pub free_bytes: Option<u64>,
    /// Whether a write to a block that is on the disk needs free space for a copy.
    pub overwrites_need_space: bool,
    /// Makes the next write fail after it has written this many bytes.
    pub fail_next_write_after: Option<usize>,
    pub fail_next_sync: bool,
    pub fail_next_sync_names: bool,
    pub fail_next_replace: bool,
    pub fail_next_read: bool,
    pub fail_next_create: Option<io::ErrorKind>,
    /// The operations that wait for a disk, with the threads that called them.
    pub slow_operations: Vec<(ThreadId, &'static str)>,
}

impl DiskState {
    /// Adds a file. Returns its ID.
    fn add(&mut self, name: &str, file: File) -> u64 {
        self.created += 1;
        self.files.insert(name.into(), File { id: self.created, ..file });
        self.created
    }

    /// Undoes a change of file names.
    fn undo(&mut self, change: NameChange) {
        match change {
            NameChange::Created(name) => drop(self.files.remove(&name)),
            NameChange::Renamed { from, to, replaced } => {
                if let Some(file) = self.files.remove(&to) {
                    self.files.insert(from, file);
                }
                if let Some(file) = replaced {
                    self.files.insert(to, file);
                }
            }
        }
    }

    /// Writes the dirty blocks for which `keep` returns true to the disk, and drops all
    /// others.
    fn drop_data(&mut self, mut keep: impl FnMut() -> bool) {
        for file in self.files.values_mut() {
            file.write_back(&mut keep);
            file.current = file.durable.clone();
        }
    }

    /// Fails if copies of `bytes` bytes need more space than there is.
    fn require_space_for_copies(&self, bytes: u64) -> io::Result<()> {
        match self.overwrites_need_space && self.free_bytes.is_some_and(|free| free < bytes) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }

    /// Notes an operation that waits for a disk.
    fn slow(&mut self, operation: &'static str) {
        self.slow_operations.push((std::thread::current().id(), operation));
    }
}

/// The simulated disk. A clone shares its files.
#[derive(Clone, Default)]
pub struct Disk(pub Arc<Mutex<DiskState>>);

/// An open file: its disk and its ID.
struct DiskFile(Disk, u64);

impl Disk {
    /// Returns a copy of the disk, with the files as a process that starts now would find
    /// them. `copy_other_files` copies files outside this disk; the disk does not change
    /// meanwhile.
    pub fn copy_with(&self, copy_other_files: impl FnOnce()) -> Disk {
        let state = self.0.lock().unwrap();
        copy_other_files();
        let (files, created) = (state.files.clone(), state.created);
        let unsynced_names = state.unsynced_names.clone();
        let copy = DiskState { files, unsynced_names, created, ..DiskState::default() };
        Disk(Arc::new(Mutex::new(copy)))
    }

    /// Simulates a power cut. Of the blocks that the next fsync of their file would write,
    /// it keeps those for which `keep` returns true.
    pub fn cut_power(&self, mut keep: impl FnMut() -> bool) {
        let mut state = self.0.lock().unwrap();
        while let Some(change) = state.unsynced_names.pop() {
            if keep() {
                state.unsynced_names.clear();
            } else {
                state.undo(change);
            }
        }
        state.drop_data(keep);
    }

    /// Simulates that the kernel drops the data that is not synced, while the machine keeps
    /// running: the names of the files stay.
    pub fn drop_unsynced_data(&self) {
        self.0.lock().unwrap().drop_data(|| false);
    }

    /// Simulates memory pressure: the kernel writes the dirty blocks, and drops all blocks
    /// from the page cache. The next read returns what is on the disk.
    pub fn drop_page_cache(&self) {
        self.cut_power(|| true);
    }

    /// Changes the log to format 1, as an early version wrote it, without `HEAD`.
    pub fn make_format_1(&self) {
        let mut state = self.0.lock().unwrap();
        state.files.remove("HEAD").unwrap();
        for file in state.files.values_mut() {
            file.current[6] = 1;
            let checksum = crc32c(&file.current[..20]);
            file.current[20..24].copy_from_slice(&checksum.to_le_bytes());
            *file = File::durable(file.current.clone());
        }
    }

    /// Flips a bit of the byte at `position`, counted over all files. Returns whether the
    /// byte was not 0.
    pub fn flip_bit(&self, position: usize) -> bool {
        let mut state = self.0.lock().unwrap();
        let total: usize = state.files.values().map(|f| f.current.len()).sum();
        let mut position = position % total.max(1);
        for file in state.files.values_mut() {
            if position < file.current.len() {
                file.current[position] ^= 1;
                return file.current[position] != 1;
            }
            position -= file.current.len();
        }
        false
    }
}

/// Returns the CRC-32C of `bytes`.
fn crc32c(bytes: &[u8]) -> u32 {
    let shift = |crc: u32| (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
    let add = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), |crc, _| shift(crc));
    !bytes.iter().fold(u32::MAX, add)
}

impl Medium for Disk {
    fn path(&self) -> &Path {
        Path::new("/disk")
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.0.lock().unwrap().files.keys().cloned().collect())
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn LogFile>> {
        let mut state = self.0.lock().unwrap();
        state.slow("create");
        if let Some(kind) = state.fail_next_create.take() {
            return Err(kind.into());
        }
        if let Some(free) = &mut state.free_bytes {
            *free = free.checked_sub(bytes).ok_or(io::ErrorKind::StorageFull)?;
        }
        let id = state.add(name, File::durable(vec![0; bytes as usize]));
        state.unsynced_names.push(NameChange::Created(name.into()));
        Ok(Arc::new(DiskFile(self.clone(), id)))
    }

    fn free_bytes(&self) -> Option<u64> {
        Some(self.0.lock().unwrap().free_bytes.unwrap_or(u64::MAX))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        let file = state.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        let replaced = state.files.insert(to.into(), file);
        let (from, to) = (from.into(), to.into());
        state.unsynced_names.push(NameChange::Renamed { from, to, replaced });
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.slow("sync_names");
        if std::mem::take(&mut state.fail_next_sync_names) {
            return Err(io::Error::other("injected"));
        }
        state.unsynced_names.clear();
        Ok(())
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn LogFile>> {
        let mut state = self.0.lock().unwrap();
        let file = state.files.get(name).ok_or(io::ErrorKind::NotFound)?;
        let id = match file.id {
            // A test has added the file.
            0 => {
                let file = state.files.remove(name).unwrap();
                state.add(name, file)
            }
            id => id,
        };
        Ok(Arc::new(DiskFile(self.clone(), id)))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.slow("remove");
        state.files.remove(name).ok_or(io::ErrorKind::NotFound)?;
        state.unsynced_names.clear();
        Ok(())
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.slow("replace");
        if state.free_bytes == Some(0) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        // A new file is written and synced before it gets the name.
        if std::mem::take(&mut state.fail_next_replace) {
            return Err(io::Error::other("injected"));
        }
        state.add(name, File::durable(bytes.to_vec()));
        state.unsynced_names.clear();
        Ok(())
    }

    fn mark(&self, name: &str) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.add(name, File::default());
        state.unsynced_names.push(NameChange::Created(name.into()));
        Ok(())
    }
}

impl DiskFile {
    fn with_file<T>(&self, f: impl FnOnce(&mut File) -> T) -> T {
        let mut state = self.0.0.lock().unwrap();
        // A removed file can still be used through its open handle. What is written to it
        // is lost.
        let file = state.files.values_mut().find(|file| file.id == self.1);
        f(file.unwrap_or(&mut File { current: vec![0; 1 << 21], ..File::default() }))
    }
}

impl LogFile for DiskFile {
    fn size(&self) -> io::Result<usize> {
        Ok(self.with_file(|file| file.current.len()))
    }

    fn fill(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        if std::mem::take(&mut self.0.0.lock().unwrap().fail_next_read) {
            return Err(io::Error::other("injected"));
        }
        self.with_file(|file| {
            let (start, end) = (offset as usize, offset as usize + bytes.len());
            if start < file.unreadable.end && file.unreadable.start < end {
                return Err(io::Error::from_raw_os_error(5));
            }
            bytes.copy_from_slice(&file.current[start..end]);
            Ok(())
        })
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let short = self.0.0.lock().unwrap().fail_next_write_after.take();
        let len = short.unwrap_or(bytes.len()).min(bytes.len());
        let copied = self.with_file(|file| file.copied_bytes(len, offset as usize));
        self.0.0.lock().unwrap().require_space_for_copies(copied)?;
        self.with_file(|file| file.write(&bytes[..len], offset as usize));
        if short.is_some() { Err(io::Error::other("injected")) } else { Ok(()) }
    }

    fn sync(&self) -> io::Result<()> {
        self.0.0.lock().unwrap().slow("sync");
        if std::mem::take(&mut self.0.0.lock().unwrap().fail_next_sync) {
            self.with_file(|file| file.dirty.clear());
            return Err(io::Error::other("injected"));
        }
        self.with_file(|file| file.write_back(|| true));
        Ok(())
    }
}
