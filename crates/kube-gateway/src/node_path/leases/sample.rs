//! Leases for tests, as kubelets send them.

/// Encodes a Lease. `version` 0 means none.
pub fn lease(name: &str, version: u64, renewed: u64, manager: &str) -> Vec<u8> {
    let version = if version == 0 { String::new() } else { version.to_string() };
    let owned = "{\"f:spec\":{\"f:renewTime\":{}}}";
    let entry = [
        text(0x0a, manager),
        text(0x12, "Update"),
        text(0x1a, "coordination.k8s.io/v1"),
        field(&[0x22], &time(90)),
        text(0x32, "FieldsV1"),
        field(&[0x3a], &text(0x0a, owned)),
        text(0x42, ""),
    ]
    .concat();
    let metadata = [
        text(0x0a, name),
        text(0x12, ""),
        text(0x1a, "kube-node-lease"),
        text(0x22, ""),
        text(0x2a, "5b0c6f0e-0000-4000-8000-000000000000"),
        text(0x32, &version),
        vec![0x38, 0],
        field(&[0x42], &time(80)),
        field(&[0x8a, 0x01], &entry),
    ]
    .concat();
    let spec = [text(0x0a, name), vec![0x10, 40], field(&[0x22], &time(renewed))].concat();
    let raw = [field(&[0x0a], &metadata), field(&[0x12], &spec)].concat();
    let meta = [text(0x0a, "coordination.k8s.io/v1"), text(0x12, "Lease")].concat();
    let object = [field(&[0x0a], &meta), field(&[0x12], &raw), vec![0x1a, 0, 0x22, 0]].concat();
    [&b"k8s\0"[..], &object].concat()
}

fn text(tag: u8, value: &str) -> Vec<u8> {
    field(&[tag], value.as_bytes())
}

fn field(tag: &[u8], value: &[u8]) -> Vec<u8> {
    [tag, &varint(value.len() as u64), value].concat()
}

fn time(seconds: u64) -> Vec<u8> {
    [vec![0x08], varint(seconds), vec![0x10, 0]].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}
