//! Renewals of random Leases, compared with decoding, changing and encoding the object.

use std::num::NonZeroU64;

use node_lease::{Lease, StoredLease, Timestamp};
use proptest::prelude::*;
use prost::Message;

#[derive(Message, Clone)]
struct Unknown {
    #[prost(message, required, tag = "1")]
    type_meta: TypeMeta,
    #[prost(bytes = "vec", required, tag = "2")]
    raw: Vec<u8>,
    #[prost(string, required, tag = "3")]
    content_encoding: String,
    #[prost(string, required, tag = "4")]
    content_type: String,
}

#[derive(Message, Clone)]
struct TypeMeta {
    #[prost(string, required, tag = "1")]
    api_version: String,
    #[prost(string, required, tag = "2")]
    kind: String,
}

#[derive(Message, Clone)]
struct LeaseObject {
    #[prost(message, required, tag = "1")]
    metadata: ObjectMeta,
    #[prost(message, required, tag = "2")]
    spec: LeaseSpec,
}

#[derive(Message, Clone)]
struct ObjectMeta {
    #[prost(string, required, tag = "1")]
    name: String,
    #[prost(string, required, tag = "2")]
    generate_name: String,
    #[prost(string, required, tag = "3")]
    namespace: String,
    #[prost(string, required, tag = "4")]
    self_link: String,
    #[prost(string, required, tag = "5")]
    uid: String,
    #[prost(string, required, tag = "6")]
    resource_version: String,
    #[prost(int64, required, tag = "7")]
    generation: i64,
    #[prost(message, required, tag = "8")]
    creation_timestamp: Time,
    #[prost(message, optional, tag = "9")]
    deletion_timestamp: Option<Time>,
    #[prost(int64, optional, tag = "10")]
    deletion_grace_period_seconds: Option<i64>,
    #[prost(message, repeated, tag = "11")]
    labels: Vec<Pair>,
    #[prost(message, repeated, tag = "12")]
    annotations: Vec<Pair>,
    #[prost(message, repeated, tag = "13")]
    owner_references: Vec<OwnerReference>,
    #[prost(string, repeated, tag = "14")]
    finalizers: Vec<String>,
    #[prost(message, repeated, tag = "17")]
    managed_fields: Vec<Entry>,
}

#[derive(Message, Clone)]
struct Pair {
    #[prost(string, required, tag = "1")]
    key: String,
    #[prost(string, required, tag = "2")]
    value: String,
}

#[derive(Message, Clone)]
struct OwnerReference {
    #[prost(string, required, tag = "1")]
    kind: String,
    #[prost(string, required, tag = "3")]
    name: String,
    #[prost(string, required, tag = "4")]
    uid: String,
    #[prost(string, required, tag = "5")]
    api_version: String,
    #[prost(bool, optional, tag = "6")]
    controller: Option<bool>,
    #[prost(bool, optional, tag = "7")]
    block_owner_deletion: Option<bool>,
}

#[derive(Message, Clone)]
struct Entry {
    #[prost(string, required, tag = "1")]
    manager: String,
    #[prost(string, required, tag = "2")]
    operation: String,
    #[prost(string, required, tag = "3")]
    api_version: String,
    #[prost(message, required, tag = "4")]
    time: Time,
    #[prost(string, required, tag = "6")]
    fields_type: String,
    #[prost(message, required, tag = "7")]
    fields: Fields,
    #[prost(string, required, tag = "8")]
    subresource: String,
}

#[derive(Message, Clone)]
struct Fields {
    #[prost(bytes = "vec", required, tag = "1")]
    raw: Vec<u8>,
}

#[derive(Message, Clone)]
struct LeaseSpec {
    #[prost(string, optional, tag = "1")]
    holder: Option<String>,
    #[prost(int32, optional, tag = "2")]
    duration_seconds: Option<i32>,
    #[prost(message, optional, tag = "3")]
    acquire_time: Option<Time>,
    #[prost(message, required, tag = "4")]
    renew_time: Time,
    #[prost(int32, optional, tag = "5")]
    transitions: Option<i32>,
    #[prost(string, optional, tag = "6")]
    strategy: Option<String>,
    #[prost(string, optional, tag = "7")]
    preferred_holder: Option<String>,
}

