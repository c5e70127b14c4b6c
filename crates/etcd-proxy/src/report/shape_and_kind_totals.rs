//! Totals by shape and by kind, and their conversion to rows.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use hdrhistogram::Histogram;
use trace::Class;

use super::summary::{ClassRow, KindRow, Latency, ShapeRow};

/// Maximum number of different shapes, of kinds, of watched spans, of limits and of errors.
/// Further ones are counted together as [`OTHERS`].
pub const MAX_NAMES: usize = 2000;
/// Maximum number of tracked streams, of tracked leases, and of tracked namespaces of a kind.
pub const MAX_TRACKED: usize = 1 << 20;
/// Maximum number of kinds in the report of a shape.
const MAX_KINDS_OF_SHAPE: usize = 5;
/// The common name of everything beyond [`MAX_NAMES`].
pub const OTHERS: &str = "(others)";

/// The totals of a shape.
pub struct ShapeTotals {
    /// The class of the shape.
    pub class: Class,
    /// Number of requests.
    pub count: u64,
    /// Number of transactions with a false comparison.
    pub not_succeeded: u64,
    /// Number of calls and streams that ended with an error or were aborted.
    pub failed: u64,
    /// Bytes of the requests.
    pub request_bytes: u64,
    /// Bytes of the responses.
    pub response_bytes: u64,
    /// Latencies of the calls, in microseconds.
    pub micros: Histogram<u64>,
    /// Number of requests by kind, for the first [`MAX_NAMES`] kinds.
    pub kinds: HashMap<String, u64>,
}

/// The totals of a kind.
#[derive(Default)]
pub struct KindTotals {
    /// The totals. The name of the kind and the number of namespaces are not set.
    pub row: KindRow,
    /// The different namespaces in the keys.
    pub namespaces: HashSet<String>,
}

impl ShapeTotals {
    /// Creates the totals of a shape without requests.
    pub fn new(class: Class) -> Self {
        ShapeTotals {
            class,
            count: 0,
            not_succeeded: 0,
            failed: 0,
            request_bytes: 0,
            response_bytes: 0,
            micros: latency_histogram(),
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
            kinds: kinds.into_iter().take(MAX_KINDS_OF_SHAPE).map(|(kind, _)| kind).collect(),
        }
    }
}

/// Returns `name`. If `name` is new and `known` is full, increments `others` and returns
/// [`OTHERS`].
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

/// Converts the entries of a map to rows, in descending order of `weight`.
pub fn sorted<K: Hash + Eq, V, R>(
    map: HashMap<K, V>,
    row: impl FnMut((K, V)) -> R,
    weight: impl Fn(&R) -> (u64, u64),
) -> Vec<R> {
    let mut rows: Vec<R> = map.into_iter().map(row).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(weight(row)));
    rows
}

/// Adds up the shapes of each class.
pub fn class_rows(shapes: &[ShapeRow]) -> Vec<ClassRow> {
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

/// Creates a histogram of latencies from 1 µs to 1 h, in microseconds.
pub fn latency_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000, 2).expect("valid bounds and precision")
}
