//! The file `HEAD`, which states what the log must contain at least.
//!
//! A log that has lost its end looks like a shorter log. Therefore `HEAD` states the newest
//! segment, its size, and a record that is durable; a log without them is refused. `HEAD`
//! is behind the log most of the time, but never ahead: it names a segment after its
//! header and its file name are durable, and before any of its records counts as durable.
//!
//! ```text
//! slot:  magic (6) · format u16 · generation u64 · first u64 · bytes u64 · durable u64 · crc32c u32
//! ```
//! The file has two slots. A write goes to the slot with the older generation, in place. So
//! it needs no space on a full disk (unless the file system copies each changed block), and if
//! it is interrupted or fails for lack of space, the other slot is intact.
//! [`HeadFile::write_both`] writes both slots: then a damaged slot loses nothing.
//!
//! In format 1, `HEAD` was one line of text with the newest segment only, and was replaced
//! before the first record of each segment.

use std::io;
use std::sync::Arc;

use crc32c::crc32c;
use files::Error;
use files::framing::FORMAT;

use crate::medium::{LogFile, Medium};

/// File name of `HEAD`.
pub(crate) const NAME: &str = "HEAD";
/// First bytes of a slot.
const MAGIC: [u8; 6] = *b"K1MHED";
/// Offset of the second slot: the slots are in different pages and disk sectors.
const SLOT_BYTES: usize = 4096;
/// Size of a slot's content in bytes.
const CONTENT_BYTES: usize = 44;

/// What a log must contain at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Head {
    /// First sequence of the newest segment; 0 if no segment is required.
    pub(crate) first: u64,
    /// Size of that segment in bytes; 0 if it is unknown.
    pub(crate) bytes: u64,
    /// Sequence of a durable record; 0 if none is known.
    pub(crate) durable: u64,
}

/// The `HEAD` of a log as it was read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StoredHead {
    pub(crate) head: Head,
    /// The format; 0 if the file is missing.
    pub(crate) format: u16,
    generation: u64,
}

impl StoredHead {
    /// Whether the log had a `HEAD` that is updated in place, so that a segment after
    /// [`Head::first`] has no durable record.
    pub(crate) fn names_every_durable_segment(&self) -> bool {
        self.format > 1
    }
}

/// Reads `HEAD`.
pub(crate) fn read(medium: &dyn Medium) -> Result<StoredHead, Error> {
    let path = medium.path().join(NAME);
    let content = match medium.open(NAME).and_then(|file| file.read()) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(StoredHead::default()),
        Err(error) => return Err(Error::read(path, 0)(error)),
    };
    if let Some(first) = decode_text(&content) {
        let head = Head { first, ..Head::default() };
        return Ok(StoredHead { head, format: 1, generation: 0 });
    }
    let slots = [content.get(..CONTENT_BYTES), content.get(SLOT_BYTES..)];
    let slots = slots.map(|slot| slot.map_or(Slot::Damaged, decode_slot));
    if let Some(format) = slots.iter().find_map(Slot::newer_format) {
        return Err(Error::newer_format(&path, format));
    }
    let newest = slots.iter().filter_map(Slot::valid).max_by_key(|stored| stored.generation);
    match newest.filter(|_| content.len() == SLOT_BYTES + CONTENT_BYTES) {
        Some(newest) => Ok(*newest),
        None => {
            let reason = "its size or its checksum is wrong".into();
            Err(Error::Corrupt { file: path, offset: 0, reason })
        }
    }
}

/// The open file `HEAD`.
pub(crate) struct HeadFile {
    medium: Arc<dyn Medium>,
    /// `None` until the file exists in the current format.
    file: Option<Arc<dyn LogFile>>,
    stored: StoredHead,
}

impl HeadFile {
    /// Opens the file, which contains `stored`.
    pub(crate) fn open(medium: Arc<dyn Medium>, stored: StoredHead) -> io::Result<Self> {
        let file = (stored.format == FORMAT).then(|| medium.open(NAME)).transpose()?;
        Ok(HeadFile { medium, file, stored })
    }

    /// Returns the content.
    pub(crate) fn get(&self) -> Head {
        self.stored.head
    }

    /// Whether the file exists in the current format. If not, [`HeadFile::write`] needs
    /// space on the disk.
    pub(crate) fn exists(&self) -> bool {
        self.file.is_some()
    }

