//! The allocator: jemalloc.
//!
//! After a compaction has freed a million small objects, glibc's allocator consolidates
//! all of them at the next large allocation, which delayed a write by 25 ms. jemalloc
//! returns freed memory to the system from a background thread.

use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Settings that jemalloc reads at startup: a background thread returns memory to the
/// system one second after it was freed. The symbol is a C string pointer; jemalloc reads
/// only the pointer of the slice.
#[used]
#[unsafe(export_name = "_rjem_malloc_conf")]
static OPTIONS: &[u8] = b"background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0\0";

/// Returns the freed memory that jemalloc retains to the operating system.
pub fn give_back() {
    use std::ptr::null_mut;
    // SAFETY: the control (4096 means all arenas) has no input and no output, and may be
    // called from any thread at any time.
    let failure = unsafe {
        let purge = c"arena.4096.purge";
        tikv_jemalloc_sys::mallctl(purge.as_ptr(), null_mut(), null_mut(), null_mut(), 0)
    };
    if failure != 0 {
        tracing::debug!(code = failure, "could not return free memory to the system");
    }
}
