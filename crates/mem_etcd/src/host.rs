//! Properties of the machine.

/// Returns the ID of the current boot; empty if it cannot be read.
pub fn boot_id() -> Vec<u8> {
    // Without it, every restart of the process is treated as a restart of the machine.
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().as_bytes().to_vec()
}
