//! Ranges: reads of keys at a revision, in bounded steps.
//!
//! A range may have millions of keys. A [`RangeCursor`] visits a bounded number of keys
//! in each step, so that writers can use the store between steps. The cursor reads the
//! revision at which it was created, even if the store changes between steps.

use etcdpb::rpc::range_request::{SortOrder, SortTarget};
use etcdpb::rpc::{RangeRequest, RangeResponse, ResponseHeader};
use etcdpb::{Key, KeyValue, Record};

use crate::error::Error;
use crate::index::Entry;
use crate::key_changes::KeyCount;
use crate::span::Span;
use crate::store::Store;

/// A range read in progress.
pub struct RangeCursor {
    span: Span,
    /// The revision to read.
    revision: i64,
    /// The revision for the response header.
    header_revision: i64,
    /// Maximum number of records to gather: one more than the limit, to find out whether
    /// more keys exist. `usize::MAX` if all have to be gathered.
    max_records: usize,
    /// The range ends when the gathered keys and values have at least this size in bytes.
    max_bytes: usize,
    /// Size of the gathered keys and values in bytes.
    gathered_bytes: usize,
    /// Whether the range ended at `max_bytes`.
    truncated: bool,
    /// Whether keys have to be counted that are not gathered.
    counts_all: bool,
    /// The key after which the next step continues.
    after: Option<Key>,
    /// Whether all records have been gathered.
    is_gathered: bool,
    /// Whether the range is complete.
    complete: bool,
    /// Number of keys visited so far, including those that do not exist at the revision, and
    /// of creations and deletions that the count has visited.
    visited: usize,
    /// The gathered records.
    gathered: Vec<Record>,
    /// The count of all keys, if `counts_all` is set and the first step was made.
    count: Option<KeyCount>,
    /// The options of the request for filtering, sorting and formatting.
    options: RangeOptions,
}

/// The options of a range request for filtering, sorting and formatting.
struct RangeOptions {
    limit: i64,
    keys_only: bool,
    sort: Option<(SortTarget, SortOrder)>,
    /// Minimum and maximum mod revision; 0 for no limit.
    mod_revisions: (i64, i64),
    /// Minimum and maximum create revision; 0 for no limit.
    create_revisions: (i64, i64),
}

impl RangeCursor {
    /// Starts a range. `current` is the published revision. With `count_all`, the count
    /// of the response includes all keys of the range, as in etcd's Range; without it, it is
    /// unspecified.
    ///
    /// # Errors
    /// Fails if the requested revision is compacted or greater than `current`.
    pub fn new(
        store: &Store,
        request: &RangeRequest,
        current: i64,
        count_all: bool,
    ) -> Result<Self, Error> {
        let revision = readable_revision(store.published_compacted, request.revision, current)?;
        let cursor = RangeCursor::pinned(request, current, revision);
        Ok(if count_all { cursor.counting_all() } else { cursor })
    }

    /// Starts a range at `revision`. The caller must ensure that the history of
    /// `revision` is not collected. `header_revision` is the revision for the response
    /// header. The count of the response is unspecified, unless the request is count-only.
    pub fn pinned(request: &RangeRequest, header_revision: i64, revision: i64) -> Self {
        let options = RangeOptions::new(request);
        let needs_all = options.needs_all();
        let max_records = match request.limit {
            _ if request.count_only => 0,
            limit if limit > 0 && !needs_all => (limit as usize).saturating_add(1),
            _ => usize::MAX,
        };
        RangeCursor {
            span: Span::new(&request.key, &request.range_end),
            revision,
            header_revision,
            max_records,
            max_bytes: usize::MAX,
            gathered_bytes: 0,
            truncated: false,
            counts_all: request.count_only,
            after: None,
            is_gathered: max_records == 0,
            complete: false,
            visited: 0,
            gathered: Vec::new(),
            count: None,
            options,
        }
    }

    /// Includes all keys of the range in the count of the response.
    pub(crate) fn counting_all(mut self) -> Self {
        // If all keys are gathered, their number is the count.
        self.counts_all = self.max_records < usize::MAX;
        self
    }

