//! DEX, Figure 11: throughput over the size of the cache.

use farleaf_engines::dex::DexOptions;

use super::{
    Repro,
    error::ReproError,
    papers,
    report::{ReproChart, ReproReport},
    setup,
};
/// Sizes of each compute server's cache in percent of all pairs' bytes.
const SIZES: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];
/// The share by which noise may make a larger cache seem slower.
const NOISE: f64 = 0.01;

pub(super) fn run(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let (paper, options) = (papers::papers()?.dex, repro.options);
    let world = setup::begin(repro, report, &paper, setup::Added::default())?;
    world.partition()?;
    let title = "throughput over the size of the cache";
    let mut chart = ReproChart::lines(title, "cache, % of the data", "Mops");
    for name in ["read-intensive", "write-intensive"] {
        let load = setup::paced(report, &paper, options, name)?;
        let mut last = 0.0;
        let mut grows = true;
        for percent in SIZES {
            let cache_bytes = world.data_bytes() * percent / 100;
            let cache = DexOptions { cache_bytes, ..setup::with_settings(options)? };
            let measured = world.run_dex(cache, &load)?;
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
    report.charts.push(chart);
    world.record_hash(report);
    report.note(
        "The paper gives curves and no numbers. Read-intensive grows with the cache there, as here. \
         Write-intensive is highest near 8 % there and falls beyond, which it puts down to latches that \
         wander between sockets; the simulator has no processors' caches, so it grows here.",
    );
    report.note(
        "A partition's nodes take about 36 % of the bytes of all pairs, so a cache of 64 % holds it \
         all; what it has not read by the end of the warm-up it still has to read.",
    );
    Ok(())
}
