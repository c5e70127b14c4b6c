//! An object as an API server encoded it, with what selectors need.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;

use super::kind::Kind;
use super::wire::{
    Fields, MAGIC, field_len, put_bytes, put_envelope_tail, put_length, unwrap_object,
};

/// The label of a Service and its EndpointSlices that another proxy than kube-proxy serves.
const PROXY_NAME: &[u8] = b"service.kubernetes.io/service-proxy-name";
/// The label of the EndpointSlices of a Service without an address.
const HEADLESS: &[u8] = b"service.kubernetes.io/headless";
/// Numbers of fields in `ObjectMeta`.
const NAME: u64 = 1;
const NAMESPACE: u64 = 3;
const VERSION: u64 = 6;
const LABELS: u64 = 11;
const ANNOTATIONS: u64 = 12;
/// The number of the field `clusterIP` in the spec of a Service.
const CLUSTER_IP: u64 = 3;

/// A part of the encoded object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Span {
    start: u32,
    end: u32,
}

impl Span {
    fn new(range: &Range<usize>) -> Option<Span> {
        Some(Span { start: range.start.try_into().ok()?, end: range.end.try_into().ok()? })
    }

    fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// Bytes of an object besides what is encoded, about: its place in a cache, and its key.
const OBJECT_SIZE: usize = 320;

/// An object.
#[derive(Clone)]
pub struct Object {
    /// `k8s\0` and `runtime.Unknown`, as an event of a watch carries it.
    envelope: Bytes,
    raw: Span,
    metadata: Span,
    /// The field `resourceVersion`, with its tag.
    version_field: Span,
    version: u64,
    namespace: Span,
    name: Span,
    node: Span,
    traits: Traits,
}

/// Without the content: it may be a Secret.
impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = String::from_utf8_lossy(self.name());
        write!(f, "Object({name} at {}, {} bytes)", self.version, self.envelope.len())
    }
}

/// What the selectors of kubelet and kube-proxy need besides names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Traits {
    /// `spec.clusterIP` is `None`.
    pub no_cluster_ip: bool,
    /// It has the label `service.kubernetes.io/service-proxy-name`.
    pub proxy_name: bool,
    /// It has the label `service.kubernetes.io/headless`.
    pub headless: bool,
}

impl Traits {
    /// Whether both have one of the traits.
    pub fn overlap(self, other: Traits) -> bool {
        (self.no_cluster_ip && other.no_cluster_ip)
            || (self.proxy_name && other.proxy_name)
            || (self.headless && other.headless)
    }
}

impl Object {
    /// Takes an encoded object apart; `None` if it is not encoded as expected.
    pub fn parse(kind: Kind, envelope: Bytes) -> Option<Object> {
        let raw = unwrap_object(&envelope)?;
        let mut fields = Fields::new(&envelope, raw.clone())?;
        let metadata = fields.next()?.filter(|field| field.number == 1)?.value;
        let mut object = Object {
            raw: Span::new(&raw)?,
            metadata: Span::new(&metadata)?,
            version_field: Span::default(),
            version: 0,
            namespace: Span::default(),
            name: Span::default(),
            node: Span::default(),
            traits: Traits::default(),
            envelope: envelope.clone(),
        };
        object.read_metadata(&envelope, metadata)?;
        if kind.node_field().is_some() || kind == Kind::Services {
            let spec = fields.next()?.filter(|field| field.number == 2)?.value;
            object.read_spec(kind, &envelope, spec)?;
        }
        Some(object)
    }

    fn read_metadata(&mut self, bytes: &[u8], range: Range<usize>) -> Option<()> {
        let mut fields = Fields::new(bytes, range)?;
        while let Some(field) = fields.next()? {
            match field.number {
                NAME => self.name = Span::new(&field.value)?,
                NAMESPACE => self.namespace = Span::new(&field.value)?,
                VERSION => {
                    self.version_field = Span::new(&field.whole)?;
                    self.version = number(&bytes[field.value])?;
                }
                LABELS => {
                    let key = Fields::new(bytes, field.value)?.next()??;
                    let key = &bytes[key.value];
                    self.traits.proxy_name |= key == PROXY_NAME;
                    self.traits.headless |= key == HEADLESS;
                }
                _ => {}
            }
        }
        // Every object that an API server sends has a version.
        (self.version > 0).then_some(())
    }

