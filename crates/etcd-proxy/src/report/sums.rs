//! Totals by shape and by kind, and their conversion to rows.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use hdrhistogram::Histogram;
use trace::Class;

use super::summary::{ClassRow, KindRow, Latency, ShapeRow};

/// Maximum number of different shapes, kinds, limits and errors. Further ones are counted
/// together as [`OTHERS`].
pub const MAX_NAMES: usize = 2000;
/// Maximum number of tracked streams and leases.
pub const MAX_TRACKED: usize = 1 << 20;
/// Number of kinds listed for a shape.
const KINDS_PER_SHAPE: usize = 5;
/// The name for items beyond [`MAX_NAMES`].
pub const OTHERS: &str = "(others)";

/// The total of a shape.
pub struct ShapeSum {
    /// The class of the shape.
    pub class: Class,
    /// Number of requests.
    pub count: u64,
    /// Number of transactions whose comparisons were false.
    pub not_succeeded: u64,
    /// Number of failed or aborted calls.
    pub failed: u64,
    /// Bytes of the requests.
    pub request_bytes: u64,
    /// Bytes of the responses.
    pub response_bytes: u64,
    /// Latency in microseconds.
    pub micros: Histogram<u64>,
    /// Number of requests by kind.
    pub kinds: HashMap<String, u64>,
}

/// The total of a kind.
#[derive(Default)]
pub struct KindSum {
    /// The totals, without the kind and the number of namespaces.
    pub row: KindRow,
    /// The namespaces in the keys.
    pub namespaces: HashSet<String>,
}

impl ShapeSum {
    pub fn new(class: Class) -> Self {
        ShapeSum {
            class,
            count: 0,
            not_succeeded: 0,
            failed: 0,
            request_bytes: 0,
            response_bytes: 0,
            micros: histogram(),
            kinds: HashMap::new(),
        }
    }

    /// Adds a request.
    pub fn add(&mut self, request_bytes: u64, response_bytes: Option<u64>, kind: Option<&str>) {
        self.count += 1;
        self.request_bytes += request_bytes;
        self.response_bytes += response_bytes.unwrap_or(0);
        let Some(kind) = kind else { return };
        let is_full = self.kinds.len() >= MAX_NAMES;
        match self.kinds.get_mut(kind) {
            Some(count) => *count += 1,
            None if is_full => {}
            None => drop(self.kinds.insert(kind.to_owned(), 1)),
        }
    }

    /// Converts to a row.
    pub fn row(self, shape: String) -> ShapeRow {
        let kinds = sorted(self.kinds, |kind| kind, |(_, count)| (*count, 0));
        ShapeRow {
            shape,
            class: self.class,
            count: self.count,
            not_succeeded: self.not_succeeded,
            failed: self.failed,
            request_bytes: self.request_bytes,
            response_bytes: self.response_bytes,
            latency_micros: Latency::of(&self.micros),
            kinds: kinds.into_iter().take(KINDS_PER_SHAPE).map(|(kind, _)| kind).collect(),
        }
    }
}

/// `name`, or [`OTHERS`] if `name` is new and `known` is full. Counts the latter in
/// `others`.
pub fn name_or_others<'a, V>(
    known: &HashMap<String, V>,
    name: &'a str,
    others: &mut u64,
) -> &'a str {
    if known.len() < MAX_NAMES || known.contains_key(name) {
        return name;
    }
    *others += 1;
    OTHERS
}

/// Converts a map to rows in descending order of weight.
pub fn sorted<K: Hash + Eq, V, R>(
    map: HashMap<K, V>,
    row: impl FnMut((K, V)) -> R,
    weight: impl Fn(&R) -> (u64, u64),
) -> Vec<R> {
    let mut rows: Vec<R> = map.into_iter().map(row).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(weight(row)));
    rows
}

/// The totals of all classes.
pub fn classes(shapes: &[ShapeRow]) -> Vec<ClassRow> {
    let all = [
        Class::Create,
        Class::Update,
        Class::Delete,
        Class::Get,
        Class::List,
        Class::Auxiliary,
        Class::Other,
    ];
    let row = |class| {
        let of = || shapes.iter().filter(move |row| row.class == class);
        ClassRow {
            class,
            count: of().map(|row| row.count).sum(),
            shapes: of().count() as u64,
            request_bytes: of().map(|row| row.request_bytes).sum(),
            response_bytes: of().map(|row| row.response_bytes).sum(),
        }
    };
    all.into_iter().map(row).collect()
}

/// A histogram of microseconds, up to an hour.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000, 2).expect("valid bounds and precision")
}
