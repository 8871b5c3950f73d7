//! Lookup speed of the simulator: counts remote operations of real lookups per second of real time.
//!
//! `cargo run --profile bench -p farleaf-bench --example lookup_rate`
//!
//! Bars for 144 clients, on one core: 2 million a second, and 1.5 million with every READ torn.
//! 1,000 clients have no bar; they must run. The same seed must give the same run: the example runs
//! each twice, and the faster one counts.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use farleaf_bench::{
    BenchConfig, BenchError, FabricKind, Phase, Progress, Report, RequestDistribution, Workload,
    run,
};

const BAR_CLIENTS: usize = 144;
const BAR: f64 = 2.0e6;
const BAR_TORN: f64 = 1.5e6;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("clients  adversary  READs/op   M ops/s real   M lookups/s virtual");
    let mut met = true;
    for clients in [BAR_CLIENTS, 1_000] {
        for torn in [false, true] {
            met &= measure(clients, torn)?;
        }
    }
    if met { Ok(()) } else { Err("a bar was missed".into()) }
}

fn measure(clients: usize, torn: bool) -> Result<bool, Box<dyn std::error::Error>> {
    let mut workload = Workload::named("read-only")?;
    workload.request = RequestDistribution::Uniform;
    let config = BenchConfig {
        fabric: FabricKind::Sim,
        workload,
        keys: 1_000_000,
        warmup_ops: 10_000,
        ops: 1_000_000,
        clients,
        threads: 144,
        compute_servers: 4,
        memory_servers: 4,
        torn,
        ..BenchConfig::default()
    };
    let (rate, first) = rate(&config)?;
    let (again, second) = self::rate(&config)?;
    if first != second {
        return Err(format!("seed {} gave two different runs", config.seed).into());
    }
    let rate = rate.max(again);
    println!(
        "{clients:7}  {:9}  {:8.2}  {:13.2}  {:20.2}",
        if torn { "torn" } else { "none" },
        first.run.per_op.reads,
        rate / 1e6,
        first.run.phase.ops_per_s / 1e6,
    );
    Ok(clients > BAR_CLIENTS || rate >= if torn { BAR_TORN } else { BAR })
}

/// Remote operations of the run phase per second of real time, and the report.
fn rate(config: &BenchConfig) -> Result<(f64, Report), BenchError> {
    let watch = Watch(Mutex::new(Instant::now()));
    let report = run(config, &watch)?;
    let began = *watch.0.lock().unwrap_or_else(PoisonError::into_inner);
    let seconds = began.elapsed().as_secs_f64();
    let per_op = &report.run.per_op;
    let each = per_op.reads + per_op.writes + per_op.atomics + per_op.rpcs;
    Ok((each * report.run.phase.ops as f64 / seconds, report))
}

/// The moment at which the run phase began.
struct Watch(Mutex<Instant>);

impl Progress for Watch {
    fn begin(&self, phase: Phase, _total: u64) {
        if phase == Phase::Run {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        }
    }

    fn advance(&self, _steps: u64) {}
}
