//! Request shapes (requests without their keys, numbers and values), and their classes.
//!
//! The API server's storage (`storage/etcd3`) calls etcd's package `client/v3/kubernetes`. Its
//! optimistic creates, updates and deletes, its gets and its lists are one class each. Watches,
//! leases and compactions are the class of auxiliary requests. All further requests are the
//! class other.

use std::fmt::{self, Write};

use serde::Serialize;

use crate::key::Key;
use crate::request::{Compare, Delete, Operand, Put, Range, Request, Txn, WatchCreate};

/// The message of `expect` for `write!` to a `String`.
const WRITE_SUCCEEDS: &str = "writing to a String cannot fail";

/// The class of a request.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// `Txn(mod(k)=0 → put k)`, with or without `else get k`.
    Create,
    /// `Txn(mod(k)=r → put k)`, with or without `else get k`.
    Update,
    /// `Txn(mod(k)=r → delete k)`, with or without `else get k`.
    Delete,
    /// `Range(k)`, with or without a revision.
    Get,
    /// `Range` over a prefix, or over the rest of a prefix from a key on, with or without
    /// limit and revision.
    List,
    /// Watches, leases and compactions.
    Auxiliary,
    /// All other requests.
    Other,
}

impl Class {
    /// The name of the class in tables.
    pub fn name(self) -> &'static str {
        match self {
            Class::Create => "create",
            Class::Update => "update",
            Class::Delete => "delete",
            Class::Get => "get",
            Class::List => "list",
            Class::Auxiliary => "auxiliary",
            Class::Other => "other",
        }
    }
}

/// A request without its keys, numbers and values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The shape, such as `Txn: if mod(k)=r then put(k) else get(k)`.
    pub text: String,
    /// The class of requests with this shape.
    pub class: Class,
}

/// Determines the shape of a request of `method`. `request` is `None` if the trace does not
/// contain the decoded request; then the shape is the name of the method.
pub fn shape(method: &str, request: Option<&Request>) -> Shape {
    let name = method.rsplit('/').next().unwrap_or(method);
    let mut keys = Keys::default();
    let (text, class) = match request {
        Some(Request::Txn(txn)) => (txn_text(txn, &mut keys), txn_class(txn)),
        Some(Request::Range(range)) => {
            let class = if name == "Range" { range_class(range) } else { Class::Other };
            (format!("{name}: {}", range_text(range, &mut keys)), class)
        }
        Some(Request::WatchCreate(create)) => (watch_text(create), Class::Auxiliary),
        Some(Request::WatchCancel { .. }) => ("Watch: cancel".into(), Class::Auxiliary),
        Some(Request::WatchProgress) => ("Watch: progress request".into(), Class::Auxiliary),
        Some(Request::Compact { physical: true, .. }) => {
            ("Compact: physical".into(), Class::Auxiliary)
        }
        Some(Request::Undecoded) => (format!("{name}: not decoded"), Class::Other),
        Some(Request::Put(_) | Request::Delete(_)) => {
            (format!("{name}: {}", operations_text(request, &mut keys)), Class::Other)
        }
        Some(Request::LeaseTimeToLive { keys: true, .. }) => {
            (format!("{name}: with keys"), Class::Auxiliary)
        }
        Some(_) => (name.into(), Class::Auxiliary),
        None => (name.into(), Class::Other),
    };
    Shape { text, class }
}

/// Names the keys of a request in the order of their first use: `k`, `k2`, …
#[derive(Default)]
struct Keys<'a>(Vec<&'a Key>);

impl<'a> Keys<'a> {
    fn name(&mut self, key: &'a Key) -> String {
        let position = self.0.iter().position(|other| *other == key);
        let index = position.unwrap_or_else(|| {
            self.0.push(key);
            self.0.len() - 1
        });
        if index == 0 { "k".into() } else { format!("k{}", index + 1) }
    }