    /// Ends the range when its keys and values have at least `bytes` bytes. If keys are
    /// left, the response then has `more` set.
    pub fn with_byte_limit(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Returns the revision to read. The store must not collect the history of this
    /// revision until the range is complete.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Returns the approximate memory in bytes that the response needs so far, without keys
    /// and values, which the store has as well.
    pub fn memory_bytes(&self) -> usize {
        self.gathered.len() * size_of::<KeyValue>()
    }

    /// Returns the number of bytes that [`RangeCursor::finish`] sorts: those of the values if
    /// they are the sort target. Comparing them may take 10 times as long as copying them.
    pub fn bytes_to_sort(&self) -> usize {
        match self.options.sort {
            Some((SortTarget::Value, _)) => self.gathered_bytes,
            _ => 0,
        }
    }

    /// Returns the number of keys visited so far.
    pub(crate) fn visited(&self) -> usize {
        self.visited
    }

    /// Visits about `max_keys` keys. Returns whether the range is complete.
    pub fn step(&mut self, store: &Store, max_keys: usize) -> bool {
        let revision = self.revision;
        self.step_with(store, max_keys, |entry| entry.live_at(revision))
    }

    /// Like [`RangeCursor::step`], but `read` returns the record of a key; `None` if the key
    /// does not exist. The count is that of the first step.
    pub(crate) fn step_with<'s>(
        &mut self,
        store: &'s Store,
        max_keys: usize,
        read: impl Fn(Entry<'s>) -> Option<&'s Record>,
    ) -> bool {
        self.complete = self.complete || self.visit(store, max_keys, read);
        self.complete
    }

    fn visit<'s>(
        &mut self,
        store: &'s Store,
        max_keys: usize,
        read: impl Fn(Entry<'s>) -> Option<&'s Record>,
    ) -> bool {
        if let Some(key) = self.span.as_point() {
            self.gathered.extend(store.index.get(key).and_then(read).cloned());
            return true;
        }
        let before = self.visited;
        if self.counts_all && self.count.is_none() {
            self.count =
                Some(KeyCount::new(&store.index, &store.key_changes, &self.span, self.revision));
        }
        self.is_gathered = self.is_gathered || self.gather(store, max_keys, read);
        let Some(count) = self.count.as_mut().filter(|_| self.is_gathered) else {
            return self.is_gathered;
        };
        let keys_left = max_keys.saturating_sub(self.visited - before);
        self.visited += count.step(&store.index, &store.key_changes, &self.span, keys_left);
        count.get().is_some()
    }

    /// Gathers the records of the next keys. Returns whether no more have to be gathered.
    fn gather<'s>(
        &mut self,
        store: &'s Store,
        max_keys: usize,
        read: impl Fn(Entry<'s>) -> Option<&'s Record>,
    ) -> bool {
        let mut last = None;
        let after = self.after.take();
        let keys = store.index.range(&self.span, after.as_ref().map(Key::as_bytes));
        for (visited, entry) in keys.enumerate() {
            if visited == max_keys {
                self.after = last.map(Key::new);
                return false;
            }
            last = Some(entry.key());
            self.visited += 1;
            let Some(record) = read(entry) else { continue };
            if self.gathered_bytes >= self.max_bytes {
                self.truncated = true;
                return true;
            }
            self.gathered_bytes += entry.key().len() + record.value().len();
            self.gathered.push(record.clone());
            if self.gathered.len() == self.max_records {
                return true;
            }
        }
        true
    }

    /// Returns the response. [`RangeCursor::step`] must have returned true.
    pub fn finish(self) -> RangeResponse {
        let RangeCursor { options, mut gathered, header_revision, truncated, .. } = self;
        let counted = self.count.as_ref().and_then(KeyCount::get);
        let count = counted.unwrap_or(gathered.len() as i64);
        // A count of one key gathers it.
        gathered.truncate(self.max_records);
        gathered.retain(|record| options.admits(record));
        options.sort(&mut gathered);
        let over_limit = options.limit > 0 && gathered.len() as i64 > options.limit;
        if over_limit {
            gathered.truncate(options.limit as usize);
        }
        let convert = match (options.keys_only, options.sort) {
            (false, _) => KeyValue::from,
            // etcd answers a keys-only range from its index, which does not contain the
            // leases. But it reads the leases if it has to sort by value.
            (true, Some((SortTarget::Value, _))) => KeyValue::no_value,
            (true, _) => KeyValue::key_only,
        };
        RangeResponse {
            header: Some(ResponseHeader { revision: header_revision, ..Default::default() }),
            kvs: gathered.into_iter().map(convert).collect(),
            more: over_limit || truncated,
            count,
        }
    }
}

/// Returns the revision that a request for revision `requested` reads. Fails if this
/// revision is before the compacted revision or greater than `current`.
pub(crate) fn readable_revision(
    compacted: i64,
    requested: i64,
    current: i64,
) -> Result<i64, Error> {
    match requested {
        ..=0 => Ok(current),
        future if future > current => Err(Error::FutureRevision),
        past if past < compacted => Err(Error::Compacted),
        revision => Ok(revision),
    }
}

impl RangeOptions {
    fn new(request: &RangeRequest) -> Self {
        let sort = match (request.sort_target(), request.sort_order()) {
            (SortTarget::Key, SortOrder::None | SortOrder::Ascend) => None,
            (target, SortOrder::None) => Some((target, SortOrder::Ascend)),
            (target, order) => Some((target, order)),
        };
        RangeOptions {
            limit: request.limit,
            keys_only: request.keys_only,
            sort,
            mod_revisions: (request.min_mod_revision, request.max_mod_revision),
            create_revisions: (request.min_create_revision, request.max_create_revision),
        }
    }

    /// Whether all keys must be read before the limit can be applied.
    fn needs_all(&self) -> bool {
        self.sort.is_some() || self.mod_revisions != (0, 0) || self.create_revisions != (0, 0)
    }

    /// Whether the request's limits of revisions allow `record`.
    fn admits(&self, record: &Record) -> bool {
        let within = |revision: i64, (min, max): (i64, i64)| {
            (min == 0 || revision >= min) && (max == 0 || revision <= max)
        };
        within(record.mod_revision(), self.mod_revisions)
            && within(record.create_revision(), self.create_revisions)
    }

    /// Sorts the records as the request requires. They are in key order before.
    fn sort(&self, records: &mut [Record]) {
        let Some((target, order)) = self.sort else { return };
        match target {
            SortTarget::Key => {}
            SortTarget::Version => records.sort_by_key(Record::version),
            SortTarget::Create => records.sort_by_key(Record::create_revision),
            SortTarget::Mod => records.sort_by_key(Record::mod_revision),
            SortTarget::Value => records.sort_by(|a, b| a.value().cmp(b.value())),
        }
        if order == SortOrder::Descend {
            records.reverse();
        }
    }
}
