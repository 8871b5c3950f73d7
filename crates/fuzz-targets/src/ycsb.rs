//! YCSB target: property files of YCSB, and overrides of their properties.
//!
//! Input: bytes of an override, the override, the file.

use std::path::Path;

use farleaf_bench::YcsbProperties;

use crate::bytes::Bytes;

pub(crate) fn run(input: &[u8]) {
    let mut bytes = Bytes::new(input);
    let len = usize::from(bytes.u8());
    let first = String::from_utf8_lossy(bytes.take(len)).into_owned();
    let mut properties = YcsbProperties::new();
    if let Err(error) = properties.add_bytes(bytes.rest(), Path::new("workload")) {
        assert!(!error.to_string().is_empty());
    }
    if !first.is_empty()
        && let Err(error) = properties.set(&first)
    {
        assert!(!error.to_string().is_empty());
    }
    match properties.config() {
        Ok(config) => {
            let total: f64 = farleaf_bench::OpKind::ALL
                .iter()
                .map(|kind| config.workload.mix.share(*kind))
                .sum();
            assert!((total - 1.0).abs() < 1e-6, "shares add up to {total}");
            assert!(config.value_bytes <= farleaf_bench::BenchConfig::VALUE_BYTES_MAX);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
