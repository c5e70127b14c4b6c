//! Lists of header fields.

use crate::request::RequestBuilder;

/// Header or trailer fields in the order of arrival.
///
/// All names and values share one buffer, so a list needs two allocations. The names of
/// pseudo-header fields include the colon.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Fields {
    bytes: Vec<u8>,
    /// Length of the name and length of the value of each field, in bytes.
    lengths: Vec<(u32, u32)>,
}

impl Fields {
    /// Creates a list with room for so many fields, whose names and values have so many bytes.
    pub fn with_capacity(fields: usize, bytes: usize) -> Fields {
        Fields { bytes: Vec::with_capacity(bytes), lengths: Vec::with_capacity(fields) }
    }

    /// Appends a field.
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.lengths.push((name.len() as u32, value.len() as u32));
    }

    /// Returns the value of the first field with this name.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.iter().find(|(found, _)| *found == name).map(|(_, value)| value)
    }

    /// Returns the name and value of each field.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut rest = &self.bytes[..];
        self.lengths.iter().map(move |(name_len, value_len)| {
            let (name, behind) = rest.split_at(*name_len as usize);
            let (value, behind) = behind.split_at(*value_len as usize);
            rest = behind;
            (name, value)
        })
    }

    /// Approximate memory in bytes, including that of the allocations.
    pub(crate) fn held_bytes(&self) -> usize {
        const OVERHEAD_BYTES: usize = 64;
        OVERHEAD_BYTES + self.bytes.capacity() + self.lengths.capacity() * size_of::<(u32, u32)>()
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }
}

impl<'a> FromIterator<(&'a [u8], &'a [u8])> for Fields {
    fn from_iter<I: IntoIterator<Item = (&'a [u8], &'a [u8])>>(list: I) -> Self {
        let mut fields = Fields::default();
        list.into_iter().for_each(|(name, value)| fields.push(name, value));
        fields
    }
}

impl std::fmt::Debug for Fields {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |(name, value): (&[u8], &[u8])| {
            let [name, value] = [name, value].map(|b| b.escape_ascii().to_string());
            (name, value)
        };
        f.debug_map().entries(self.iter().map(text)).finish()
    }
}

/// Keeps every field of a request.
impl RequestBuilder for Fields {
    type Context = ();
    type Request = Fields;

    fn field(&mut self, (): &(), name: &[u8], value: &[u8]) {
        self.push(name, value);
    }

    fn build(self, (): &()) -> Fields {
        self
    }
}
