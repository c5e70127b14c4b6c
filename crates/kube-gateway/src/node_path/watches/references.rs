//! Which ConfigMaps and Secrets a pod refers to, read from its encoded bytes.
//!
//! The rules are those by which the Node authorizer gives a kubelet access: `Graph.AddPod` in
//! `plugin/pkg/auth/authorizer/node/graph.go`, with `VisitPodSecretNames` and `VisitPodConfigmapNames`
//! in `pkg/api/v1/pod/util.go` of k8s.io/kubernetes. What a pod refers to indirectly, as by a
//! PersistentVolumeClaim, is not found.
//!
//! The numbers of fields are those of `k8s.io/api/core/v1/generated.proto` of Kubernetes 1.37. Whoever
//! changes them compares each message there, with its highest number.
//!
//! # Invariants
//! - What is found is never more than what the Node authorizer finds. A pod with an unknown field in a
//!   message that is read here, a field twice that can occur once, or anything else that an API server
//!   does not write, refers to nothing.
//! - The result depends on the bytes alone.

use std::ops::Range;

use super::kind::Kind;
use super::object::Object;
use super::selector::is_name;
use super::wire::Fields;

/// The annotation of a pod that a kubelet has created for a static pod. It must not give the kubelet
/// access to anything.
const MIRROR: &[u8] = b"kubernetes.io/config.mirror";
/// References of a pod. One with more of them refers to nothing, which bounds memory.
pub const MAX_REFERENCES: usize = 1000;

/// What a pod refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference<'a> {
    /// ConfigMaps or Secrets.
    pub kind: Kind,
    /// The name of an object in the namespace of the pod.
    pub name: &'a [u8],
}

/// Where a field is in a message: its number, and the highest number that the message has.
type Step = (u64, u64);

/// The name in a `LocalObjectReference`.
const LOCAL: Step = (1, 1);
/// Fields of `Pod`.
const METADATA: Step = (1, 3);
const SPEC: Step = (2, 3);
/// The field `annotations` of `ObjectMeta`, and the key of one of them.
const ANNOTATIONS: Step = (12, 17);
const ANNOTATION_KEY: Step = (1, 2);
/// The highest numbers of fields.
const LAST_IN_SPEC: u64 = 44;
const LAST_IN_CONTAINER: u64 = 25;
const LAST_IN_VOLUME_SOURCE: u64 = 30;
/// Fields of `PodSpec`.
const VOLUMES: u64 = 1;
const CONTAINERS: u64 = 2;
const IMAGE_PULL_SECRETS: u64 = 15;
const INIT_CONTAINERS: u64 = 20;
const EPHEMERAL_CONTAINERS: u64 = 34;
/// The fields of `EphemeralContainer` that are those of a `Container`.
const EPHEMERAL_COMMON: Step = (1, 2);
/// Fields of `Container`.
const ENV: u64 = 7;
const ENV_FROM: u64 = 19;
/// The field `volumeSource` of `Volume`, and `sources` of `ProjectedVolumeSource`.
const VOLUME_SOURCE: Step = (2, 2);
const PROJECTED: u64 = 26;
const PROJECTED_SOURCES: Step = (1, 3);

/// Returns the ConfigMaps and Secrets to which a pod refers, each once and in order. None if it is a
/// mirror pod, or if its bytes are not as expected.
pub fn of(pod: &Object) -> Vec<Reference<'_>> {
    let mut found = read(pod.raw()).unwrap_or_default();
    found.sort_unstable();
    found.dedup();
    if found.len() > MAX_REFERENCES { Vec::new() } else { found }
}

/// Reads an encoded `Pod`; `None` if it is not as expected.
fn read(pod: &[u8]) -> Option<Vec<Reference<'_>>> {
    let reader = Reader { bytes: pod };
    let all = 0..pod.len();
    if let Some(metadata) = reader.single(all.clone(), METADATA)?
        && reader.is_mirror(metadata)?
    {
        return Some(Vec::new());
    }
    let mut found = Vec::new();
    if let Some(spec) = reader.single(all, SPEC)? {
        reader.spec(spec, &mut found)?;
    }
    Some(found)
}

