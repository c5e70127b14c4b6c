//! Memory back to the system.

/// Returns what was freed and is still held in reserve, where the allocator can.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim takes a number, touches only memory that is free, and
    // may be called from any thread at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