#[derive(Message, Clone, Copy)]
struct Time {
    #[prost(int64, required, tag = "1")]
    seconds: i64,
    #[prost(int32, required, tag = "2")]
    nanos: i32,
}

const FIELDS: &str = r#"{"f:spec":{"f:holderIdentity":{},"f:renewTime":{}}}"#;

fn encode(object: &LeaseObject) -> Vec<u8> {
    let unknown = Unknown {
        type_meta: TypeMeta { api_version: "coordination.k8s.io/v1".into(), kind: "Lease".into() },
        raw: object.encode_to_vec(),
        content_encoding: String::new(),
        content_type: String::new(),
    };
    let mut bytes = b"k8s\0".to_vec();
    unknown.encode(&mut bytes).unwrap();
    bytes
}

fn time() -> impl Strategy<Value = Time> {
    (0..4_000_000_000i64, 0..1_000_000i32)
        .prop_map(|(seconds, micros)| Time { seconds, nanos: micros * 1000 })
}

fn object_meta() -> impl Strategy<Value = ObjectMeta> {
    let pair = ("[a-z/]{0,40}", ".{0,40}").prop_map(|(key, value)| Pair { key, value });
    let owner = ("[A-Z][a-z]{0,9}", "[a-z]{0,200}").prop_map(|(kind, name)| OwnerReference {
        kind,
        name,
        uid: "0e9a".into(),
        api_version: "v1".into(),
        controller: None,
        block_owner_deletion: None,
    });
    let entry = ("[a-z-]{1,20}", 0..4_000_000_000i64).prop_map(|(manager, seconds)| Entry {
        manager,
        operation: "Update".into(),
        api_version: "coordination.k8s.io/v1".into(),
        time: Time { seconds, nanos: 0 },
        fields_type: "FieldsV1".into(),
        fields: Fields { raw: FIELDS.into() },
        subresource: String::new(),
    });
    let lists = (
        prop::collection::vec(pair, 0..3),
        prop::collection::vec(owner, 0..3),
        prop::collection::vec("[a-z]{0,9}", 0..2),
    );
    ("[a-z0-9.-]{1,250}", "[a-z0-9-]{0,36}", 1..u64::MAX, 0..1000i64, time(), lists, entry)
        .prop_map(
            |(name, uid, version, generation, created, (labels, owners, finalizers), entry)| {
                ObjectMeta {
                    name,
                    generate_name: String::new(),
                    namespace: "kube-node-lease".into(),
                    self_link: String::new(),
                    uid,
                    resource_version: version.to_string(),
                    generation,
                    creation_timestamp: Time { nanos: 0, ..created },
                    deletion_timestamp: None,
                    deletion_grace_period_seconds: None,
                    labels,
                    annotations: Vec::new(),
                    owner_references: owners,
                    finalizers,
                    managed_fields: vec![entry],
                }
            },
        )
}

fn lease() -> impl Strategy<Value = LeaseObject> {
    let spec = (
        prop::option::of("[a-z0-9.-]{0,250}"),
        prop::option::of(1..i32::MAX),
        prop::option::of(time()),
        time(),
        prop::option::of(0..i32::MAX),
        prop::option::of("[A-Za-z]{0,20}"),
    );
    let spec = spec.prop_map(
        |(holder, duration_seconds, acquire_time, renew_time, transitions, strategy)| LeaseSpec {
            holder,
            duration_seconds,
            acquire_time,
            renew_time,
            transitions,
            strategy,
            preferred_holder: None,
        },
    );
    (object_meta(), spec).prop_map(|(metadata, spec)| LeaseObject { metadata, spec })
}

