//! The product that a client names in its User-Agent. Clients choose it freely.

use http::HeaderMap;
use http::header::USER_AGENT;

/// Returns the product of the User-Agent: its text up to the first `/` or blank. Empty without one.
pub fn product(fields: &HeaderMap) -> &[u8] {
    let text = fields.get(USER_AGENT).map(|value| value.as_bytes()).unwrap_or_default();
    let end = text.iter().position(|byte| matches!(byte, b'/' | b' '));
    &text[..end.unwrap_or(text.len())]
}

/// Whether a product matches a pattern: the pattern itself, or its start if a `*` ends the pattern.
pub fn matches(pattern: &str, product: &[u8]) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => product.starts_with(prefix.as_bytes()),
        None => product == pattern.as_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_product_ends_at_a_slash_or_blank() {
        let mut fields = HeaderMap::new();
        assert_eq!(product(&fields), b"");
        for (text, expected) in [
            ("kubelet/v1.37.1 (linux/amd64) kubernetes/$Format", "kubelet"),
            ("my controller", "my"),
            ("curl", "curl"),
            ("/x", ""),
        ] {
            fields.insert(USER_AGENT, text.parse().unwrap());
            assert_eq!(product(&fields), expected.as_bytes());
        }
    }

    #[test]
    fn only_a_star_at_the_end_is_a_wildcard() {
        assert!(matches("kube*", b"kubelet") && matches("*", b"") && matches("a", b"a"));
        assert!(!matches("kube", b"kubelet") && !matches("kube*", b"kub") && !matches("a", b"A"));
        assert!(!matches("a.c", b"abc") && !matches("a", b""));
    }
}