    /// The name of a single key, or the kind of a span of several keys.
    fn name_or_span_kind(&mut self, key: &'a Key, end: &'a Key) -> String {
        match span_kind(&key.0, &end.0) {
            "key" => self.name(key),
            span => span.into(),
        }
    }
}

/// The kind of the span from `key` to `end` (etcd's `range_end`): `key`, `prefix`,
/// `rest of prefix`, `from key on`, `everything` or, for any other span, `span`.
pub fn span_kind(key: &[u8], end: &[u8]) -> &'static str {
    if end.is_empty() {
        return "key";
    }
    if end == b"\0" {
        return if key == b"\0" || key.is_empty() { "everything" } else { "from key on" };
    }
    // The range end of a prefix is the prefix with its last byte incremented.
    let Some((last, start)) = end.split_last() else { return "span" };
    let has_prefix =
        key.strip_prefix(start).and_then(|rest| rest.first()) == Some(&last.wrapping_sub(1));
    match has_prefix {
        true if key.len() == end.len() => "prefix",
        true => "rest of prefix",
        false => "span",
    }
}

fn txn_class(txn: &Txn) -> Class {
    let [Compare { key, range_end, result, with: Operand::Mod(revision) }] = &txn.compare[..]
    else {
        return Class::Other;
    };
    let is_get_of_key = |request: &Request| {
        matches!(request, Request::Range(range)
            if range.key == *key && range_class(range) == Class::Get && range.revision == 0)
    };
    let gets_key_or_nothing = match &txn.failure[..] {
        [] => true,
        [only] => is_get_of_key(only),
        _ => false,
    };
    if !range_end.is_empty() || result != "=" || !gets_key_or_nothing {
        return Class::Other;
    }
    match &txn.success[..] {
        [Request::Put(put)] if put.key == *key && has_no_options(put) => {
            if *revision == 0 {
                Class::Create
            } else {
                Class::Update
            }
        }
        [Request::Delete(delete)]
            if delete.key == *key && delete.range_end.is_empty() && !delete.prev_kv =>
        {
            Class::Delete
        }
        _ => Class::Other,
    }
}

/// Whether a put sets no options. A lease is allowed: the API server attaches one to events.
fn has_no_options(put: &Put) -> bool {
    !put.prev_kv && !put.ignore_lease && !put.ignore_value
}

fn range_class(range: &Range) -> Class {
    let has_options = range.serializable
        || range.keys_only
        || range.count_only
        || range.sort.is_some()
        || range.bounds.is_some();
    match span_kind(&range.key.0, &range.range_end.0) {
        _ if has_options => Class::Other,
        "key" => Class::Get,
        "prefix" | "rest of prefix" => Class::List,
        _ => Class::Other,
    }
}

fn txn_text<'a>(txn: &'a Txn, keys: &mut Keys<'a>) -> String {
    let mut text = String::from("Txn: ");
    if !txn.compare.is_empty() {
        let compares: Vec<_> =
            txn.compare.iter().map(|compare| compare_text(compare, keys)).collect();
        write!(text, "if {} ", compares.join(" and ")).expect(WRITE_SUCCEEDS);
    }
    write!(text, "then {}", operations_text(&txn.success, keys)).expect(WRITE_SUCCEEDS);
    if !txn.failure.is_empty() {
        write!(text, " else {}", operations_text(&txn.failure, keys)).expect(WRITE_SUCCEEDS);
    }
    text
}

fn compare_text<'a>(compare: &'a Compare, keys: &mut Keys<'a>) -> String {
    let (field, with) = match &compare.with {
        Operand::Version(number) => ("version", placeholder(*number, "n")),
        Operand::Create(number) => ("create", placeholder(*number, "r")),
        Operand::Mod(number) => ("mod", placeholder(*number, "r")),
        Operand::Lease(number) => ("lease", placeholder(*number, "l")),
        Operand::Value(_) => ("value", "v"),
    };
    let span = keys.name_or_span_kind(&compare.key, &compare.range_end);
    format!("{field}({span}){}{with}", compare.result)
}

