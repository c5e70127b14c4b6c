//! Properties of the machine on which the process runs.

/// Returns the ID of the machine's current boot; empty if it cannot be read.
pub fn boot_id() -> Vec<u8> {
    // With an empty ID, every restart of the process counts as a restart of the machine.
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().as_bytes().to_vec()
}