    fn read_spec(&mut self, kind: Kind, bytes: &[u8], range: Range<usize>) -> Option<()> {
        let mut fields = Fields::new(bytes, range)?;
        while let Some(field) = fields.next()? {
            if Some(field.number) == kind.node_field() {
                self.node = Span::new(&field.value)?;
            } else if kind == Kind::Services && field.number == CLUSTER_IP {
                self.traits.no_cluster_ip = &bytes[field.value] == b"None";
            }
        }
        Some(())
    }

    /// The object as an event of a watch carries it.
    pub fn envelope(&self) -> &Bytes {
        &self.envelope
    }

    /// The object as a list carries it.
    pub fn raw(&self) -> &[u8] {
        &self.envelope[self.raw.range()]
    }

    /// The bytes that it takes, about.
    pub fn size(&self) -> usize {
        self.envelope.len() + OBJECT_SIZE
    }

    /// The resourceVersion.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The namespace, or empty.
    pub fn namespace(&self) -> &[u8] {
        &self.envelope[self.namespace.range()]
    }

    /// The name.
    pub fn name(&self) -> &[u8] {
        &self.envelope[self.name.range()]
    }

    /// The name of its node, or empty.
    pub fn node(&self) -> &[u8] {
        &self.envelope[self.node.range()]
    }

    /// What selectors need besides names.
    pub fn traits(&self) -> Traits {
        self.traits
    }

    /// The key by which lists are sorted: as in the store, without the prefix of the resource.
    pub fn key(&self) -> Box<[u8]> {
        object_key(self.namespace(), self.name())
    }

    /// Returns the encoded object with another resourceVersion.
    pub fn with_version(&self, version: u64) -> Bytes {
        let metadata = self.metadata.range();
        let field = self.version_field.range();
        let mut changed = Vec::with_capacity(metadata.len() + 8);
        changed.extend_from_slice(&self.envelope[metadata.start..field.start]);
        put_bytes(&mut changed, VERSION as u8, version.to_string().as_bytes());
        changed.extend_from_slice(&self.envelope[field.end..metadata.end]);
        self.with_metadata(&changed)
    }

    /// Returns the encoded object without annotations.
    pub fn without_annotations(&self) -> Option<Bytes> {
        let mut changed = Vec::with_capacity(self.metadata.range().len());
        let mut fields = Fields::new(&self.envelope, self.metadata.range())?;
        while let Some(field) = fields.next()? {
            if field.number != ANNOTATIONS {
                changed.extend_from_slice(&self.envelope[field.whole]);
            }
        }
        Some(self.with_metadata(&changed))
    }

    /// Whether it has any of these bytes in its metadata.
    pub fn mentions(&self, text: &[u8]) -> bool {
        memchr::memmem::find(&self.envelope[self.metadata.range()], text).is_some()
    }

    fn with_metadata(&self, metadata: &[u8]) -> Bytes {
        let rest = self.metadata.range().end..self.raw.range().end;
        let length = field_len(metadata.len()) + rest.len();
        // Only the type precedes the object.
        let type_meta = Fields::new(&self.envelope, MAGIC.len()..self.raw.range().start)
            .and_then(|mut fields| fields.next().flatten());
        let type_end = type_meta.map_or(MAGIC.len(), |field| field.whole.end);
        let mut out = Vec::with_capacity(type_end + length + 16);
        out.extend_from_slice(&self.envelope[..type_end]);
        put_length(&mut out, 2, length);
        put_bytes(&mut out, 1, metadata);
        out.extend_from_slice(&self.envelope[rest]);
        put_envelope_tail(&mut out);
        out.into()
    }
}

/// The key of an object with a namespace, which may be empty, and a name.
pub fn object_key(namespace: &[u8], name: &[u8]) -> Box<[u8]> {
    if namespace.is_empty() {
        return name.into();
    }
    [namespace, b"/", name].concat().into()
}

/// Reads a resourceVersion. Since Kubernetes 1.35 their order is part of the API.
fn number(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let number = text.parse().ok()?;
    (u64::to_string(&number) == text).then_some(number)
}

#[cfg(test)]
pub mod sample {
    //! Objects for tests, encoded as by kube-apiserver.

    use super::*;
    use crate::node_path::watches::wire::put_envelope_head;

    /// Returns an encoded Pod with a namespace, a name, a node, a version and something that differs.
    pub fn pod(namespace: &str, name: &str, node: &str, version: u64, text: &str) -> Bytes {
        let mut spec = Vec::new();
        put_bytes(&mut spec, 10, node.as_bytes());
        object(Kind::Pods, namespace, name, version, &[], text, &spec)
    }

