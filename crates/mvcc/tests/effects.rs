//! Tests the decoder of effects with arbitrary bytes.

use mvcc::{Effect, RevisionOrder};
use proptest::prelude::*;

proptest! {
    /// Decoding arbitrary bytes never panics and always ends. Every decoded effect can be
    /// encoded and decoded again.
    #[test]
    fn arbitrary_bytes_decode_or_fail(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut order = RevisionOrder::default();
        let mut rest = &bytes[..];
        while let Ok(effect) = Effect::decode(&mut rest) {
            let mut encoded = Vec::new();
            effect.encode(&mut encoded);
            let again = Effect::decode(&mut &encoded[..]).unwrap();
            prop_assert_eq!(format!("{:?}", effect), format!("{:?}", again));
            if order.check(&effect).is_err() {
                break;
            }
        }
    }
}