/// Any change that a client could make to a Lease besides a renewal.
fn changed(mut object: LeaseObject, change: usize) -> LeaseObject {
    match change {
        0 => object.metadata.name.push('x'),
        1 => object.metadata.uid.push('x'),
        2 => object.metadata.namespace = "default".into(),
        3 => object.metadata.finalizers.push("x".into()),
        4 => object.metadata.labels.push(Pair { key: "x".into(), value: String::new() }),
        5 => object.metadata.managed_fields[0].fields.raw = b"{}".to_vec(),
        6 => object.metadata.managed_fields[0].manager.push('x'),
        7 => object.metadata.creation_timestamp.seconds += 1,
        8 => object.spec.holder = Some("somebody-else".into()),
        9 => object.spec.transitions = Some(object.spec.transitions.unwrap_or(0) ^ 1),
        10 => object.spec.acquire_time = Some(Time { seconds: 4_000_000_001, nanos: 0 }),
        _ => object.metadata.owner_references.clear(),
    }
    object
}

proptest! {
    #[test]
    fn a_renewal_replaces_what_kube_apiserver_replaces(
        object in lease(), now in 0..4_000_000_000u64, written in 1..u64::MAX,
    ) {
        let request = encode(&object);
        let parsed = Lease::parse(&request).unwrap();
        prop_assert_eq!(parsed.name, object.metadata.name.as_bytes());
        prop_assert_eq!(parsed.namespace, b"kube-node-lease");
        let version = parsed.resource_version.unwrap().to_string();
        prop_assert_eq!(&version, &object.metadata.resource_version);
        let renewed = object.spec.renew_time;
        let expected = Timestamp { seconds: renewed.seconds as u64, nanos: renewed.nanos as u32 };
        prop_assert_eq!(parsed.renew_time, expected);
        prop_assert!(parsed.is_renewable(object.metadata.managed_fields[0].manager.as_bytes()));

        let mut stored = object;
        stored.metadata.managed_fields[0].time.seconds = now as i64;
        stored.metadata.resource_version = String::new();
        prop_assert_eq!(parsed.stored(now), encode(&stored));
        stored.metadata.resource_version = written.to_string();
        prop_assert_eq!(parsed.answer(now, NonZeroU64::new(written).unwrap()), encode(&stored));
    }

    #[test]
    fn only_a_renewal_keeps_the_fingerprint(object in lease(), renewed in time(), change in 0..12usize) {
        let bytes = encode(&object);
        let fingerprint = Lease::parse(&bytes).unwrap().fingerprint();

        let mut renewal = object.clone();
        renewal.spec.renew_time = renewed;
        renewal.metadata.resource_version = "7".into();
        renewal.metadata.managed_fields[0].time.seconds += 10;
        let renewal = encode(&renewal);
        prop_assert_eq!(Lease::parse(&renewal).unwrap().fingerprint(), fingerprint);

        let other = changed(object, change);
        let other = encode(&other);
        if other != bytes {
            prop_assert_ne!(Lease::parse(&other).unwrap().fingerprint(), fingerprint);
        }
    }

    #[test]
    fn what_is_parsed_is_encoded_to_the_same_bytes(
        object in lease(), position: prop::sample::Index, byte: u8, cut: bool,
    ) {
        let mut bytes = encode(&object);
        let position = position.index(bytes.len());
        bytes[position] = byte;
        if cut {
            bytes.truncate(position);
        }
        if let Some(lease) = Lease::parse(&bytes) {
            let encoded = match lease.resource_version {
                Some(version) => lease.answer(lease.managed_time, version),
                None => lease.stored(lease.managed_time),
            };
            prop_assert_eq!(encoded, bytes);
        }
    }
}