/// The placeholder of a number. 0 stands for itself, because it has a meaning of its own: the
/// key does not exist, or has no lease.
fn placeholder(number: i64, name: &'static str) -> &'static str {
    if number == 0 { "0" } else { name }
}

/// The operations, with a factor for equal consecutive operations: `2×put(k)`.
fn operations_text<'a>(
    requests: impl IntoIterator<Item = &'a Request>,
    keys: &mut Keys<'a>,
) -> String {
    let mut texts: Vec<(String, usize)> = Vec::new();
    for request in requests {
        let text = match request {
            Request::Range(range) => range_text(range, keys),
            Request::Put(put) => put_text(put, keys),
            Request::Delete(delete) => delete_text(delete, keys),
            Request::Txn(txn) => format!("({})", txn_text(txn, keys)),
            _ => "nothing".into(),
        };
        match texts.last_mut() {
            Some((last, times)) if *last == text => *times += 1,
            _ => texts.push((text, 1)),
        }
    }
    let texts: Vec<_> = texts
        .into_iter()
        .map(|(text, times)| if times > 1 { format!("{times}×{text}") } else { text })
        .collect();
    if texts.is_empty() { "nothing".into() } else { texts.join(", ") }
}

fn range_text<'a>(range: &'a Range, keys: &mut Keys<'a>) -> String {
    let operation = match () {
        () if range.count_only => "count",
        () if range.keys_only => "keys",
        () if range.range_end.is_empty() => "get",
        () => "list",
    };
    let mut arguments = Arguments(keys.name_or_span_kind(&range.key, &range.range_end));
    // A limit has no effect on a single key.
    arguments.add("limit", range.limit != 0 && !range.range_end.is_empty());
    arguments.add("revision", range.revision != 0);
    arguments.add("serializable", range.serializable);
    arguments.add("sorted", range.sort.is_some());
    arguments.add("bounds", range.bounds.is_some());
    format!("{operation}({arguments})")
}

fn put_text<'a>(put: &'a Put, keys: &mut Keys<'a>) -> String {
    let mut arguments = Arguments(keys.name(&put.key));
    arguments.add("lease", put.lease != 0);
    arguments.add("prev_kv", put.prev_kv);
    arguments.add("ignore_value", put.ignore_value);
    arguments.add("ignore_lease", put.ignore_lease);
    format!("put({arguments})")
}

fn delete_text<'a>(delete: &'a Delete, keys: &mut Keys<'a>) -> String {
    let mut arguments = Arguments(keys.name_or_span_kind(&delete.key, &delete.range_end));
    arguments.add("prev_kv", delete.prev_kv);
    format!("delete({arguments})")
}

fn watch_text(create: &WatchCreate) -> String {
    let mut arguments = Arguments(match span_kind(&create.key.0, &create.range_end.0) {
        "key" => "k".into(),
        span => span.to_owned(),
    });
    arguments.add("revision", create.start_revision != 0);
    arguments.add("prev_kv", create.prev_kv);
    arguments.add("progress", create.progress_notify);
    arguments.add("fragment", create.fragment);
    arguments.add("filters", !create.filters.is_empty());
    format!("Watch: create({arguments})")
}

/// The arguments of an operation, separated by commas: the key or the kind of span, then the
/// names of the options that are set.
struct Arguments(String);

impl Arguments {
    fn add(&mut self, name: &str, is_set: bool) {
        if is_set {
            self.0.push_str(", ");
            self.0.push_str(name);
        }
    }
}

