//! DEX, Figure 11: throughput over the size of the cache.

use farleaf_engines::dex::DexOptions;

use super::{
    ReproOptions,
    driver::Curves,
    error::ReproError,
    papers,
    report::{ChartKind, ReproReport},
    setup,
    world::Load,
};
use crate::{
    run::{BenchError, Progress},
    workload::Workload,
};

/// Sizes of each compute server's cache in percent of all pairs' bytes.
const SIZES: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];
/// As in Figure 8.
const SCALE_MIN: f64 = 0.01;
/// The share by which noise may make a larger cache seem slower.
const NOISE: f64 = 0.01;

pub(super) fn run(
    options: &ReproOptions,
    progress: &dyn Progress,
) -> Result<ReproReport, ReproError> {
    let paper = papers::dex()?;
    options.check_scale(SCALE_MIN, "1 % of the data is less than the clients' paths take")?;
    let title = "throughput over the size of the cache";
    let title = ("dex-fig11", title);
    let (mut report, world) = setup::begin(title, &paper, options, 0, progress)?;
    world.partition()?;
    let (ops, local_ns) = setup::paced(&mut report, &paper, options);
    let title = "throughput over the size of the cache";
    let mut chart = Curves::new(ChartKind::Lines, title, "cache, % of the data", "Mops");
    for name in ["read-intensive", "write-intensive"] {
        let workload = Workload::named(name).map_err(BenchError::from)?;
        let mut last = 0.0;
        let mut grows = true;
        for percent in SIZES {
            let cache_bytes = world.data_bytes() * percent / 100;
            let cache = DexOptions { cache_bytes, ..setup::with_settings(options)? };
            let load = Load { workload: &workload, warmup: ops, ops, local_ns, clients: None };
            let measured = world.run_dex(cache, &load, progress)?;
            let case = format!("{name}, {percent} %");
            report.row(&case, "Mops", None, measured.mops(), "");
            report.row(&case, "READs /op", None, measured.per_op().reads, "");
            report.row(&case, "WRITEs /op", None, measured.per_op().writes, "");
            chart.add(name, &percent.to_string(), measured.mops());
            grows &= measured.mops() >= last * (1.0 - NOISE);
            last = measured.mops();
        }
        report.check(format!("{name}: a larger cache is never slower"), Some(grows));
    }
    chart.finish(&mut report);
    report.set("trace_hash", format!("{:016x}", world.trace_hash()));
    for note in [
        "The paper gives curves and no numbers. Read-intensive grows with the cache there, as here. \
         Write-intensive is highest near 8 % there and falls beyond, which it puts down to latches that \
         wander between sockets; the simulator has no processors' caches, so it grows here.",
        "A partition's nodes take about 36 % of the bytes of all pairs, so a cache of 64 % holds it \
         all; what it has not read by the end of the warm-up it still has to read.",
    ] {
        report.notes.push(note.to_owned());
    }
    Ok(report)
}
