//! Vectors that leave little memory unused.

/// Number of elements by which vectors grow. Small steps leave little memory
/// unused, whatever the number of keys after a split.
const GROWTH: usize = 8;

/// Inserts an element, with little unused capacity.
pub(super) fn insert<T>(vec: &mut Vec<T>, at: usize, element: T) {
    if vec.len() == vec.capacity() {
        vec.reserve_exact(GROWTH);
    }
    vec.insert(at, element);
}

/// Releases unused capacity if there is much of it.
pub(super) fn shrink<T>(vec: &mut Vec<T>) {
    if vec.capacity() >= vec.len() + 2 * GROWTH {
        vec.shrink_to(vec.len() + GROWTH);
    }
}
