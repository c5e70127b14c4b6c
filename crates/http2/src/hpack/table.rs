//! The static and the dynamic table (RFC 7541, section 2.3).

use std::collections::VecDeque;

use super::ENTRY_OVERHEAD_BYTES;

/// A header field in the dynamic table.
struct Entry {
    /// Name and value.
    bytes: Box<[u8]>,
    name_len: usize,
}

impl Entry {
    fn field(&self) -> (&[u8], &[u8]) {
        self.bytes.split_at(self.name_len)
    }

    /// Size in bytes, as HPACK counts it.
    fn size(&self) -> usize {
        self.bytes.len() + ENTRY_OVERHEAD_BYTES
    }
}

/// Both tables. When the dynamic table would exceed `max_size` bytes, its oldest entries
/// are evicted.
pub(super) struct Table {
    /// Dynamic entries, newest first.
    entries: VecDeque<Entry>,
    /// Size of the dynamic entries in bytes.
    size: usize,
    max_size: usize,
}

impl Table {
    pub(super) fn new(max_size: usize) -> Self {
        Table { entries: VecDeque::new(), size: 0, max_size }
    }

    /// Returns the name and value at an index. The first index is 1.
    pub(super) fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        if let Some((name, value)) = STATIC.get(index.checked_sub(1)?) {
            return Some((name.as_bytes(), value.as_bytes()));
        }
        self.entries.get(index - 1 - STATIC.len()).map(Entry::field)
    }

    /// Adds a field. A field that is larger than the table empties it and is not added.
    pub(super) fn insert(&mut self, name: &[u8], value: &[u8]) {
        let entry = Entry { bytes: [name, value].concat().into(), name_len: name.len() };
        self.evict_to(self.max_size.saturating_sub(entry.size()));
        if entry.size() <= self.max_size {
            self.size += entry.size();
            self.entries.push_front(entry);
        }
    }

    pub(super) fn set_max_size(&mut self, max_size: usize) {
        self.max_size = max_size;
        self.evict_to(max_size);
    }

    /// Evicts entries until the dynamic entries have at most `size` bytes.
    fn evict_to(&mut self, size: usize) {
        while self.size > size {
            let Some(oldest) = self.entries.pop_back() else { break };
            self.size -= oldest.size();
        }
    }
}

/// Number of entries of the static table.
pub(super) const STATIC_ENTRIES: usize = 61;

/// The static table (RFC 7541, appendix A).
#[rustfmt::skip]
const STATIC: [(&str, &str); STATIC_ENTRIES] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];
