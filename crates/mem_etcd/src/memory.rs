//! The allocator.
//!
//! jemalloc in the place of the C library's: after a compaction that frees a
//! million small pieces the latter looks at all of them when a larger one is next
//! asked for, which held up a write for 25 ms. What is freed here goes back to the
//! system from a thread of its own.

use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// What jemalloc reads when it starts: a thread of its own gives memory back, one
/// second after it was freed. Of the slice it sees the pointer.
#[used]
#[unsafe(export_name = "_rjem_malloc_conf")]
static OPTIONS: &[u8] = b"background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0\0";

/// Returns what was freed and is still held in reserve.
pub fn give_back() {
    use std::ptr::null_mut;
    // SAFETY: this name, which says all arenas, takes and returns nothing, and may
    // be called from any thread at any time.
    let failure = unsafe {
        let purge = c"arena.4096.purge";
        tikv_jemalloc_sys::mallctl(purge.as_ptr(), null_mut(), null_mut(), null_mut(), 0)
    };
    if failure != 0 {
        tracing::debug!(code = failure, "free memory was not given back");
    }
}
