//! Latency histogram: counts operations by their duration.

use hdrhistogram::Histogram;

use crate::{report::LatencyUs, units::us_from_ns};

/// Latencies beyond this are counted as this, except for the maximum.
const NANOS_MAX: u64 = 100_000_000_000;
const SIGNIFICANT_DIGITS: u8 = 3;

/// Latencies in nanoseconds, to three significant digits, in bounded memory (about 230 KiB).
///
/// Quantiles are exact below 2 us and within 0.1 % above, up to 100 s, where they end; the maximum
/// is exact. One for each thread and kind of operation, merged at the end.
#[derive(Clone, Debug)]
pub struct LatencyHistogram {
    counts: Histogram<u64>,
    nanos_max: u64,
}

impl LatencyHistogram {
    /// A histogram of nothing yet.
    pub fn new() -> Self {
        let counts = Histogram::new_with_bounds(1, NANOS_MAX, SIGNIFICANT_DIGITS)
            // The bounds are constants: low >= 1, high >= 2 * low, digits <= 5.
            .expect("the bounds are valid");
        Self { counts, nanos_max: 0 }
    }

    /// Adds one operation that took `nanos`. Does not allocate; about 5 ns.
    pub fn record(&mut self, nanos: u64) {
        self.counts.saturating_record(nanos);
        self.nanos_max = self.nanos_max.max(nanos);
    }

    /// Adds all of `other`'s operations.
    pub fn merge(&mut self, other: &Self) {
        self.counts
            .add(&other.counts)
            // Fails only if the other's values lie outside these bounds, which are the same.
            .expect("both have the same bounds");
        self.nanos_max = self.nanos_max.max(other.nanos_max);
    }

    /// The number of operations recorded.
    pub fn count(&self) -> u64 {
        self.counts.len()
    }

    /// Forgets all operations and keeps the memory.
    pub fn clear(&mut self) {
        self.counts.reset();
        self.nanos_max = 0;
    }

    /// The figures of reports; all 0 if nothing was recorded.
    pub fn summary(&self) -> LatencyUs {
        if self.count() == 0 {
            return LatencyUs::default();
        }
        // A bucket's upper end may lie above the largest value in it.
        let quantile = |q| us_from_ns(self.counts.value_at_quantile(q).min(self.nanos_max));
        LatencyUs {
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: us_from_ns(self.nanos_max),
        }
    }
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_near_the_sorted_values() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut histogram = LatencyHistogram::new();
        let mut nanos: Vec<u64> = (0..50_000).map(|_| 1 << rng.u32(5..25)).collect();
        for value in &mut nanos {
            *value += rng.u64(0..*value);
            histogram.record(*value);
        }
        nanos.sort_unstable();
        let summary = histogram.summary();
        for (quantile, found) in
            [(0.5, summary.p50), (0.9, summary.p90), (0.99, summary.p99), (0.999, summary.p999)]
        {
            let exact = nanos[(quantile * nanos.len() as f64).ceil() as usize - 1] as f64 / 1000.0;
            assert!((found / exact - 1.0).abs() < 0.002, "{quantile}: {found} is not {exact}");
        }
        assert_eq!(histogram.count(), 50_000);
        assert_eq!(summary.max, us_from_ns(nanos[nanos.len() - 1]));
    }

    #[test]
    fn merging_is_recording_in_one() {
        let mut rng = fastrand::Rng::with_seed(2);
        let [mut one, mut left, mut right] = [(); 3].map(|()| LatencyHistogram::new());
        for _ in 0..10_000 {
            let nanos = rng.u64(0..10_000_000);
            one.record(nanos);
            if rng.bool() { &mut left } else { &mut right }.record(nanos);
        }
        left.merge(&right);
        left.merge(&LatencyHistogram::default());
        assert_eq!((left.count(), left.summary()), (one.count(), one.summary()));
    }

    #[test]
    fn extremes_saturate_and_do_not_fail() {
        let mut histogram = LatencyHistogram::new();
        assert_eq!(histogram.summary(), LatencyUs::default());
        histogram.record(0);
        histogram.record(u64::MAX);
        histogram.record(u64::MAX);
        let summary = histogram.summary();
        assert_eq!(summary.max, us_from_ns(u64::MAX));
        assert!((summary.p50 / us_from_ns(NANOS_MAX) - 1.0).abs() < 0.002);
        histogram.clear();
        assert_eq!(histogram.summary(), LatencyUs::default());
    }

    #[test]
    fn one_value_is_every_quantile() {
        let mut histogram = LatencyHistogram::new();
        histogram.record(123_456_789);
        let summary = histogram.summary();
        assert_eq!([summary.p50, summary.p999, summary.max], [123_456.789; 3]);
    }
}
