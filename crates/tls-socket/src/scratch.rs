//! Buffers that all connections of a thread share.

use std::cell::RefCell;

/// Size of the buffer for received records in bytes: a few records of the largest size.
pub(crate) const RECEIVE_BYTES: usize = 64 << 10;
/// How many buffers for sealed records a thread keeps for its connections.
const MAX_KEPT: usize = 8;
/// A larger buffer is not kept.
const MAX_KEPT_BYTES: usize = 128 << 10;

thread_local! {
    static RECEIVE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static SEALED: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    static PLAIN: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Runs `use_it` with the buffer for received records.
pub(crate) fn with_receive_buffer<R>(use_it: impl FnOnce(&mut [u8]) -> R) -> R {
    with_buffer(&RECEIVE, |buffer| {
        buffer.resize(RECEIVE_BYTES, 0);
        use_it(buffer)
    })
}

/// Runs `use_it` with an empty buffer for plaintext that is gathered from several slices.
pub(crate) fn with_plain_buffer<R>(use_it: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    with_buffer(&PLAIN, |buffer| {
        buffer.clear();
        use_it(buffer)
    })
}

/// Takes the buffer for the time of the call, so that a nested call gets another one.
fn with_buffer<R>(
    buffer: &'static std::thread::LocalKey<RefCell<Vec<u8>>>,
    use_it: impl FnOnce(&mut Vec<u8>) -> R,
) -> R {
    let mut taken = buffer.take();
    let result = use_it(&mut taken);
    buffer.replace(taken);
    result
}

/// Returns an empty buffer for sealed records.
pub(crate) fn take_sealed() -> Vec<u8> {
    SEALED.with_borrow_mut(Vec::pop).unwrap_or_default()
}

/// Gives a buffer back that is not needed any more.
pub(crate) fn give_sealed(mut buffer: Vec<u8>) {
    buffer.clear();
    SEALED.with_borrow_mut(|kept| {
        if kept.len() < MAX_KEPT && (1..=MAX_KEPT_BYTES).contains(&buffer.capacity()) {
            kept.push(buffer);
        }
    });
}
