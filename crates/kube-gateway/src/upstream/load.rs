//! An API server's own load, read from its metrics.

/// Returns the value of `process_cpu_seconds_total` in a page of metrics in the text format.
pub fn cpu_seconds(page: &[u8]) -> Option<f64> {
    const NAME: &[u8] = b"process_cpu_seconds_total ";
    let line = page.split(|byte| *byte == b'\n').find(|line| line.starts_with(NAME))?;
    std::str::from_utf8(&line[NAME.len()..]).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_is_found_among_other_metrics() {
        let page =
            b"# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 12.5\nx 1\n";
        assert_eq!(cpu_seconds(page), Some(12.5));
        assert_eq!(cpu_seconds(b"process_cpu_seconds_total_x 1\n"), None);
    }
}