/// Reads messages in the encoded pod. All results are `None` if the bytes are not as expected.
struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn is_mirror(&self, metadata: Range<usize>) -> Option<bool> {
        let (number, last) = ANNOTATIONS;
        let mut is_mirror = false;
        self.each(metadata, last, |field, value| {
            if field == number {
                let key = self.single(value?, ANNOTATION_KEY)?;
                is_mirror |= key.is_some_and(|key| &self.bytes[key] == MIRROR);
            }
            Some(())
        })?;
        Some(is_mirror)
    }

    fn spec(&self, spec: Range<usize>, found: &mut Vec<Reference<'a>>) -> Option<()> {
        self.each(spec, LAST_IN_SPEC, |field, value| match field {
            VOLUMES => match self.single(value?, VOLUME_SOURCE)? {
                Some(source) => self.volume(source, found),
                None => Some(()),
            },
            CONTAINERS | INIT_CONTAINERS => self.container(value?, found),
            EPHEMERAL_CONTAINERS => match self.single(value?, EPHEMERAL_COMMON)? {
                Some(common) => self.container(common, found),
                None => Some(()),
            },
            IMAGE_PULL_SECRETS => self.add(Kind::Secrets, value?, &[LOCAL], found),
            _ => Some(()),
        })
    }

    fn container(&self, container: Range<usize>, found: &mut Vec<Reference<'a>>) -> Option<()> {
        self.each(container, LAST_IN_CONTAINER, |field, value| match field {
            ENV => {
                // `EnvVar.valueFrom`, then the reference in `EnvVarSource`, then its fields.
                let value = value?;
                self.add(Kind::ConfigMaps, value.clone(), &[(3, 3), (3, 5), (1, 3), LOCAL], found)?;
                self.add(Kind::Secrets, value, &[(3, 3), (4, 5), (1, 3), LOCAL], found)
            }
            ENV_FROM => {
                let value = value?;
                self.add(Kind::ConfigMaps, value.clone(), &[(2, 3), (1, 2), LOCAL], found)?;
                self.add(Kind::Secrets, value, &[(3, 3), (1, 2), LOCAL], found)
            }
            _ => Some(()),
        })
    }

    /// Reads a `VolumeSource`. Validation allows one field in it. The Node authorizer would take the first
    /// one in an order of its own.
    fn volume(&self, source: Range<usize>, found: &mut Vec<Reference<'a>>) -> Option<()> {
        let mut only = None;
        self.each(source, LAST_IN_VOLUME_SOURCE, |field, value| {
            only.replace((field, value?)).is_none().then_some(())
        })?;
        let Some((field, value)) = only else { return Some(()) };
        if field == PROJECTED {
            return self.projected(value, found);
        }
        match volume_path(field) {
            Some((kind, path)) => self.add(kind, value, path, found),
            None => Some(()),
        }
    }

    fn projected(&self, volume: Range<usize>, found: &mut Vec<Reference<'a>>) -> Option<()> {
        let (number, last) = PROJECTED_SOURCES;
        self.each(volume, last, |field, value| {
            if field != number {
                return Some(());
            }
            let value = value?;
            self.add(Kind::Secrets, value.clone(), &[(1, 6), (1, 4), LOCAL], found)?;
            self.add(Kind::ConfigMaps, value, &[(3, 6), (1, 4), LOCAL], found)
        })
    }

    /// Adds the name at the end of a path of fields, if it is there.
    fn add(
        &self,
        kind: Kind,
        message: Range<usize>,
        path: &[Step],
        found: &mut Vec<Reference<'a>>,
    ) -> Option<()> {
        let mut at = message;
        for step in path {
            match self.single(at, *step)? {
                Some(value) => at = value,
                None => return Some(()),
            }
        }
        let name = &self.bytes[at];
        // Nothing else is served.
        if std::str::from_utf8(name).ok().is_some_and(is_name) {
            found.push(Reference { kind, name });
        }
        Some(())
    }

    /// Returns the value of a field that occurs once, or not at all.
    fn single(&self, message: Range<usize>, (number, last): Step) -> Option<Option<Range<usize>>> {
        let mut single = None;
        self.each(message, last, |field, value| {
            if field == number && single.replace(value?).is_some() {
                return None;
            }
            Some(())
        })?;
        Some(single)
    }

    /// Visits each field of a message: its number, and its value if that has a length.
    fn each(
        &self,
        message: Range<usize>,
        last: u64,
        mut visit: impl FnMut(u64, Option<Range<usize>>) -> Option<()>,
    ) -> Option<()> {
        let mut fields = Fields::new(self.bytes, message)?;
        while let Some(field) = fields.next()? {
            if !(1..=last).contains(&field.number) {
                return None;
            }
            visit(field.number, field.bytes())?;
        }
        Some(())
    }
}