    /// Writes `head` durably, unless the file contains it already.
    pub(crate) fn write(&mut self, head: Head) -> io::Result<()> {
        match self.file.is_some() && head == self.stored.head {
            true => Ok(()),
            false => self.write_next(head),
        }
    }

    /// Writes `head` durably to both slots.
    pub(crate) fn write_both(&mut self, head: Head) -> io::Result<()> {
        self.write_next(head)?;
        self.write_next(head)
    }

    /// Writes `head` to the slot with the older generation. Creates the file if necessary.
    fn write_next(&mut self, head: Head) -> io::Result<()> {
        let generation = self.stored.generation + 1;
        let stored = StoredHead { head, format: FORMAT, generation };
        match &self.file {
            Some(file) => {
                file.write_all_at(&encode_slot(&stored), offset(generation))?;
                file.sync()?;
            }
            None => {
                self.medium.replace(NAME, &encode_file(&stored))?;
                self.file = Some(self.medium.open(NAME)?);
            }
        }
        self.stored = stored;
        Ok(())
    }
}

/// Returns the offset of the slot for a generation.
fn offset(generation: u64) -> u64 {
    (generation % 2) * SLOT_BYTES as u64
}

/// Returns the content of a new file, with `stored` in both slots.
fn encode_file(stored: &StoredHead) -> Vec<u8> {
    let slot = encode_slot(stored);
    let mut content = slot.to_vec();
    content.resize(SLOT_BYTES, 0);
    content.extend(slot);
    content
}

fn encode_slot(stored: &StoredHead) -> [u8; CONTENT_BYTES] {
    let mut slot = [0; CONTENT_BYTES];
    slot[..6].copy_from_slice(&MAGIC);
    slot[6..8].copy_from_slice(&stored.format.to_le_bytes());
    let Head { first, bytes, durable } = stored.head;
    for (index, number) in [stored.generation, first, bytes, durable].into_iter().enumerate() {
        slot[8 + 8 * index..][..8].copy_from_slice(&number.to_le_bytes());
    }
    let checksum = crc32c(&slot[..CONTENT_BYTES - 4]);
    slot[CONTENT_BYTES - 4..].copy_from_slice(&checksum.to_le_bytes());
    slot
}

/// A decoded slot.
enum Slot {
    Valid(StoredHead),
    /// It has this newer format.
    Newer(u16),
    Damaged,
}

impl Slot {
    fn valid(&self) -> Option<&StoredHead> {
        if let Slot::Valid(stored) = self { Some(stored) } else { None }
    }

    fn newer_format(&self) -> Option<u16> {
        if let Slot::Newer(format) = self { Some(*format) } else { None }
    }
}

fn decode_slot(slot: &[u8]) -> Slot {
    let Some(slot) = slot.first_chunk::<CONTENT_BYTES>() else { return Slot::Damaged };
    let format = u16::from_le_bytes([slot[6], slot[7]]);
    if slot[..6] == MAGIC && format > FORMAT {
        return Slot::Newer(format);
    }
    let number = |index: usize| {
        let bytes = slot[8 + 8 * index..][..8].try_into().expect("eight bytes");
        u64::from_le_bytes(bytes)
    };
    let head = Head { first: number(1), bytes: number(2), durable: number(3) };
    let stored = StoredHead { head, format, generation: number(0) };
    match format > 1 && encode_slot(&stored) == *slot {
        true => Slot::Valid(stored),
        false => Slot::Damaged,
    }
}

/// Decodes a `HEAD` of format 1. Returns the first sequence of the segment that it names.
fn decode_text(content: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(content).ok()?.get(..20)?;
    let first = digits.parse().ok()?;
    let expected = format!("{first:020} {:08x}\n", crc32c(digits.as_bytes()));
    (expected.as_bytes() == content).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes must never change, because existing directories contain them.
    #[test]
    fn format_is_fixed() {
        assert_eq!(decode_text(b"00000000000000004711 a2c04146\n"), Some(4711));
        assert_eq!(decode_text(b"00000000000000004712 a2c04146\n"), None);
        let head = Head { first: 4711, bytes: 1 << 26, durable: 4800 };
        let slot = encode_slot(&StoredHead { head, format: 3, generation: 3 });
        let hex: String = slot.iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = "4b314d4845440300 0300000000000000 6712000000000000 \
                        0000000400000000 c012000000000000 725f5a7d";
        assert_eq!(hex, expected.replace(' ', ""));
        assert!(matches!(decode_slot(&slot), Slot::Valid(stored) if stored.head == head));
    }
}