    /// Returns an encoded object.
    pub fn object(
        kind: Kind,
        namespace: &str,
        name: &str,
        version: u64,
        labels: &[&str],
        text: &str,
        spec: &[u8],
    ) -> Bytes {
        let mut metadata = Vec::new();
        put_bytes(&mut metadata, 1, name.as_bytes());
        put_bytes(&mut metadata, 2, b"");
        put_bytes(&mut metadata, 3, namespace.as_bytes());
        put_bytes(&mut metadata, 5, b"uid");
        put_bytes(&mut metadata, 6, version.to_string().as_bytes());
        for label in labels {
            let mut entry = Vec::new();
            put_bytes(&mut entry, 1, label.as_bytes());
            put_bytes(&mut entry, 2, b"");
            put_bytes(&mut metadata, 11, &entry);
        }
        if !text.is_empty() {
            put_bytes(&mut metadata, 12, text.as_bytes());
        }
        let mut raw = Vec::new();
        put_bytes(&mut raw, 1, &metadata);
        put_bytes(&mut raw, 2, spec);
        let mut envelope = Vec::new();
        let names = kind.names();
        let name = names.list.trim_end_matches("List");
        put_envelope_head(&mut envelope, names.api_version, name, raw.len());
        envelope.extend_from_slice(&raw);
        put_envelope_tail(&mut envelope);
        envelope.into()
    }
}

#[cfg(test)]
mod tests {
    use super::sample::{object, pod};
    use super::*;
    use crate::node_path::watches::frame::{EventType, Frame};
    use crate::node_path::watches::source::Received;

    #[test]
    fn a_pod_is_taken_apart() {
        let pod = Object::parse(Kind::Pods, pod("ns", "p", "node-1", 99, "x")).unwrap();
        assert_eq!((pod.namespace(), pod.name()), (&b"ns"[..], &b"p"[..]));
        assert_eq!((pod.node(), pod.version()), (&b"node-1"[..], 99));
        assert_eq!(&pod.key()[..], b"ns/p");
        assert!(pod.raw().starts_with(&[0x0a]) && pod.mentions(b"uid") && !pod.mentions(b"node-1"));
    }

    #[test]
    fn the_content_is_not_shown() {
        let bytes = object(Kind::Secrets, "ns", "name", 99, &[], "", b"password");
        let secret = Object::parse(Kind::Secrets, bytes.clone()).unwrap();
        let received = Received { event: EventType::Added, object: bytes.clone() };
        for shown in [
            format!("{secret:?}"),
            format!("{:?}", Frame::new(EventType::Added, bytes)),
            format!("{received:?}"),
        ] {
            assert!(shown.contains("bytes") && !shown.contains("passw"), "{shown}");
        }
    }

    #[test]
    fn another_version_is_what_the_api_server_would_have_encoded() {
        for (old, new) in [(9, 10), (1_000_000, 999_999_999_999), (10, 9), (127, 128)] {
            let before = Object::parse(Kind::Pods, pod("ns", "p", "n", old, "x")).unwrap();
            assert_eq!(before.with_version(new), pod("ns", "p", "n", new, "x"));
        }
    }

    #[test]
    fn annotations_are_removed() {
        let marked = Object::parse(Kind::Pods, pod("", "", "", 7, "mark")).unwrap();
        assert_eq!(marked.without_annotations().unwrap(), pod("", "", "", 7, ""));
    }

    #[test]
    fn traits_of_services_are_found() {
        let service = |labels: &[&str], address: &str| {
            let mut spec = Vec::new();
            put_bytes(&mut spec, 3, address.as_bytes());
            let object = object(Kind::Services, "a", "b", 1, labels, "", &spec);
            Object::parse(Kind::Services, object).unwrap().traits()
        };
        assert_eq!(service(&["app"], "10.0.0.1"), Traits::default());
        assert!(service(&[], "None").no_cluster_ip);
        assert!(service(&["a", "service.kubernetes.io/headless"], "").headless);
        assert!(service(&["service.kubernetes.io/service-proxy-name"], "").proxy_name);
    }

    #[test]
    fn other_bytes_are_refused() {
        let good = pod("ns", "p", "n", 1, "");
        assert!(Object::parse(Kind::Pods, good.slice(1..)).is_none());
        assert!(Object::parse(Kind::Pods, good.slice(..good.len() - 1)).is_none());
        assert!(Object::parse(Kind::Pods, pod("ns", "p", "n", 0, "")).is_none(), "no version");
        for end in 0..good.len() - 4 {
            let mut cut = good[..end].to_vec();
            put_envelope_tail(&mut cut);
            assert!(Object::parse(Kind::Pods, cut.into()).is_none());
        }
    }
}