/// Where the name is in a field of `VolumeSource`, and what it is the name of.
fn volume_path(field: u64) -> Option<(Kind, &'static [Step])> {
    let path: &[Step] = match field {
        // `secret.secretName`
        6 => &[(1, 5)],
        // `iscsi.secretRef`
        8 => &[(10, 12), LOCAL],
        // `rbd.secretRef`
        11 => &[(7, 8), LOCAL],
        // `flexVolume.secretRef`
        12 => &[(3, 5), LOCAL],
        // `cinder.secretRef`
        13 => &[(4, 4), LOCAL],
        // `cephfs.secretRef`
        14 => &[(5, 6), LOCAL],
        // `azureFile.secretName`
        18 => &[(1, 3)],
        // `configMap.name`
        19 => return Some((Kind::ConfigMaps, &[(1, 5), LOCAL])),
        // `scaleIO.secretRef`
        25 => &[(3, 10), LOCAL],
        // `storageos.secretRef`
        27 => &[(5, 5), LOCAL],
        // `csi.nodePublishSecretRef`
        28 => &[(5, 5), LOCAL],
        _ => return None,
    };
    Some((Kind::Secrets, path))
}

#[cfg(test)]
pub mod sample {
    //! Pods with references for tests.

    use bytes::Bytes;

    use super::*;
    use crate::node_path::watches::object::sample::object;

    /// All ways in which a pod can refer to an object: the numbers of the fields from `PodSpec` down to the
    /// name.
    pub const WAYS: [(Kind, &[u64]); 27] = [
        (Kind::Secrets, &[15, 1]),
        // Containers, init containers and ephemeral ones: `env`, and `envFrom`.
        (Kind::Secrets, &[2, 7, 3, 4, 1, 1]),
        (Kind::Secrets, &[20, 7, 3, 4, 1, 1]),
        (Kind::Secrets, &[34, 1, 7, 3, 4, 1, 1]),
        (Kind::Secrets, &[2, 19, 3, 1, 1]),
        (Kind::Secrets, &[20, 19, 3, 1, 1]),
        (Kind::Secrets, &[34, 1, 19, 3, 1, 1]),
        (Kind::ConfigMaps, &[2, 7, 3, 3, 1, 1]),
        (Kind::ConfigMaps, &[20, 7, 3, 3, 1, 1]),
        (Kind::ConfigMaps, &[34, 1, 7, 3, 3, 1, 1]),
        (Kind::ConfigMaps, &[2, 19, 2, 1, 1]),
        (Kind::ConfigMaps, &[20, 19, 2, 1, 1]),
        (Kind::ConfigMaps, &[34, 1, 19, 2, 1, 1]),
        // Volumes.
        (Kind::ConfigMaps, &[1, 2, 19, 1, 1]),
        (Kind::ConfigMaps, &[1, 2, 26, 1, 3, 1, 1]),
        (Kind::Secrets, &[1, 2, 26, 1, 1, 1, 1]),
        (Kind::Secrets, &[1, 2, 6, 1]),
        (Kind::Secrets, &[1, 2, 8, 10, 1]),
        (Kind::Secrets, &[1, 2, 11, 7, 1]),
        (Kind::Secrets, &[1, 2, 12, 3, 1]),
        (Kind::Secrets, &[1, 2, 13, 4, 1]),
        (Kind::Secrets, &[1, 2, 14, 5, 1]),
        (Kind::Secrets, &[1, 2, 18, 1]),
        (Kind::Secrets, &[1, 2, 25, 3, 1]),
        (Kind::Secrets, &[1, 2, 27, 5, 1]),
        (Kind::Secrets, &[1, 2, 28, 5, 1]),
        // The same as before: several volumes of a kind are usual.
        (Kind::ConfigMaps, &[1, 2, 19, 1, 1]),
    ];

    /// Encodes a field with any number.
    pub fn field(number: u64, value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        prost::encoding::encode_varint(number << 3 | 2, &mut out);
        prost::encoding::encode_varint(value.len() as u64, &mut out);
        out.extend_from_slice(value);
        out
    }