/// Returns a Lease as it is stored, with any fields that kube-apiserver writes.
fn stored_lease() -> impl Strategy<Value = LeaseObject> {
    let flags = (any::<Option<bool>>(), any::<Option<bool>>());
    let deleted = prop::option::of((time(), prop::option::of(any::<i64>())));
    (lease(), flags, deleted, prop::option::of("[a-z]{0,9}"), 0..3usize).prop_map(
        |(mut object, (controller, block), deleted, holder, entries)| {
            let meta = &mut object.metadata;
            meta.resource_version.clear();
            meta.labels.sort_by(|a, b| a.key.cmp(&b.key));
            meta.labels.dedup_by(|a, b| a.key == b.key);
            meta.annotations.clone_from(&meta.labels);
            for owner in &mut meta.owner_references {
                (owner.controller, owner.block_owner_deletion) = (controller, block);
            }
            if let Some((time, seconds)) = deleted {
                meta.deletion_timestamp = Some(Time { nanos: 0, ..time });
                meta.deletion_grace_period_seconds = seconds;
            }
            meta.managed_fields = vec![meta.managed_fields[0].clone(); entries];
            object.spec.preferred_holder = holder;
            object
        },
    )
}

/// Decodes a value as kube-apiserver does, and encodes it again; `None` if that is not possible.
fn encoded_again(value: &[u8]) -> Option<Vec<u8>> {
    let unknown = Unknown::decode(value.strip_prefix(b"k8s\0")?).ok()?;
    let object = LeaseObject::decode(&unknown.raw[..]).ok()?;
    let mut bytes = b"k8s\0".to_vec();
    Unknown { raw: object.encode_to_vec(), ..unknown }.encode(&mut bytes).unwrap();
    Some(bytes)
}

proptest! {
    #[test]
    fn a_stored_lease_is_sent_with_its_version(object in stored_lease(), revision in 1..u64::MAX) {
        let value = encode(&object);
        let stored = StoredLease::parse(&value).unwrap();
        prop_assert_eq!(stored.name, object.metadata.name.as_bytes());
        prop_assert_eq!(stored.namespace, object.metadata.namespace.as_bytes());
        let mut sent = object;
        sent.metadata.resource_version = revision.to_string();
        let bytes = stored.sent(revision);
        prop_assert_eq!(bytes.capacity(), bytes.len());
        prop_assert_eq!(bytes, encode(&sent));
        prop_assert!(StoredLease::parse(&encode(&sent)).is_none(), "a version is stored");
    }

    #[test]
    fn a_stored_lease_that_would_be_encoded_otherwise_is_not_parsed(
        object in stored_lease(), position: prop::sample::Index, byte: u8,
    ) {
        let mut value = encode(&object);
        let position = position.index(value.len());
        value[position] = byte;
        if StoredLease::parse(&value).is_some() && let Some(again) = encoded_again(&value) {
            prop_assert_eq!(again, value);
        }
    }
}

#[test]
fn a_value_of_another_form_is_not_parsed() {
    let stored = || {
        let mut object = any_lease();
        object.metadata.resource_version.clear();
        object.metadata.labels.clear();
        object
    };
    assert!(StoredLease::parse(&encode(&stored())).is_some());
    let pair = |key: &str| Pair { key: key.into(), value: String::new() };
    let cases: [(&str, Change); 5] = [
        ("nanoseconds", |lease| lease.spec.renew_time.nanos = 1),
        ("a second of nanoseconds", |lease| lease.spec.renew_time.nanos = 1_000_000_000),
        ("nanoseconds of a time that has seconds only", |lease| {
            lease.metadata.creation_timestamp.nanos = 1000;
        }),
        ("the zero time with its fields", |lease| {
            lease.spec.renew_time = Time { seconds: -62_135_596_800, nanos: 0 };
        }),
        ("a version", |lease| lease.metadata.resource_version = "7".into()),
    ];
    for (case, change) in cases {
        let mut lease = stored();
        change(&mut lease);
        assert!(StoredLease::parse(&encode(&lease)).is_none(), "{case}");
    }
    for labels in [["b", "a"], ["a", "a"]] {
        let mut lease = stored();
        lease.metadata.labels = labels.map(pair).into();
        assert!(StoredLease::parse(&encode(&lease)).is_none(), "{labels:?}");
    }
    let value = encode(&stored());
    // A field that is not known, at the end of the spec.
    let mut unknown = stored().encode_to_vec();
    unknown.extend_from_slice(&[0x1a, 0]);
    let mut longer = b"k8s\0".to_vec();
    Unknown { raw: unknown, ..Unknown::decode(&value[4..]).unwrap() }.encode(&mut longer).unwrap();
    assert!(StoredLease::parse(&longer).is_none());
    let json = br#"{"kind":"Lease","apiVersion":"coordination.k8s.io/v1"}"#;
    for value in [&json[..], b"k8s:enc:aescbc:v1:k:xyz", b"", &value[..value.len() - 1]] {
        assert!(StoredLease::parse(value).is_none());
    }
    let text = b"coordination.k8s.io/v1";
    let at = value.windows(text.len()).position(|bytes| bytes == text).unwrap();
    let mut other = value;
    other[at + text.len() - 1] = b'2';
    assert!(StoredLease::parse(&other).is_none(), "another version");
}

