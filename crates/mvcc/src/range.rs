//! Reading keys at a revision, in steps.
//!
//! A range may cover millions of keys while writers wait for the store, so a
//! [`RangeCursor`] reads a bounded number at a time and may be resumed after
//! the store has changed: it always sees the revision at which it began.

use etcdpb::rpc::range_request::{SortOrder, SortTarget};
use etcdpb::rpc::{RangeRequest, RangeResponse, ResponseHeader};
use etcdpb::{Key, KeyValue, Record};

use crate::{Error, Span, Store};

/// A range on its way through the keys.
pub struct RangeCursor {
    span: Span,
    /// The revision that is read.
    revision: i64,
    /// The store's revision when the range began; what the header carries.
    header_revision: i64,
    /// Records to gather; one more than the caller wants, to know of more.
    gather: usize,
    /// Bytes of keys and values after which no more is gathered.
    gather_bytes: usize,
    gathered_bytes: usize,
    /// Whether that is why the range ended.
    cut_short: bool,
    count_all: bool,
    after: Option<Key>,
    found: Vec<Record>,
    count: i64,
    /// The part of the request that shapes the answer.
    shape: Shape,
}

struct Shape {
    limit: i64,
    keys_only: bool,
    sort: Option<(SortTarget, SortOrder)>,
    mod_revisions: (i64, i64),
    create_revisions: (i64, i64),
}

impl RangeCursor {
    /// Begins to read `request` in `store` as of `current`, the newest revision
    /// that readers may see. With `count_all` the answer's count covers the
    /// whole range as etcd's Range has it; without, only what is gathered.
    pub fn new(
        store: &Store,
        request: &RangeRequest,
        current: i64,
        count_all: bool,
    ) -> Result<Self, Error> {
        let revision = readable(store, request.revision, current)?;
        let mut cursor = RangeCursor::pinned(request, current, revision);
        cursor.count_all |= count_all;
        Ok(cursor)
    }

    /// Begins to read at `revision`, whose history the caller keeps; `current`
    /// is what the header will say. Only what is gathered is counted, unless
    /// the request is for the count.
    pub fn pinned(request: &RangeRequest, current: i64, revision: i64) -> Self {
        let shape = Shape::new(request);
        let all = shape.needs_all();
        let gather = match request.limit {
            _ if request.count_only => 0,
            limit if limit > 0 && !all => (limit as usize).saturating_add(1),
            _ => usize::MAX,
        };
        RangeCursor {
            span: Span::new(&request.key, &request.range_end),
            revision,
            header_revision: current,
            gather,
            gather_bytes: usize::MAX,
            gathered_bytes: 0,
            cut_short: false,
            count_all: request.count_only,
            after: None,
            found: Vec::new(),
            count: 0,
            shape,
        }
    }

    /// Ends the range once it has gathered `bytes` of keys and values; the answer
    /// then says that there is more.
    pub fn at_most(mut self, bytes: usize) -> Self {
        self.gather_bytes = bytes;
        self
    }

    /// The revision that is read; history must be kept from here on until the
    /// cursor is done.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Visits at most `budget` keys and says whether the range is done.
    pub fn step(&mut self, store: &Store, budget: usize) -> bool {
        if let Some(key) = self.span.as_point() {
            let record = store.index.get(key).and_then(|e| e.live_at(self.revision));
            self.count = i64::from(record.is_some());
            if self.gather > 0 {
                self.found.extend(record.cloned());
            }
            return true;
        }
        let mut last: Option<&Key> = None;
        let after = self.after.take();
        let after = after.as_ref().map(Key::as_bytes);
        for (visited, (key, entry)) in store.index.range(&self.span, after).enumerate() {
            if visited == budget {
                self.after = last.cloned();
                return false;
            }
            last = Some(key);
            let Some(record) = entry.live_at(self.revision) else { continue };
            self.count += 1;
            if self.gathered_bytes >= self.gather_bytes {
                self.cut_short = true;
                return true;
            }
            if self.found.len() < self.gather {
                self.gathered_bytes += key.as_bytes().len() + record.value().len();
                self.found.push(record.clone());
            } else if !self.count_all {
                return true;
            }
        }
        true
    }

    /// The answer, once [`RangeCursor::step`] says that the range is done.
    pub fn finish(self) -> RangeResponse {
        let RangeCursor { shape, mut found, header_revision, count, cut_short, .. } = self;
        found.retain(|record| shape.admits(record));
        shape.sort(&mut found);
        let over_limit = shape.limit > 0 && found.len() as i64 > shape.limit;
        if over_limit {
            found.truncate(shape.limit as usize);
        }
        let form = match (shape.keys_only, shape.sort) {
            (false, _) => KeyValue::from,
            // etcd answers from its index alone, which does not know the lease,
            // unless it needs the values to sort by.
            (true, Some((SortTarget::Value, _))) => KeyValue::no_value,
            (true, _) => KeyValue::key_only,
        };
        RangeResponse {
            header: Some(ResponseHeader { revision: header_revision, ..Default::default() }),
            kvs: found.into_iter().map(form).collect(),
            more: over_limit || cut_short,
            count,
        }
    }
}

/// The revision that a request for `requested` reads, if it may be read.
pub(crate) fn readable(store: &Store, requested: i64, current: i64) -> Result<i64, Error> {
    match requested {
        ..=0 => Ok(current),
        future if future > current => Err(Error::FutureRevision),
        past if past < store.compacted => Err(Error::Compacted),
        revision => Ok(revision),
    }
}

impl Shape {
    fn new(request: &RangeRequest) -> Self {
        let sort = match (request.sort_target(), request.sort_order()) {
            (SortTarget::Key, SortOrder::None | SortOrder::Ascend) => None,
            (target, SortOrder::None) => Some((target, SortOrder::Ascend)),
            (target, order) => Some((target, order)),
        };
        Shape {
            limit: request.limit,
            keys_only: request.keys_only,
            sort,
            mod_revisions: (request.min_mod_revision, request.max_mod_revision),
            create_revisions: (request.min_create_revision, request.max_create_revision),
        }
    }

    /// Whether the limit can only be applied to the whole range.
    fn needs_all(&self) -> bool {
        self.sort.is_some() || self.mod_revisions != (0, 0) || self.create_revisions != (0, 0)
    }

    fn admits(&self, record: &Record) -> bool {
        let within = |revision: i64, (min, max): (i64, i64)| {
            (min == 0 || revision >= min) && (max == 0 || revision <= max)
        };
        within(record.mod_revision(), self.mod_revisions)
            && within(record.create_revision(), self.create_revisions)
    }

    fn sort(&self, records: &mut [Record]) {
        let Some((target, order)) = self.sort else { return };
        match target {
            SortTarget::Key => records.sort_by(|a, b| a.key().cmp(b.key())),
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