impl fmt::Display for Arguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(key: &str) -> Request {
        Request::Range(Range { key: key.into(), ..Range::default() })
    }

    fn txn(revision: i64, success: Request, failure: &[Request]) -> Request {
        let compare = Compare {
            key: "/a".into(),
            range_end: Key::default(),
            result: "=".into(),
            with: Operand::Mod(revision),
        };
        Request::Txn(Txn {
            compare: vec![compare],
            success: vec![success],
            failure: failure.to_vec(),
        })
    }

    fn put(key: &str) -> Request {
        Request::Put(Put { key: key.into(), ..Put::default() })
    }

    fn expect_shape(method: &str, request: &Request, text: &str, class: Class) {
        assert_eq!(shape(method, Some(request)), Shape { text: text.into(), class });
    }

    #[test]
    fn kubernetes_operations_have_classes() {
        let txn_path = "/etcdserverpb.KV/Txn";
        let delete = Request::Delete(Delete { key: "/a".into(), ..Delete::default() });
        expect_shape(
            txn_path,
            &txn(0, put("/a"), &[]),
            "Txn: if mod(k)=0 then put(k)",
            Class::Create,
        );
        let update = txn(7, put("/a"), &[get("/a")]);
        expect_shape(txn_path, &update, "Txn: if mod(k)=r then put(k) else get(k)", Class::Update);
        let delete = txn(7, delete, &[get("/a")]);
        expect_shape(
            txn_path,
            &delete,
            "Txn: if mod(k)=r then delete(k) else get(k)",
            Class::Delete,
        );
        let range = |key: &str, end: &str| Range {
            key: key.into(),
            range_end: end.into(),
            limit: 500,
            ..Range::default()
        };
        let path = "/etcdserverpb.KV/Range";
        expect_shape(path, &Request::Range(range("/a", "")), "Range: get(k)", Class::Get);
        let list = range("/a/", "/a0");
        expect_shape(
            path,
            &Request::Range(list.clone()),
            "Range: list(prefix, limit)",
            Class::List,
        );
        let rest = Range { revision: 9, ..range("/a/x\0", "/a0") };
        let text = "Range: list(rest of prefix, limit, revision)";
        expect_shape(path, &Request::Range(rest), text, Class::List);
        let stream = "RangeStream: list(prefix, limit)";
        expect_shape("/etcdserverpb.KV/RangeStream", &Request::Range(list), stream, Class::Other);
    }

    #[test]
    fn requests_of_further_shapes_have_class_other() {
        let path = "/etcdserverpb.KV/Txn";
        let text = "Txn: if mod(k)=r then put(k2) else get(k)";
        expect_shape(path, &txn(1, put("/b"), &[get("/a")]), text, Class::Other);
        let version = Request::Txn(Txn {
            compare: vec![Compare {
                key: "c".into(),
                range_end: Key::default(),
                result: "=".into(),
                with: Operand::Version(3),
            }],
            success: vec![put("c")],
            failure: vec![get("c")],
        });
        let text = "Txn: if version(k)=n then put(k) else get(k)";
        expect_shape(path, &version, text, Class::Other);
        let blind = Request::Txn(Txn { success: vec![put("a"), put("a")], ..Txn::default() });
        expect_shape(path, &blind, "Txn: then 2×put(k)", Class::Other);
        let count = Range {
            key: "/a/".into(),
            range_end: "/a0".into(),
            count_only: true,
            ..Range::default()
        };
        let path = "/etcdserverpb.KV/Range";
        expect_shape(path, &Request::Range(count), "Range: count(prefix)", Class::Other);
        assert_eq!(shape("/v3lockpb.Lock/Lock", None).class, Class::Other);
    }

    #[test]
    fn span_kinds() {
        for (key, end, expected) in [
            ("/a", "", "key"),
            ("/a/", "/a0", "prefix"),
            ("/a/b", "/a0", "rest of prefix"),
            ("/a", "\0", "from key on"),
            ("\0", "\0", "everything"),
            ("a", "c", "span"),
            ("a", "a\0", "span"),
        ] {
            assert_eq!(span_kind(key.as_bytes(), end.as_bytes()), expected, "{key} {end:?}");
        }
    }
}
