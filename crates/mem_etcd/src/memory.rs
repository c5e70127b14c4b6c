//! The allocator: jemalloc.
//!
//! A compaction frees a million small objects. glibc's allocator then consolidates all of
//! them at the next large allocation, which delayed a write by 25 ms. jemalloc returns
//! freed memory to the system from a background thread instead.

use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Settings that jemalloc reads at startup: a background thread returns memory to the
/// system one second after it was freed. jemalloc expects a pointer to a C string at this
/// symbol; it reads the pointer of the slice and ignores the length.
#[used]
#[unsafe(export_name = "_rjem_malloc_conf")]
static OPTIONS: &[u8] = b"background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0\0";

/// Returns all freed memory that jemalloc still holds to the operating system.
pub fn return_free_memory() {
    use std::ptr::null_mut;
    // SAFETY: this jemalloc control (arena 4096 stands for all arenas) has no input and
    // no output, and any thread may call it at any time.
    let failure = unsafe {
        let purge = c"arena.4096.purge";
        tikv_jemalloc_sys::mallctl(purge.as_ptr(), null_mut(), null_mut(), null_mut(), 0)
    };
    if failure != 0 {
        tracing::debug!(code = failure, "failed to return free memory to the system");
    }
}
