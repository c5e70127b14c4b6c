//! Static and dynamic tables (RFC 7541, section 2.3).

use std::collections::VecDeque;

use super::ENTRY_OVERHEAD_BYTES;

/// A header field in the dynamic table.
struct Entry {
    bytes: Box<[u8]>,
    name_len: usize,
}

impl Entry {
    fn field(&self) -> (&[u8], &[u8]) {
        self.bytes.split_at(self.name_len)
    }

    fn size(&self) -> usize {
        self.bytes.len() + ENTRY_OVERHEAD_BYTES
    }
}

/// Both tables. The oldest dynamic entries are evicted when the dynamic table exceeds
/// `max_size` bytes.
pub(super) struct Table {
    /// Dynamic entries, newest first.
    entries: VecDeque<Entry>,
    size: usize,
    max_size: usize,
}

impl Table {
    pub(super) fn new(max_size: usize) -> Self {
        Table { entries: VecDeque::new(), size: 0, max_size }
    }

    /// Returns the name and value at an index, which starts at 1.
    pub(super) fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        if let Some((name, value)) = STATIC.get(index.checked_sub(1)?) {
            return Some((name.as_bytes(), value.as_bytes()));
        }
        self.entries.get(index - 1 - STATIC.len()).map(Entry::field)
    }

    /// Adds a field. A field larger than the table only empties it.
    pub(super) fn insert(&mut self, name: &[u8], value: &[u8]) {
        let entry = Entry { bytes: [name, value].concat().into(), name_len: name.len() };
        self.shrink(self.max_size.saturating_sub(entry.size()));
        if entry.size() <= self.max_size {
            self.size += entry.size();
            self.entries.push_front(entry);
        }
    }

    pub(super) fn set_max_size(&mut self, max_size: usize) {
        self.max_size = max_size;
        self.shrink(max_size);
    }

    fn shrink(&mut self, size: usize) {
        while self.size > size {
            let Some(oldest) = self.entries.pop_back() else { break };
            self.size -= oldest.size();
        }
    }
}

/// Number of entries of the static table.
pub(super) const STATIC_ENTRIES: usize = 61;

/// RFC 7541, appendix A.
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
