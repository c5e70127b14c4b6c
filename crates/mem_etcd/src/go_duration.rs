//! Durations in the format of Go.

use std::time::Duration;

/// Parses a duration, for example `1h30m` or `1.5h`; `None` if it is malformed, negative or longer
/// than a `u32` of seconds.
pub fn parse(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    let mut seconds = 0.0;
    loop {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        let unit_len = rest[digits..].find(|c: char| c.is_ascii_digit() || c == '.');
        let (unit, next) = rest[digits..].split_at(unit_len.unwrap_or(rest.len() - digits));
        seconds += number
            * match unit {
                "ns" => 1e-9,
                "us" | "µs" | "μs" => 1e-6,
                "ms" => 1e-3,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return None,
            };
        if next.is_empty() {
            return (seconds < f64::from(u32::MAX)).then(|| Duration::from_secs_f64(seconds));
        }
        rest = next;
    }
}

/// Parses the duration of a flag, for example `100ms`, or `1h 30m`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| "is not a duration such as 100ms, 5s or 10m".into())
}
