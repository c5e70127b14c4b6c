//! A simulated disk for the tests of the log and of the pipeline.
//!
//! The disk distinguishes the bytes that an fsync has covered from bytes that were only
//! written. A power cut keeps any subset of the unsynced blocks. A test sets faults in
//! `DiskState`; a fault hits the next operation of its kind.

// Each test binary uses only a part of this module.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use wal::{LogFile, Medium};

/// Size of a block in bytes. A power cut keeps or loses whole blocks.
const BLOCK_BYTES: usize = 64;

#[derive(Clone, Default)]
pub struct File {
    /// The content at the last fsync.
    pub durable: Vec<u8>,
    /// The content that a process reads.
    pub current: Vec<u8>,
}

#[derive(Default)]
pub struct DiskState {
    pub files: BTreeMap<String, File>,
    /// Space for new files; `None` for no limit.
    pub free_bytes: Option<u64>,
    /// Makes the next write fail after it has written this many bytes.
    pub fail_next_write_after: Option<usize>,
    pub fail_next_sync: bool,
    pub fail_next_read: bool,
    pub fail_next_create: Option<io::ErrorKind>,
}

/// The simulated disk. A clone shares its files.
#[derive(Clone, Default)]
pub struct Disk(pub Arc<Mutex<DiskState>>);

/// An open file: its disk and its name.
struct DiskFile(Disk, String);

impl Disk {
    /// Returns a copy of the disk, with the files as a process that starts now would find
    /// them. `copy_other_files` copies files outside this disk; the disk does not change
    /// meanwhile.
    pub fn copy_with(&self, copy_other_files: impl FnOnce()) -> Disk {
        let state = self.0.lock().unwrap();
        copy_other_files();
        let files = state.files.clone();
        Disk(Arc::new(Mutex::new(DiskState { files, ..DiskState::default() })))
    }

    /// Simulates a power cut. Of the blocks that were written since the last fsync of
    /// their file, it keeps those for which `keep` returns true.
    pub fn cut_power(&self, mut keep: impl FnMut() -> bool) {
        for file in self.0.lock().unwrap().files.values_mut() {
            let mut remaining = file.durable.clone();
            for start in (0..file.current.len()).step_by(BLOCK_BYTES) {
                let end = (start + BLOCK_BYTES).min(file.current.len());
                if keep() {
                    remaining[start..end].copy_from_slice(&file.current[start..end]);
                }
            }
            *file = File { durable: remaining.clone(), current: remaining };
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

impl Medium for Disk {
    fn path(&self) -> &Path {
        Path::new("/disk")
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.0.lock().unwrap().files.keys().cloned().collect())
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn LogFile>> {
        let mut state = self.0.lock().unwrap();
        if let Some(kind) = state.fail_next_create.take() {
            return Err(kind.into());
        }
        if let Some(free) = &mut state.free_bytes {
            *free = free.checked_sub(bytes).ok_or(io::ErrorKind::StorageFull)?;
        }
        let zeros = vec![0; bytes as usize];
        let file = File { durable: zeros.clone(), current: zeros };
        assert!(state.files.insert(name.into(), file).is_none(), "{name} exists");
        Ok(Arc::new(DiskFile(self.clone(), name.into())))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn LogFile>> {
        if !self.0.lock().unwrap().files.contains_key(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Arc::new(DiskFile(self.clone(), name.into())))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.lock().unwrap().files.remove(name).map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        if state.free_bytes == Some(0) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let file = File { durable: bytes.to_vec(), current: bytes.to_vec() };
        state.files.insert(name.into(), file);
        Ok(())
    }
}

impl DiskFile {
    fn with_file<T>(&self, f: impl FnOnce(&mut File) -> T) -> T {
        // A removed file can still be used through its open handle.
        f(self.0.0.lock().unwrap().files.get_mut(&self.1).unwrap_or(&mut File::default()))
    }
}

impl LogFile for DiskFile {
    fn read(&self) -> io::Result<Vec<u8>> {
        if std::mem::take(&mut self.0.0.lock().unwrap().fail_next_read) {
            return Err(io::Error::other("injected"));
        }
        Ok(self.with_file(|file| file.current.clone()))
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let short = self.0.0.lock().unwrap().fail_next_write_after.take();
        let len = short.unwrap_or(bytes.len()).min(bytes.len());
        let offset = offset as usize;
        self.with_file(|file| file.current[offset..offset + len].copy_from_slice(&bytes[..len]));
        if short.is_some() { Err(io::Error::other("injected")) } else { Ok(()) }
    }

    fn zero_from(&self, offset: u64) -> io::Result<()> {
        self.with_file(|file| file.current[offset as usize..].fill(0));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        if std::mem::take(&mut self.0.0.lock().unwrap().fail_next_sync) {
            return Err(io::Error::other("injected"));
        }
        self.with_file(|file| file.durable = file.current.clone());
        Ok(())
    }
}
