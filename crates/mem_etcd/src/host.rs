//! What the machine says of itself.

/// Which run of which machine this is; empty where the kernel does not tell.
pub fn boot_id() -> Vec<u8> {
    // Whoever cannot read it takes every restart for one of the machine.
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().as_bytes().to_vec()
}
