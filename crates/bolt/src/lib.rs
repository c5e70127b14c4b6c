//! A reader for bbolt files, in which etcd stores its data. It keeps only the pages from
//! the root to the current page in memory, so a file may be larger than memory.
//!
//! ```text
//! file:    page page page …, each a multiple of the page size
//! page:    number u64 · flags u16 · count u16 · overflow u32 · elements, keys, values
//! meta:    pages 0 and 1; the intact one with the higher transaction ID applies
//! branch:  elements of: position u32 · key length u32 · page u64
//! leaf:    elements of: flags u32 · position u32 · key length u32 · value length u32
//! bucket:  the value of a leaf element with flag 1: root page u64 · sequence u64;
//!          if the root page is 0, a leaf page follows inline
//! ```
//! All numbers are little-endian. A position is relative to its element.
//!
//! # Invariant
//! Reading terminates for any content of a file. If a visited page is damaged, reading
//! may fail with an error, but it never panics.

#![warn(missing_docs)]

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const MAGIC: u32 = 0xed0c_daed;
const VERSION: u32 = 2;
const PAGE_HEADER_BYTES: usize = 16;
const ELEMENT_BYTES: usize = 16;
const BUCKET_BYTES: usize = 16;
const META_BYTES: usize = 64;
/// Offset of the checksum in a meta page, after the page header.
const CHECKSUM_OFFSET: usize = 56;
/// Page flags.
const BRANCH: u16 = 1;
const LEAF: u16 = 2;
/// Flag of a leaf element whose value is a bucket.
const BUCKET_FLAG: u32 = 1;
/// Possible page sizes in bytes. They are also the possible offsets of the second meta
/// page.
const PAGE_SIZES: std::ops::RangeInclusive<u32> = 1024..=65_536;
/// Maximum depth of a tree. No valid file has a deeper one.
const MAX_DEPTH: usize = 64;

/// The reason why a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An I/O error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file has no valid meta page.
    #[error("not a bbolt file, or both meta pages are damaged")]
    NoMeta,
    /// The file is shorter than its meta page requires.
    #[error("the file is truncated: {bytes} bytes, expected {pages} pages of {page_bytes} bytes")]
    Truncated {
        /// The size of the file.
        bytes: u64,
        /// The expected number of pages.
        pages: u64,
        /// The page size.
        page_bytes: u64,
    },
    /// A page is inconsistent.
    #[error("page {page} is damaged: {reason}")]
    Damaged {
        /// The page number.
        page: u64,
        /// The inconsistency.
        reason: &'static str,
    },
    /// The caller rejected the content of the file.
    #[error("{0}")]
    Refused(String),
}

/// An open bbolt file.
pub struct Db {
    file: File,
    page_bytes: u64,
    /// Number of pages in the file.
    pages: u64,
    /// Page number of the root of the tree of buckets.
    root: u64,
}

/// A function called with each key and value.
type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<(), String>;

/// Whether a file is a bbolt file. `start` are its first bytes, at least 20.
pub fn is_bolt(start: &[u8]) -> bool {
    start.get(PAGE_HEADER_BYTES..PAGE_HEADER_BYTES + 4) == Some(&MAGIC.to_le_bytes()[..])
}

impl Db {
    /// Opens the state after the newest transaction. The database is the first `bytes`
    /// bytes of `file`.
    ///
    /// # Errors
    /// Fails if there is no valid meta page or the file is truncated.
    pub fn open(file: File, bytes: u64) -> Result<Db, Error> {
        let mut offsets = vec![0];
        offsets.extend((0..7).map(|power| u64::from(*PAGE_SIZES.start()) << power));
        let metas = offsets.into_iter().filter_map(|offset| read_meta(&file, offset));
        let newest = metas.max_by_key(|meta| meta.transaction).ok_or(Error::NoMeta)?;
        let page_bytes = u64::from(newest.page_bytes);
        let pages = newest.pages;
        if pages > bytes / page_bytes {
            return Err(Error::Truncated { bytes, pages, page_bytes });
        }
        Ok(Db { file, page_bytes, pages, root: newest.root })
    }

