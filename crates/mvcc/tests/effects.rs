//! Bytes that may be anything, read as effects.

use mvcc::{Effect, Order};
use proptest::prelude::*;

proptest! {
    /// No bytes make decoding panic, go on for ever, or give out more than it got.
    #[test]
    fn arbitrary_bytes_are_effects_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut order = Order::default();
        let mut rest = &bytes[..];
        while let Ok(effect) = Effect::decode(&mut rest) {
            let mut encoded = Vec::new();
            effect.encode(&mut encoded);
            let again = Effect::decode(&mut &encoded[..]).unwrap();
            prop_assert_eq!(format!("{:?}", effect), format!("{:?}", again));
            if order.follow(&effect).is_err() {
                break;
            }
        }
    }
}
