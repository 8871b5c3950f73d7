//! Quantities for people: three significant digits and a unit, not meant to be read back.

const DECIMAL_UNITS: &[&str] = &["", " K", " M", " G", " T", " P", " E"];
const BINARY_UNITS: &[&str] = &[" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"];

/// `count` with three significant digits: `999`, `1.50 K`, `200 M`.
pub fn human_count(count: u64) -> String {
    if count < 1000 { count.to_string() } else { scaled(count as f64, 1000.0, DECIMAL_UNITS) }
}

/// `bytes` in binary units with three significant digits: `512 B`, `64.0 KiB`, `1.50 GiB`.
pub fn human_bytes(bytes: u64) -> String {
    if bytes < 1024 { format!("{bytes} B") } else { scaled(bytes as f64, 1024.0, BINARY_UNITS) }
}

/// Operations per second with three significant digits: `1.23 M ops/s`.
pub fn human_rate(ops_per_s: f64) -> String {
    format!("{} ops/s", scaled(ops_per_s, 1000.0, DECIMAL_UNITS))
}

/// A time given in microseconds, in the unit that suits it: `850 ns`, `12.3 us`, `4.56 ms`, `2.00 s`.
pub fn human_us(micros: f64) -> String {
    scaled(micros * 1000.0, 1000.0, &[" ns", " us", " ms", " s"])
}

/// Nanoseconds as microseconds.
pub fn us_from_ns(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}

/// `value` divided by `step` until it has at most three digits before the point, or units end.
fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut unit = 0;
    // A value that would print as a whole step belongs to the next unit: 999.7 K is 1.00 M.
    while value >= step - 0.5 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let decimals = match value.abs() {
        size if size < 9.995 => 2,
        size if size < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}{}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_get_three_digits() {
        assert_eq!(human_count(0), "0");
        assert_eq!(human_count(999), "999");
        assert_eq!(human_count(1_500), "1.50 K");
        assert_eq!(human_count(999_700), "1.00 M");
        assert_eq!(human_count(200_000_000), "200 M");
        assert_eq!(human_count(u64::MAX), "18.4 E");
        assert_eq!(human_bytes(512), "512 B");
        assert_eq!(human_bytes(65_536), "64.0 KiB");
        assert_eq!(human_bytes(3 << 29), "1.50 GiB");
        assert_eq!(human_rate(1_234_567.0), "1.23 M ops/s");
        assert_eq!(human_rate(0.5), "0.50 ops/s");
        assert_eq!(human_us(0.85), "850 ns");
        assert_eq!(human_us(12.34), "12.3 us");
        assert_eq!(human_us(4_560.0), "4.56 ms");
        assert_eq!(human_us(2e9), "2000 s");
        assert_eq!(us_from_ns(1_234), 1.234);
    }
}