    /// Encodes a text at the end of a path of fields.
    pub fn nested(path: &[u64], text: &[u8]) -> Vec<u8> {
        path.iter().rev().fold(text.to_vec(), |value, number| field(*number, &value))
    }

    /// Encodes a pod with these references, by their position in [`WAYS`], among other fields.
    pub fn pod_of(name: &str, node: &str, version: u64, references: &[(usize, &str)]) -> Bytes {
        let mut spec = Vec::new();
        for (way, name) in references {
            spec.extend(nested(WAYS[*way].1, name.as_bytes()));
            spec.extend(nested(&[2, 1], b"container"));
            // `enableServiceLinks`, a number.
            spec.extend([30 << 3 & 0x7f | 0x80, 1, 1]);
        }
        spec.extend(field(10, node.as_bytes()));
        object(Kind::Pods, "ns", name, version, &[], "", &spec)
    }

    /// Encodes and parses a pod as [`pod_of`] does.
    pub fn parsed(name: &str, node: &str, version: u64, references: &[(usize, &str)]) -> Object {
        Object::parse(Kind::Pods, pod_of(name, node, version, references)).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Read as _;

    use bytes::Bytes;
    use proptest::prelude::*;

    use super::sample::{WAYS, field, nested, parsed};
    use super::*;
    use crate::node_path::watches::object::sample::object;

    /// What a pod with this spec refers to.
    fn of_spec(spec: &[u8]) -> Vec<(Kind, String)> {
        of_bytes(object(Kind::Pods, "ns", "p", 1, &[], "", spec))
    }

    fn of_bytes(pod: Bytes) -> Vec<(Kind, String)> {
        let pod = Object::parse(Kind::Pods, pod).unwrap();
        let name = |name: &[u8]| String::from_utf8(name.to_vec()).unwrap();
        of(&pod).into_iter().map(|found| (found.kind, name(found.name))).collect()
    }

    #[test]
    fn each_way_is_found() {
        for (kind, path) in WAYS {
            assert_eq!(of_spec(&nested(path, b"a")), [(kind, "a".into())], "{path:?}");
        }
        let all: Vec<u8> = WAYS.iter().flat_map(|(_, path)| nested(path, b"a")).collect();
        assert_eq!(of_spec(&all), [(Kind::ConfigMaps, "a".into()), (Kind::Secrets, "a".into())]);
        assert!(of_spec(b"").is_empty());
    }

    #[test]
    fn a_mirror_pod_refers_to_nothing() {
        let spec = nested(WAYS[0].1, b"a");
        let annotated = |key: &str| {
            let entry = [field(1, key.as_bytes()), field(2, b"x")].concat();
            let text = String::from_utf8(entry).unwrap();
            of_bytes(object(Kind::Pods, "ns", "p", 1, &[], &text, &spec))
        };
        assert!(annotated("kubernetes.io/config.mirror").is_empty());
        assert_eq!(annotated("kubernetes.io/config.mirror2").len(), 1);
    }

    #[test]
    fn what_validation_does_not_allow_refers_to_nothing() {
        let good = nested(WAYS[0].1, b"a");
        let name = || field(1, b"a");
        for (what, bad) in [
            ("an unknown field of the spec", field(45, b"")),
            ("the number 0", field(0, b"")),
            ("an unknown field of a container", nested(&[2, 26], b"")),
            ("an unknown source of a volume", nested(&[1, 2, 31], b"")),
            ("an unknown field of a volume", nested(&[1, 3], b"")),
            ("an unknown field of a reference", nested(&[15, 2], b"")),
            ("two sources of a volume", nested(&[1, 2], &[field(6, b""), field(19, b"")].concat())),
            ("the same source twice", nested(&[1, 2], &[field(6, b""), field(6, b"")].concat())),
            ("two names", nested(&[15], &[name(), name()].concat())),
            ("two selectors", nested(&[2, 7, 3], &[field(4, b""), field(4, b"")].concat())),
            ("a name that is a number", nested(&[15], &[8, 1])),
            ("a volume that is a number", vec![8, 1]),
            ("a source that is a number", nested(&[1, 2], &[6 << 3, 1])),
            ("a message that is cut off", nested(&[15], &[10, 9, b'a'])),
        ] {
            assert!(of_spec(&[good.clone(), bad].concat()).is_empty(), "{what}");
        }
        // These are fields that hold nothing of interest.
        for other in [field(44, b"x"), vec![30 << 3 & 0x7f | 0x80, 1, 1], nested(&[1, 2, 29], b"")]
        {
            assert_eq!(of_spec(&[good.clone(), other].concat()).len(), 1);
        }
    }

    #[test]
    fn names_that_nobody_can_ask_for_are_left_out() {
        let long = "a".repeat(254);
        for name in ["", ".", "..", "A", "a/b", "a%2fb", "\u{e4}", &long] {
            assert!(of_spec(&nested(WAYS[0].1, name.as_bytes())).is_empty(), "{name}");
        }
    }

    #[test]
    fn a_pod_with_too_many_references_refers_to_nothing() {
        let spec = |count: usize| {
            let names = (0..count).map(|number| nested(WAYS[0].1, number.to_string().as_bytes()));
            names.flatten().collect::<Vec<u8>>()
        };
        assert_eq!(of_spec(&spec(MAX_REFERENCES)).len(), MAX_REFERENCES);
        assert!(of_spec(&spec(MAX_REFERENCES + 1)).is_empty());
    }

    proptest! {
        #[test]
        fn random_references_are_found(
            references in prop::collection::vec((0..WAYS.len(), 0..9_u8), 0..30)
        ) {
            let named: Vec<(usize, String)> =
                references.iter().map(|(way, name)| (*way, format!("n-{name}"))).collect();
            let borrowed: Vec<(usize, &str)> =
                named.iter().map(|(way, name)| (*way, name.as_str())).collect();
            let pod = parsed("p", "n", 1, &borrowed);
            let found: BTreeSet<_> = of(&pod).into_iter().collect();
            let expected: BTreeSet<_> = named
                .iter()
                .map(|(way, name)| Reference { kind: WAYS[*way].0, name: name.as_bytes() })
                .collect();
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn hostile_bytes_do_not_panic(
            bytes in any::<Vec<u8>>(),
            references in prop::collection::vec((0..WAYS.len(), 0..9_u8), 1..5),
            at in any::<usize>(),
            bit in 0..8_u8
        ) {
            let _ = read(&bytes);
            let spec: Vec<u8> =
                references.iter().flat_map(|(way, _)| nested(WAYS[*way].1, b"name")).collect();
            let mut pod = field(2, &spec);
            let at = at % pod.len();
            pod[at] ^= 1 << bit;
            let _ = read(&pod);
            let _ = read(&pod[..at]);
        }
    }

    /// Takes the next part of the record: its length, and that many bytes.
    fn part<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
        let (length, after) = rest.split_at_checked(4)?;
        let length = u32::from_be_bytes(length.try_into().unwrap()) as usize;
        let (part, after) = after.split_at(length);
        *rest = after;
        Some(part)
    }

    /// `test/node-path/references` writes the record with the functions of Kubernetes.
    #[test]
    fn random_pods_refer_to_what_kubernetes_says() {
        let mut record = Vec::new();
        let compressed = &include_bytes!("testdata/pods.gz")[..];
        flate2::read::GzDecoder::new(compressed).read_to_end(&mut record).unwrap();
        let (mut rest, mut pods, mut references) = (&record[..], 0, 0);
        while let Some(pod) = part(&mut rest) {
            let text = std::str::from_utf8(part(&mut rest).unwrap()).unwrap();
            let (is_valid, lines) = text.split_once('\n').unwrap();
            let lines = lines.lines().filter_map(|line| line.split_once('/'));
            let expected: BTreeSet<_> = lines.filter(|(_, name)| is_name(name)).collect();
            let pod = Object::parse(Kind::Pods, Bytes::copy_from_slice(pod)).unwrap();
            let found = of(&pod).into_iter();
            let found: BTreeSet<_> = found
                .map(|it| (it.kind.names().resource, std::str::from_utf8(it.name).unwrap()))
                .collect();
            match is_valid {
                "true" => assert_eq!(found, expected, "{pod:?}"),
                _ => assert!(found.is_subset(&expected), "{pod:?}: {found:?} {expected:?}"),
            }
            (pods, references) = (pods + 1, references + found.len());
        }
        assert!(pods >= 160 && references > 4 * pods, "{pods} pods, {references} references");
    }
}