    /// Calls `visit` for each key-value pair of a top-level bucket, in key order. Returns
    /// whether the bucket exists.
    ///
    /// # Errors
    /// Fails if a visited page is damaged or cannot be read, or if `visit` fails.
    pub fn for_each(
        &self,
        bucket: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), String>,
    ) -> Result<bool, Error> {
        let mut found = None;
        let mut walk = Walk { db: self, pages_left: self.pages, bucket_flag: BUCKET_FLAG };
        walk.visit_page(self.root, 0, &mut |key, value| {
            if key == bucket {
                found = Some(value.to_vec());
            }
            Ok(())
        })?;
        let Some(header) = found else { return Ok(false) };
        let damaged = || Error::Damaged { page: self.root, reason: "a bucket header is too short" };
        let root = u64_at(&header, 0).ok_or_else(damaged)?;
        let mut walk = Walk { db: self, pages_left: self.pages, bucket_flag: 0 };
        match root {
            0 => {
                let inline = header.get(BUCKET_BYTES..).ok_or_else(damaged)?;
                walk.visit_elements(inline, self.root, 0, &mut visit)?;
            }
            root => walk.visit_page(root, 0, &mut visit)?,
        }
        Ok(true)
    }

    /// Reads a page and its overflow pages.
    fn read_page(&self, page: u64) -> Result<Vec<u8>, Error> {
        let damaged = |reason| Error::Damaged { page, reason };
        if page >= self.pages {
            return Err(damaged("it is beyond the end of the file"));
        }
        let mut bytes = vec![0; self.page_bytes as usize];
        self.file.read_exact_at(&mut bytes, page * self.page_bytes)?;
        if u64_at(&bytes, 0) != Some(page) {
            return Err(damaged("its header contains another page number"));
        }
        let overflow = u64::from(u32_at(&bytes, 12).unwrap_or(0));
        if overflow >= self.pages - page {
            return Err(damaged("its overflow pages are beyond the end of the file"));
        }
        bytes.resize(((overflow + 1) * self.page_bytes) as usize, 0);
        let (first, rest) = bytes.split_at_mut(self.page_bytes as usize);
        self.file.read_exact_at(rest, page * self.page_bytes + first.len() as u64)?;
        Ok(bytes)
    }
}

struct Meta {
    page_bytes: u32,
    root: u64,
    pages: u64,
    transaction: u64,
}

/// Reads the meta page at `offset`. Returns `None` if it is invalid.
fn read_meta(file: &File, offset: u64) -> Option<Meta> {
    let mut bytes = [0; META_BYTES];
    file.read_exact_at(&mut bytes, offset + PAGE_HEADER_BYTES as u64).ok()?;
    let intact = u32_at(&bytes, 0)? == MAGIC
        && u32_at(&bytes, 4)? == VERSION
        && u64_at(&bytes, CHECKSUM_OFFSET)? == fnv1a(&bytes[..CHECKSUM_OFFSET]);
    let page_bytes = u32_at(&bytes, 8)?;
    (intact && page_bytes.is_power_of_two() && PAGE_SIZES.contains(&page_bytes)).then_some(Meta {
        page_bytes,
        root: u64_at(&bytes, 16)?,
        pages: u64_at(&bytes, 40)?,
        transaction: u64_at(&bytes, 48)?,
    })
}

/// A traversal of one tree.
struct Walk<'a> {
    db: &'a Db,
    /// Number of pages that may still be visited. A traversal that visits more pages than
    /// the file has is in a cycle.
    pages_left: u64,
    /// [`BUCKET_FLAG`] to visit buckets, 0 to visit pairs.
    bucket_flag: u32,
}

impl Walk<'_> {
    fn visit_page(&mut self, page: u64, depth: usize, visit: Visit<'_>) -> Result<(), Error> {
        let damaged = |reason| Error::Damaged { page, reason };
        if depth > MAX_DEPTH {
            return Err(damaged("the tree is too deep"));
        }
        self.pages_left =
            self.pages_left.checked_sub(1).ok_or_else(|| damaged("the tree has a cycle"))?;
        let bytes = self.db.read_page(page)?;
        self.visit_elements(&bytes, page, depth, visit)
    }

    fn visit_elements(
        &mut self,
        bytes: &[u8],
        page: u64,
        depth: usize,
        visit: Visit<'_>,
    ) -> Result<(), Error> {
        let damaged = |reason| Error::Damaged { page, reason };
        let flags = u16_at(bytes, 8).ok_or_else(|| damaged("it is too short"))?;
        let count = u16_at(bytes, 10).ok_or_else(|| damaged("it is too short"))?;
        for index in 0..usize::from(count) {
            let element = bytes
                .get(PAGE_HEADER_BYTES + index * ELEMENT_BYTES..)
                .filter(|element| element.len() >= ELEMENT_BYTES)
                .ok_or_else(|| damaged("an element is beyond its end"))?;
            let short = || damaged("a key or value is beyond its end");
            match flags {
                BRANCH => {
                    let child = u64_at(element, 8).ok_or_else(short)?;
                    self.visit_page(child, depth + 1, visit)?;
                }
                LEAF => {
                    let (flags, key, value) = leaf_pair(element).ok_or_else(short)?;
                    if flags & BUCKET_FLAG == self.bucket_flag {
                        visit(key, value).map_err(Error::Refused)?;
                    }
                }
                _ => return Err(damaged("it is neither a branch nor a leaf page")),
            }
        }
        Ok(())
    }
}

/// Returns the flags, the key and the value of a leaf element.
fn leaf_pair(element: &[u8]) -> Option<(u32, &[u8], &[u8])> {
    let position = u32_at(element, 4)? as usize;
    let (key_bytes, value_bytes) = (u32_at(element, 8)? as usize, u32_at(element, 12)? as usize);
    let rest = element.get(position..)?;
    let key = rest.get(..key_bytes)?;
    let value = rest.get(key_bytes..)?.get(..value_bytes)?;
    Some((u32_at(element, 0)?, key, value))
}

fn fnv1a(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
