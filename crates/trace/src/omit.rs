//! Conditions of serde's `skip_serializing_if`: a field with its default value is omitted from
//! the JSON.

pub(crate) fn is_zero(number: &i64) -> bool {
    *number == 0
}

pub(crate) fn is_zero_unsigned(number: &u64) -> bool {
    *number == 0
}

pub(crate) fn is_false(flag: &bool) -> bool {
    !flag
}
