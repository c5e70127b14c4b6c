//! The answer to a renewal that was served.

use std::time::SystemTime;

use http2::Fields;

use crate::node_path::uuid;

const FLOW_SCHEMA: &[u8] = b"x-kubernetes-pf-flowschema-uid";
const PRIORITY_LEVEL: &[u8] = b"x-kubernetes-pf-prioritylevel-uid";
/// Bytes of the fields, about.
const BYTES: usize = 320;

/// The fields of an API server's answer that depend on the sender: which flow schema and priority
/// level it was assigned to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerFields {
    flow_schema: Option<Vec<u8>>,
    priority_level: Option<Vec<u8>>,
}

impl AnswerFields {
    /// Reads the fields of an answer.
    pub fn new(fields: &Fields) -> AnswerFields {
        AnswerFields {
            flow_schema: fields.get(FLOW_SCHEMA).map(<[u8]>::to_vec),
            priority_level: fields.get(PRIORITY_LEVEL).map(<[u8]>::to_vec),
        }
    }

    /// Returns the header of an answer, with the fields that kube-apiserver sends. Three have values
    /// of their own: `audit-id` is a random UUID as from kube-apiserver, but no audit log has it;
    /// those of priority and fairness are the ones of the last answer to this Lease that came from
    /// an API server; `date` is the time of the gateway.
    pub fn encode(&self, length: usize, audit_id: u128, now: SystemTime) -> Fields {
        let mut fields = Fields::with_capacity(7, BYTES);
        fields.push(b"audit-id", &uuid(audit_id));
        fields.push(b"cache-control", b"no-cache, private");
        fields.push(b"content-type", b"application/vnd.kubernetes.protobuf");
        let pairs = [(FLOW_SCHEMA, &self.flow_schema), (PRIORITY_LEVEL, &self.priority_level)];
        for (name, value) in pairs {
            if let Some(value) = value {
                fields.push(name, value);
            }
        }
        fields.push(b"content-length", length.to_string().as_bytes());
        fields.push(b"date", httpdate::fmt_http_date(now).as_bytes());
        fields
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_that_of_kube_apiserver() {
        let answered = Fields::from_iter([(FLOW_SCHEMA, &b"a"[..]), (PRIORITY_LEVEL, b"b")]);
        let fields = AnswerFields::new(&answered).encode(12, u128::MAX, SystemTime::UNIX_EPOCH);
        let text = |(name, value): (&[u8], &[u8])| {
            format!("{}: {}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
        };
        let expected = [
            "audit-id: ffffffff-ffff-4fff-bfff-ffffffffffff",
            "cache-control: no-cache, private",
            "content-type: application/vnd.kubernetes.protobuf",
            "x-kubernetes-pf-flowschema-uid: a",
            "x-kubernetes-pf-prioritylevel-uid: b",
            "content-length: 12",
            "date: Thu, 01 Jan 1970 00:00:00 GMT",
        ];
        assert_eq!(fields.iter().map(text).collect::<Vec<_>>(), expected);
        assert_eq!(AnswerFields::default().encode(1, 0, SystemTime::UNIX_EPOCH).iter().count(), 5);
    }
}