#[test]
fn a_stored_lease_may_have_any_time() {
    // kube-apiserver takes them in requests in protobuf, and sends them again.
    let times = [i64::MIN, -62_135_596_801, -62_135_596_799, -1, 0, 253_402_300_800, i64::MAX];
    let zero = Time { seconds: -62_135_596_800, nanos: 1000 };
    let whole = times.map(|seconds| Time { seconds, nanos: 0 });
    for time in whole.into_iter().chain([zero]) {
        let mut object = any_lease();
        object.metadata.resource_version.clear();
        object.metadata.labels.clear();
        object.spec.acquire_time = Some(time);
        object.spec.renew_time = time;
        if time.nanos == 0 {
            object.metadata.managed_fields[0].time = time;
        }
        let stored = encode(&object);
        let stored = StoredLease::parse(&stored).unwrap();
        object.metadata.resource_version = "7".into();
        assert_eq!(stored.sent(7), encode(&object), "{time:?}");
    }
}

fn any_lease() -> LeaseObject {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    proptest::strategy::ValueTree::current(&lease().new_tree(&mut runner).unwrap())
}

type Change = fn(&mut LeaseObject);

#[test]
fn a_lease_that_kube_apiserver_would_change_otherwise_is_not_parsed() {
    let cases: [(&str, Change); 8] = [
        ("no managedFields", |lease| lease.metadata.managed_fields.clear()),
        ("two managers", |lease| {
            let entry = lease.metadata.managed_fields[0].clone();
            lease.metadata.managed_fields.push(entry);
        }),
        ("an apply", |lease| lease.metadata.managed_fields[0].operation = "Apply".into()),
        ("a subresource", |lease| lease.metadata.managed_fields[0].subresource = "status".into()),
        ("deletion", |lease| {
            lease.metadata.deletion_timestamp = Some(Time { seconds: 1, nanos: 0 });
        }),
        ("nanoseconds", |lease| lease.spec.renew_time.nanos = 1),
        ("a time before 1970", |lease| lease.spec.renew_time.seconds = -1),
        ("a version with a sign", |lease| lease.metadata.resource_version = "+7".into()),
    ];
    assert!(Lease::parse(&encode(&any_lease())).is_some());
    for (case, change) in cases {
        let mut lease = any_lease();
        change(&mut lease);
        assert!(Lease::parse(&encode(&lease)).is_none(), "{case}");
    }
}

#[test]
fn only_the_manager_that_has_set_the_renew_time_can_renew() {
    let mut object = any_lease();
    let manager = object.metadata.managed_fields[0].manager.clone();
    assert!(!Lease::parse(&encode(&object)).unwrap().is_renewable(b"somebody"));
    object.metadata.managed_fields[0].fields.raw = br#"{"f:spec":{}}"#.to_vec();
    assert!(!Lease::parse(&encode(&object)).unwrap().is_renewable(manager.as_bytes()));
}
