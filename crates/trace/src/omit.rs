//! Conditions under which fields are omitted from JSON.

pub(crate) fn is_zero(number: &i64) -> bool {
    *number == 0
}

pub(crate) fn is_zero_unsigned(number: &u64) -> bool {
    *number == 0
}

pub(crate) fn is_false(flag: &bool) -> bool {
    !flag
}
