//! Totals of ranges over several keys, by method and limit.

use std::collections::BTreeMap;

use trace::Response;

use super::shape_and_kind_totals::{MAX_NAMES, OTHERS, latency_histogram};
use super::summary::{Latency, LimitRow};

/// The totals of the ranges so far, by method and limit.
#[derive(Default)]
pub struct LimitTotals {
    rows: BTreeMap<(String, i64), LimitRow>,
}

impl LimitTotals {
    /// Adds a range. As in all methods, `others` is incremented if the table is full and the
    /// range therefore counts as [`OTHERS`].
    pub fn add_range(&mut self, method: &str, limit: i64, others: &mut u64) {
        self.row(method, limit, others).count += 1;
    }

    /// Adds a response with a size of `bytes`. A RangeStream may have several responses.
    pub fn add_response(
        &mut self,
        method: &str,
        limit: i64,
        response: Option<&Response>,
        bytes: u64,
        others: &mut u64,
    ) {
        let row = self.row(method, limit, others);
        row.response_bytes += bytes;
        if let Some(response) = response {
            row.pairs += response.kvs;
            row.more += u64::from(response.more);
            row.count_max = row.count_max.max(response.count.unwrap_or(0));
        }
    }

    /// Adds the latency of a range.
    pub fn add_latency(&mut self, method: &str, limit: i64, micros: u64, others: &mut u64) {
        self.row(method, limit, others)
            .micros
            .get_or_insert_with(latency_histogram)
            .saturating_record(micros);
    }

    /// Converts to rows, ordered by method and limit.
    pub fn finish(self) -> Vec<LimitRow> {
        let row = |((method, limit), row): (_, LimitRow)| {
            let latency_micros = row.micros.as_ref().and_then(Latency::of);
            LimitRow { method, limit, latency_micros, ..row }
        };
        self.rows.into_iter().map(row).collect()
    }

    /// The row of a method and limit. Creates it if there is none.
    fn row(&mut self, method: &str, limit: i64, others: &mut u64) -> &mut LimitRow {
        let mut key = (method.to_owned(), limit);
        if self.rows.len() >= MAX_NAMES && !self.rows.contains_key(&key) {
            *others += 1;
            key = (OTHERS.into(), 0);
        }
        self.rows.entry(key).or_default()
    }
}
