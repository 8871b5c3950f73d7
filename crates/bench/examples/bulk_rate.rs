//! Bulk load speed: loads sorted pairs of 8 bytes, and gives their time and their bytes in the pool.
//!
//! `cargo run --profile bench -p farleaf-bench --example bulk_rate [PAIRS sim]`
//!
//! Bars: 10 million on mapped memory in 3 s (the default); with `200M sim`, 200 million in the
//! simulator in 60 s of real time and 7 GiB of memory. 26 bytes a pair in both.

use std::{fs, time::Instant};

use farleaf_bench::{
    BenchConfig, FabricKind, KeyOrder, KeySpec, NoProgress, run,
    units::{Count, human_bytes},
};

const BYTES_PER_PAIR: f64 = 26.0;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let pairs: Count = arguments.next().as_deref().unwrap_or("10M").parse()?;
    let fabric: FabricKind = arguments.next().as_deref().unwrap_or("mapped").parse()?;
    let (seconds_bar, memory_bar) = match fabric {
        FabricKind::Sim => (60.0, 7 << 30),
        _ => (3.0, u64::MAX),
    };
    let mut met = true;
    for order in [KeyOrder::Ordered, KeyOrder::Hashed] {
        let config = BenchConfig {
            fabric,
            keys: pairs.0,
            key_type: KeySpec::U64(order),
            ops: 1,
            warmup_ops: 0,
            clients: 1,
            threads: 1,
            ..BenchConfig::default()
        };
        let start = Instant::now();
        let report = run(&config, &NoProgress)?;
        let seconds = start.elapsed().as_secs_f64();
        let bytes_per_pair = report.memory.index_bytes as f64 / pairs.0 as f64;
        let peak = peak_bytes();
        println!(
            "{pairs} pairs, {} keys, {fabric}: {seconds:.2} s, {bytes_per_pair:.2} bytes a pair, \
             at most {} so far",
            config.key_type,
            peak.map_or("?".to_owned(), human_bytes),
        );
        met &= seconds < seconds_bar
            && bytes_per_pair <= BYTES_PER_PAIR
            && peak.is_none_or(|peak| peak < memory_bar);
    }
    if met { Ok(()) } else { Err("a bar was missed".into()) }
}

/// The most memory that this process has had.
fn peak_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
