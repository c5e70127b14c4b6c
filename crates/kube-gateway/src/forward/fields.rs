//! Header fields that belong to one connection and are not forwarded (RFC 9110, section 7.6.1).

use http::header::{
    CONNECTION, HeaderMap, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Removes the fields of one connection, with those that `Connection` names. Must be called before
/// the gateway adds fields of its own, or a client could name these.
pub fn remove_hop_by_hop(fields: &mut HeaderMap) {
    let named: Vec<HeaderName> = fields
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        fields.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_named_in_connection_are_removed() {
        let mut fields = HeaderMap::new();
        for (name, value) in [
            ("connection", "keep-alive, X-A"),
            ("connection", "x-b"),
            ("x-a", "1"),
            ("x-b", "2"),
            ("x-c", "3"),
            ("transfer-encoding", "chunked"),
        ] {
            fields.append(HeaderName::from_static(name), value.parse().unwrap());
        }
        remove_hop_by_hop(&mut fields);
        assert_eq!(fields.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-c"]);
    }
}
